//! Requests over plain HTTP/1.1, one connection each.

use std::{io, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// Time that a whole request may take.
const LIMIT: Duration = Duration::from_secs(180);

/// Reply of the server: status and body.
#[derive(Debug)]
pub struct HttpReply {
    /// Status code; zero if the server sent none.
    pub status: u16,
    /// Body.
    pub body: String,
}

async fn send(address: &str, key: &str, path: &str, body: &[u8]) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(address).await?;
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: djinn\r\nauthorization: Bearer {key}\r\ncontent-type: \
         application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    // A server may answer and close before it has read a body that is too large.
    let _ = stream.write_all(body).await;
    Ok(stream)
}

/// Sends a request and reads the reply.
pub async fn post(address: &str, key: &str, path: &str, body: &[u8]) -> io::Result<HttpReply> {
    let call = async {
        let mut stream = send(address, key, path, body).await?;
        let (mut reply, mut buffer) = (Vec::new(), [0; 4096]);
        loop {
            match stream.read(&mut buffer).await {
                Ok(0) => break,
                Ok(count) => reply.extend_from_slice(&buffer[..count]),
                Err(error) if reply.is_empty() => return Err(error),
                Err(_) => break,
            }
        }
        let text = String::from_utf8_lossy(&reply).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        Ok(HttpReply {
            status: status.unwrap_or(0),
            body: body.to_owned(),
        })
    };
    tokio::time::timeout(LIMIT, call).await?
}

/// Sends a request, reads the first bytes of the reply, and vanishes.
pub async fn post_and_leave(
    address: &str,
    key: &str,
    path: &str,
    body: &[u8],
    bytes: usize,
) -> io::Result<()> {
    let call = async {
        let mut stream = send(address, key, path, body).await?;
        let mut first = vec![0; bytes];
        stream.read_exact(&mut first).await.map(drop)
    };
    tokio::time::timeout(LIMIT, call).await?
}
