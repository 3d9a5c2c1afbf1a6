//! Result of a benchmark, ready to print.

use serde_json::Value;

/// Result of a benchmark, as text and as JSON.
pub struct BenchReport {
    /// Text for a terminal, with a final newline.
    pub text: String,
    /// Numbers for programs: those of the text, and more.
    pub json: Value,
    /// Whether everything that the benchmark checks held.
    pub passed: bool,
    /// Line that compares a rate with a threshold and is printed last, without a newline.
    pub verdict: Option<String>,
}

impl BenchReport {
    /// Report of a benchmark that checks nothing.
    pub(crate) fn new(text: String, json: Value) -> Self {
        BenchReport {
            text,
            json,
            passed: true,
            verdict: None,
        }
    }
}
