//! What can go wrong with results.

use std::path::PathBuf;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// A file could not be read or written.
    #[error("{}: {error}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// What is in a file is not JSON.
    #[error("{}: this is no JSON: {reason}", path.display())]
    Json {
        /// Which.
        path: PathBuf,
        /// Where and why.
        reason: String,
    },
    /// It is JSON of another shape.
    #[error("{}: not a result: {}", path.display(), faults.join("; "))]
    Shape {
        /// Which.
        path: PathBuf,
        /// Where it is not as the schema says, and how.
        faults: Vec<String>,
    },
    /// There is nothing to report on.
    #[error("no results in {}", listed(paths))]
    Nothing {
        /// Where they were looked for.
        paths: Vec<PathBuf>,
    },
    /// A figure could not be turned into a picture.
    #[error("{figure}: {reason}")]
    Figure {
        /// Which.
        figure: String,
        /// Why.
        reason: String,
    },
    /// A text has no place for what was to be put into it.
    #[error("no lines <!-- {marker}:begin --> and <!-- {marker}:end -->, in this order")]
    Marker {
        /// What the place is called.
        marker: String,
    },
}

fn listed(paths: &[PathBuf]) -> String {
    let names: Vec<String> = paths
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    names.join(", ")
}
