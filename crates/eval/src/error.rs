//! What can go wrong with an experiment.

use std::path::PathBuf;

use crate::config::bundled_names;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum EvalError {
    /// There is no such configuration.
    #[error(
        "{}: {error}; configurations that ship with Djinn are named without a path: {}",
        path.display(),
        bundled_names().collect::<Vec<_>>().join(", ")
    )]
    NoConfig {
        /// As it was named.
        path: PathBuf,
        /// Why it cannot be read.
        error: std::io::Error,
    },
    /// A configuration makes no sense.
    #[error("{}: {problem}", path.display())]
    Config {
        /// Which.
        path: PathBuf,
        /// What is wrong with it, and where.
        problem: String,
    },
    /// What was asked cannot be done.
    #[error("{0}")]
    Asked(String),
    /// The server, or the way to it.
    #[error("{0}")]
    Client(#[from] djinn_client::Error),
    /// A server in process did not start.
    #[error("{0}")]
    Server(#[from] djinn_server::ServeError),
    /// The model was not found.
    #[error("{0}")]
    Hub(#[from] djinn_hub::HubError),
    /// The model is broken.
    #[error("{0}")]
    Model(#[from] djinn_model::ModelError),
    /// A file or a process.
    #[error("{what}: {error}")]
    System {
        /// Which.
        what: String,
        /// Why.
        error: std::io::Error,
    },
}
