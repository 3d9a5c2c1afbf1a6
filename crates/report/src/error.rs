//! Errors of reading results and writing reports.

use std::path::PathBuf;

/// Error of reading results or writing a report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// A file could not be read or written.
    #[error("{}: {error}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        error: std::io::Error,
    },
    /// A file does not contain JSON.
    #[error("{}: invalid JSON: {reason}", path.display())]
    Json {
        /// Path of the file.
        path: PathBuf,
        /// Position and cause of the syntax error.
        reason: String,
    },
    /// A result does not match the schema of result files.
    #[error("{}: not a result file of djinn eval: {}", path.display(), violations.join("; "))]
    Schema {
        /// Path of the file.
        path: PathBuf,
        /// Schema violations, each with its path in the document.
        violations: Vec<String>,
    },
    /// The given paths contain no result files.
    #[error(
        "no result files (*.json) in {}; run djinn eval first, or check --results",
        listed(paths)
    )]
    NoResults {
        /// Files and folders that were searched.
        paths: Vec<PathBuf>,
    },
    /// A figure could not be rendered as PNG.
    #[error("cannot render figure {figure}: {reason}")]
    Figure {
        /// File name of the figure, without extension.
        figure: String,
        /// Cause of the failure.
        reason: String,
    },
    /// A file has no markers around the place of the table.
    #[error(
        "the file needs a line <!-- {marker}:begin --> followed by a line <!-- {marker}:end -->, \
         between which the table is written"
    )]
    Marker {
        /// Name in the markers.
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
