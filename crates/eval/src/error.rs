//! Errors of experiments.

use crate::config::ConfigError;

/// Error that ends an experiment.
#[derive(Debug, thiserror::Error)]
pub enum EvalError {
    /// The configuration cannot be read or is invalid.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// A setting does not fit the model or the experiment.
    #[error("{key}: {reason}")]
    Setting {
        /// Key of the configuration.
        key: &'static str,
        /// Reason, limit and remedy.
        reason: String,
    },
    /// A turn ended before it had generated all of its tokens.
    #[error("a session ended before it had generated all tokens: {reason}")]
    IncompleteTurn {
        /// Reason that the server gave.
        reason: String,
    },
    /// A session did not stop at its breakpoint.
    #[error("a session did not stop at its breakpoint: {reason}")]
    NotStopped {
        /// Reason that the server gave.
        reason: String,
    },
    /// The server did not report what the experiment needs.
    #[error("the server's report on model {model} is unusable: {reason}")]
    ModelReport {
        /// Name of the model on the server.
        model: String,
        /// Missing or inconsistent part of the report.
        reason: String,
    },
    /// A request to the server failed.
    #[error("{0}")]
    Client(#[from] djinn_client::Error),
    /// The server in this process did not start.
    #[error("{0}")]
    Server(#[from] djinn_server::ServeError),
    /// The model was not found.
    #[error("{0}")]
    Hub(#[from] djinn_hub::HubError),
    /// The model cannot be opened.
    #[error("{0}")]
    Model(#[from] djinn_model::ModelError),
    /// A file or process operation failed.
    #[error("{what}: {error}")]
    System {
        /// File or process.
        what: String,
        /// Error of the operating system.
        error: std::io::Error,
    },
}
