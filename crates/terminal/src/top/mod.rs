//! Live statistics of a server on a terminal, as a table or as JSON.

mod connection;
mod figures;
mod live;
mod print;
mod view;

use djinn_client::Error;

use crate::output::{Failure, say, say_json};
use connection::{connect, runtime};
use figures::Figures;

pub use connection::{TopFormat, TopOptions};
pub use figures::model_state;

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
