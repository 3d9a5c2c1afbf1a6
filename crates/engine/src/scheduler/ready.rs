//! Sessions and limits as the pass decision sees them.

use djinn_kv::PageTable;

use super::fair_share::FairShare;

/// A session with tokens to run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadySession<'a> {
    pub fair_share: FairShare,
    pub table: &'a PageTable,
    /// Number of tokens that have run.
    pub computed: usize,
    /// Number of tokens that run next.
    pub pending: usize,
    /// Whether all pending tokens run in one pass, or none of them.
    pub whole: bool,
    /// Number of logit-lens rows that the pending tokens need.
    pub lens_rows: usize,
    /// Number of rows of the pending tokens that pass through the head.
    pub head_rows: usize,
}

/// Limits of one pass.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchLimits {
    pub sessions: usize,
    pub rows: usize,
    pub lens_rows: usize,
    /// Number of pages that may stream through the KV window.
    pub window: usize,
    /// Rows through the head, without the logit lens.
    pub head_rows: usize,
}
