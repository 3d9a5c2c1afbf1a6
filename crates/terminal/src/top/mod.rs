//! Live statistics of a server on a terminal, as a table or as JSON.

mod figures;
mod live;
mod print;
mod view;

use std::time::Duration;

use djinn_client::{Client, Error, Options};
use tokio::runtime::{Builder, Runtime};

use crate::output::{Failure, say, say_json};
use figures::Figures;

pub use figures::model_state;

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

/// Shows live statistics of a server.
pub fn top(options: &TopOptions) -> Result<(), Failure> {
    let figures = match options.format {
        TopFormat::Live => return live::run(options),
        TopFormat::Table | TopFormat::Json => read_once(options)?,
    };
    match options.format {
        TopFormat::Json => say_json(&figures.json()),
        _ => say(&figures.text()),
    }
}

/// Reads statistics twice, since rates need two readings.
fn read_once(options: &TopOptions) -> Result<Figures, Failure> {
    let figures: Result<Figures, Error> = runtime()?.block_on(async {
        let client = connect(options).await?;
        let server = client.capabilities().await?;
        let mut watch = client.watch(options.every).await?;
        let first = watch.next().await?;
        let second = watch.next().await?;
        Ok(Figures::between(&server, Some(&first), &second))
    });
    Ok(figures?)
}

async fn connect(options: &TopOptions) -> Result<Client, Error> {
    Client::connect(&options.address, options.connection.clone()).await
}

fn runtime() -> Result<Runtime, Failure> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}
