//! Errors of reading a configuration.

use std::path::PathBuf;

/// Error of reading a configuration file.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read, and no bundled configuration has its name.
    #[error(
        "{}: {error}; bundled configurations are named without a path: {}",
        path.display(),
        bundled.join(", ")
    )]
    Unreadable {
        /// Path or name that was given.
        path: PathBuf,
        /// Error of the operating system.
        error: std::io::Error,
        /// Names of the bundled configurations.
        bundled: Vec<&'static str>,
    },
    /// The file is not a valid configuration.
    #[error("{}: {problem}", path.display())]
    Invalid {
        /// Path or name that was given.
        path: PathBuf,
        /// Reason why the configuration is invalid.
        problem: ConfigProblem,
    },
}

/// Reason why a configuration is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigProblem {
    /// The text is not YAML, or a value has the wrong type.
    #[error("{0}")]
    Syntax(String),
    /// A key does not exist.
    #[error("unknown key '{key}'; {}", suggestion(.similar.as_deref(), .known))]
    UnknownKey {
        /// Full path of the key.
        key: String,
        /// Existing key with a similar name.
        similar: Option<String>,
        /// Keys that exist at this place.
        known: Vec<String>,
    },
    /// A value is out of range.
    #[error("{key}: {reason}")]
    Value {
        /// Full path of the key.
        key: String,
        /// Reason why the value is refused.
        reason: String,
    },
}

fn suggestion(similar: Option<&str>, known: &[String]) -> String {
    match similar {
        Some(name) => format!("did you mean '{name}'?"),
        None => format!("known keys: {}", known.join(", ")),
    }
}
