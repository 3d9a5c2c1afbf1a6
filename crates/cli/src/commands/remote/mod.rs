//! Commands whose work a server does: they say what they would say here, and load nothing.

pub mod chat;
pub mod debug;
pub mod lens;
pub mod models;
pub mod plan;
pub mod run;
pub mod sessions;
pub mod trace;

mod edits;
mod prompt;

use djinn_client::{Client, Options, v1};

use crate::{args::ServerArgs, failure::Failure};

/// Connects to the server that flags name, or that the environment does, and does something there.
pub fn on<T>(
    args: &ServerArgs,
    work: impl AsyncFnOnce(Client) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let runtime = runtime()?;
    runtime.block_on(async { work(connect(args).await?).await })
}

/// What waits for a server.
pub fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("client")
        .enable_all()
        .build()
        .map_err(|error| Failure::Message(format!("no threads to ask a server with: {error}")))
}

/// Connects to the server that flags name, or that the environment does.
pub async fn connect(args: &ServerArgs) -> Result<Client, Failure> {
    let options = Options {
        key: args.key.clone().filter(|key| !key.is_empty()),
        ca: args.ca.clone(),
        ..Options::default()
    };
    Ok(Client::connect(&address(args), options).await?)
}

/// Where that is.
pub fn address(args: &ServerArgs) -> String {
    args.server.clone().unwrap_or_else(Options::address)
}

/// Greedy, whatever the model recommends.
fn greedy() -> v1::Sampling {
    v1::Sampling {
        temperature: Some(0.0),
        repetition_penalty: Some(1.0),
        ..v1::Sampling::default()
    }
}

/// Numbers as the engine has them.
fn tensor(from: djinn_client::TensorData) -> djinn_engine::Tensor {
    djinn_engine::Tensor {
        shape: from.shape,
        data: from.data,
    }
}
