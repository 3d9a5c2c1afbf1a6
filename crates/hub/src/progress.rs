//! What a download tells whoever watches it.

use std::time::Duration;

use crate::HubError;

/// A watcher of a download. Several files travel at once, so every call names its file and may come
/// from any thread.
pub trait Progress: Sync {
    /// A file begins, with `already` bytes of it here from an earlier try. `total` is unknown where
    /// the hub lists no sizes. Comes again for a file that the server makes start over.
    fn start(&self, file: &str, total: Option<u64>, already: u64);

    /// More bytes of a file arrived.
    fn advance(&self, file: &str, bytes: u64);

    /// A file is whole, verified and in its place.
    fn finish(&self, file: &str);

    /// Something passing went wrong; it is tried again after `wait`.
    fn retry(&self, file: &str, problem: &HubError, wait: Duration) {
        let _ = (file, problem, wait);
    }
}

/// Nobody watches.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Progress for Silent {
    fn start(&self, _file: &str, _total: Option<u64>, _already: u64) {}
    fn advance(&self, _file: &str, _bytes: u64) {}
    fn finish(&self, _file: &str) {}
}
