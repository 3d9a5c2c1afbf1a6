//! gRPC clients with a key, for tests with several owners.

#![allow(dead_code, clippy::unwrap_used)]

use std::net::SocketAddr;

use djinn_wire::v1;
use tonic::{Request, transport::Channel};

use super::Server;

/// Key of the admin.
pub const ADA: &str = "ada-0123456789abcdef";
/// Key of another owner.
pub const BERT: &str = "bert-0123456789abcdef";

/// Server with two owners, of whom Ada is an admin.
pub fn with_two_owners(change: impl FnOnce(&mut djinn_server::ServerConfig)) -> Server {
    Server::with(|config| {
        let path = config.pushed.parent().unwrap().join("keys.toml");
        let text = format!(
            "[[key]]\nowner = 'ada'\nkey = '{ADA}'\nadmin = true\n\n[[key]]\nowner = 'bert'\nkey = '{BERT}'\n"
        );
        std::fs::write(&path, text).unwrap();
        config.keys = Some(path);
        change(config);
    })
}

/// Runs a client's future.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(future)
}

/// Connects to a server.
pub async fn channel(address: SocketAddr) -> Channel {
    Channel::from_shared(format!("http://{address}"))
        .unwrap()
        .connect()
        .await
        .unwrap()
}

/// Adds a key to a message.
pub fn with_key<T>(message: T, key: &str) -> Request<T> {
    let mut request = Request::new(message);
    let value = format!("Bearer {key}").parse().unwrap();
    request.metadata_mut().insert("authorization", value);
    request
}

/// Request for a session that continues a story.
pub fn create(max_tokens: u64, keep: bool) -> v1::CreateRequest {
    let what = v1::prompt::What::Text("Once upon a time".to_owned());
    v1::CreateRequest {
        prompt: Some(v1::Prompt { what: Some(what) }),
        max_tokens: Some(max_tokens),
        ignore_eos: true,
        keep,
        ..v1::CreateRequest::default()
    }
}

/// Reads a stream to its end. Returns the session's name and the generated tokens.
pub async fn read_all(mut events: tonic::Streaming<v1::Event>) -> (String, Vec<u32>) {
    let (mut name, mut tokens) = (String::new(), Vec::new());
    while let Some(event) = events.message().await.unwrap() {
        match event.what {
            Some(v1::event::What::Opened(opened)) => name = opened.session,
            Some(v1::event::What::Token(token)) => tokens.push(token.id),
            _ => {}
        }
    }
    (name, tokens)
}
