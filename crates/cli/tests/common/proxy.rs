//! Proxy that counts the bytes between a client and a server.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use djinn_client::{Client, Options};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// Bytes sent to the server and received from it.
#[derive(Clone, Default)]
pub struct Counts {
    sent: Arc<AtomicU64>,
    received: Arc<AtomicU64>,
}

impl Counts {
    /// Returns the bytes sent and received since the last call.
    pub fn take(&self) -> (u64, u64) {
        let take = |count: &AtomicU64| count.swap(0, Ordering::SeqCst);
        (take(&self.sent), take(&self.received))
    }
}

/// Connects a client through a proxy that counts its bytes.
pub async fn counted_client(server: &str) -> (Client, Counts) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (counts, server) = (Counts::default(), server.to_owned());
    let counting = counts.clone();
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let far = TcpStream::connect(&server).await.unwrap();
            let (near_in, near_out) = near.into_split();
            let (far_in, far_out) = far.into_split();
            tokio::spawn(forward(near_in, far_out, Arc::clone(&counting.sent)));
            tokio::spawn(forward(far_in, near_out, Arc::clone(&counting.received)));
        }
    });
    let client = Client::connect(&address, Options::default()).await.unwrap();
    (client, counts)
}

/// Copies bytes from one side of the proxy to the other and counts them.
async fn forward(
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
