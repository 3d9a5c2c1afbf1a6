//! How a command fails: with one line.

use std::{
    fmt::Display,
    io::{self, Write},
};

use serde_json::Value;

/// Why a command ended early.
#[derive(Debug)]
pub enum Failure {
    /// What to tell the user.
    Message(String),
    /// A failed check that standard output has reported already.
    Reported,
    /// Somebody pressed Ctrl-C.
    Interrupted,
    /// Standard output was closed, as by `| head`.
    ReaderLeft,
}

impl<E: Display> From<E> for Failure {
    fn from(error: E) -> Self {
        Failure::Message(error.to_string().replace('\n', " "))
    }
}

/// Writes to standard output, at once. A reader that has left ends the command.
pub fn say(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Err(Failure::ReaderLeft),
        Err(e) => Err(Failure::Message(format!("standard output: {e}"))),
        Ok(()) => Ok(()),
    }
}

/// Writes JSON to standard output.
pub fn say_json(value: &Value) -> Result<(), Failure> {
    say(&format!("{value:#}\n"))
}
