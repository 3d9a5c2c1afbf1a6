//! How a command fails: with one line.

use std::{fmt::Display, io};

/// Why a command ended early.
#[derive(Debug)]
pub enum Failure {
    /// What to tell the user.
    Message(String),
    /// Standard output was closed, as by `| head`.
    ReaderLeft,
}

impl<E: Display> From<E> for Failure {
    fn from(error: E) -> Self {
        Failure::Message(error.to_string().replace('\n', " "))
    }
}

/// Keeps a closed pipe apart from other failures to write.
pub fn written(result: io::Result<()>) -> Result<(), Failure> {
    match result {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Err(Failure::ReaderLeft),
        Err(e) => Err(Failure::Message(format!("standard output: {e}"))),
        Ok(()) => Ok(()),
    }
}
