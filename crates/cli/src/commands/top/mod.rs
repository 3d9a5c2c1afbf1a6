//! `djinn top`: live server statistics on a terminal, as a table or as JSON.

mod figures;
mod live;
mod told;
mod view;

use std::io::IsTerminal;

use super::connection::on_server;
use crate::{
    args::TopArgs,
    failure::{Failure, say, say_json},
};
use figures::Figures;

/// Shows live server statistics.
pub fn top(args: &TopArgs) -> Result<(), Failure> {
    if args.json || args.once || !std::io::stdout().is_terminal() {
        return once(args);
    }
    live::run(args)
}

/// Prints statistics once. Rates need two readings.
fn once(args: &TopArgs) -> Result<(), Failure> {
    let figures = on_server(&args.server, async |client| {
        let server = client.capabilities().await?;
        let mut watch = client.watch(args.every).await?;
        let first = watch.next().await?;
        let second = watch.next().await?;
        Ok(Figures::between(&server, Some(&first), &second))
    })?;
    match args.json {
        true => say_json(&figures.json()),
        false => say(&figures.text()),
    }
}
