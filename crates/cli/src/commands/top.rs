//! `djinn top`

use std::io::IsTerminal;

use djinn_terminal::{Failure, TopFormat, TopOptions};

use super::connection::{address, options};
use crate::args::TopArgs;

/// Shows live server statistics.
pub fn top(args: &TopArgs) -> Result<(), Failure> {
    let is_terminal = std::io::stdout().is_terminal();
    let format = match (args.json, args.once || !is_terminal) {
        (true, _) => TopFormat::Json,
        (false, true) => TopFormat::Table,
        (false, false) => TopFormat::Live,
    };
    djinn_terminal::top(&TopOptions {
        address: address(&args.server),
        connection: options(&args.server),
        every: args.every,
        format,
    })
}
