//! Output of a command: text and JSON on standard output, one line on standard error for a failure.

use std::{
    fmt::Display,
    io::{self, Write},
};

use serde_json::Value;

/// Reason why a command ended early.
#[derive(Debug)]
pub enum Failure {
    /// Message for the user.
    Message(String),
    /// A failed check that standard output has reported already.
    Reported,
    /// The user pressed Ctrl-C.
    Interrupted,
    /// The reader of standard output closed it, as `| head` does.
    OutputClosed,
}

impl<E: Display> From<E> for Failure {
    fn from(error: E) -> Self {
        Failure::Message(error.to_string().replace('\n', " "))
    }
}

/// Writes to standard output and flushes it. A closed output ends the command.
pub fn say(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Err(Failure::OutputClosed),
        Err(e) => Err(Failure::Message(format!("standard output: {e}"))),
        Ok(()) => Ok(()),
    }
}

/// Writes JSON to standard output.
pub fn say_json(value: &Value) -> Result<(), Failure> {
    say(&format!("{value:#}\n"))
}
