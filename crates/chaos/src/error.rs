//! Errors that prevent a run.

use std::{io, path::PathBuf};

/// Error that prevents a run, as opposed to a broken promise of the server.
#[derive(Debug, thiserror::Error)]
pub enum ChaosError {
    /// A file or a process failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The C compiler failed.
    #[error("Cannot compile shim.c with cc: {0}")]
    Compiler(String),
    /// The server did not start.
    #[error("The server did not start; its log {} ends with: {tail}", .log.display())]
    Start {
        /// Log of the server.
        log: PathBuf,
        /// Last lines of the log.
        tail: String,
    },
    /// A call that the run depends on failed while no fault was active.
    #[error(transparent)]
    Client(#[from] djinn_client::Error),
}
