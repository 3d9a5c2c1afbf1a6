//! A connection that counts what goes through it.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use djinn_client::{Client, Options};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// Bytes that went to the server and came from it.
#[derive(Clone, Default)]
pub struct Counts {
    sent: Arc<AtomicU64>,
    received: Arc<AtomicU64>,
}

impl Counts {
    /// What went and came since it was last asked.
    pub fn take(&self) -> (u64, u64) {
        let take = |count: &AtomicU64| count.swap(0, Ordering::SeqCst);
        (take(&self.sent), take(&self.received))
    }
}

/// A client whose bytes are counted.
pub async fn counted(server: &str) -> (Client, Counts) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (counts, server) = (Counts::default(), server.to_owned());
    let counting = counts.clone();
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let far = TcpStream::connect(&server).await.unwrap();
            let (near_in, near_out) = near.into_split();
            let (far_in, far_out) = far.into_split();
            tokio::spawn(pass(near_in, far_out, Arc::clone(&counting.sent)));
            tokio::spawn(pass(far_in, near_out, Arc::clone(&counting.received)));
        }
    });
    let client = Client::connect(&address, Options::default()).await.unwrap();
    (client, counts)
}

async fn pass(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    count: Arc<AtomicU64>,
) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        count.fetch_add(read as u64, Ordering::SeqCst);
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
