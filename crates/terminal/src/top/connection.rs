//! Options of live statistics, and the connection to the server.

use std::time::Duration;

use djinn_client::{Client, Error, Options};
use tokio::runtime::{Builder, Runtime};

use crate::output::Failure;

/// Options of live statistics.
#[derive(Clone, Debug)]
pub struct TopOptions {
    /// Address of the server.
    pub address: String,
    /// Options of the connection.
    pub connection: Options,
    /// Time between two readings.
    pub every: Duration,
    /// Format of the output.
    pub format: TopFormat,
}

/// Format of live statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopFormat {
    /// A live view until a key ends it.
    Live,
    /// One table.
    Table,
    /// One JSON object.
    Json,
}

/// Connects to the server.
pub async fn connect(options: &TopOptions) -> Result<Client, Error> {
    Client::connect(&options.address, options.connection.clone()).await
}

/// Runtime of one thread.
pub fn runtime() -> Result<Runtime, Failure> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}
