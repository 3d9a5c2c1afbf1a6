//! Progress reports of a download.

use std::time::Duration;

use crate::HubError;

/// Receiver of progress reports. Several files are downloaded at once, so every call names its file
/// and may come from any thread.
pub trait Progress: Sync {
    /// Reports that the download of a file starts, with `already` bytes from an earlier download.
    /// `total` is `None` if the hub does not list the size. A second call for the same file means
    /// that the download starts over, because the server does not continue it.
    fn start(&self, file: &str, total: Option<u64>, already: u64);

    /// Reports that more bytes of a file arrived.
    fn advance(&self, file: &str, bytes: u64);

    /// Reports that a file is complete and verified.
    fn finish(&self, file: &str);

    /// Reports a transient problem. The next attempt starts after `wait`.
    fn retry(&self, file: &str, problem: &HubError, wait: Duration) {
        let _ = (file, problem, wait);
    }
}

/// Receiver that ignores all reports.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoProgress;

impl Progress for NoProgress {
    fn start(&self, _file: &str, _total: Option<u64>, _already: u64) {}
    fn advance(&self, _file: &str, _bytes: u64) {}
    fn finish(&self, _file: &str) {}
}
