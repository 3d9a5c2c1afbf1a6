//! Settings of an engine, fixed before memory is allocated.

use djinn_model::{Model, program::Program};

use crate::{
    error::{EngineError, LimitKind},
    probe::probe_limits::ProbeLimits,
    session::request::Request,
};

/// Capacity that an engine is laid out for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Maximum number of rows of a pass: tokens of prompts, plus one for each generating
    /// session.
    pub rows: usize,
    /// Maximum number of sessions in a pass.
    pub sessions: usize,
    /// Maximum number of open sessions; sessions that do not fit in one pass take turns.
    pub open: usize,
    /// Maximum number of positions of a session.
    pub context: usize,
    /// Number of KV pages on the device.
    pub pages: usize,
    /// Number of pages of a pass that stream through the KV window because they are not on the
    /// device; 0 without a window. The keys and values of a session may then exceed the device.
    pub window_pages: usize,
    /// Number of KV pages in host memory, for sessions that do not run now.
    pub host_pages: usize,
    /// Number of KV pages on disk, for pages that host memory has no room for.
    pub disk_pages: usize,
    /// Number of tokens of a KV page.
    pub page_tokens: usize,
    /// Maximum number of rows through the head in a pass, without the logit lens.
    pub logit_rows: usize,
    /// Memory for captures and edits.
    pub probe_limits: ProbeLimits,
}

impl Settings {
    /// Default number of rows of a pass.
    pub const ROWS: usize = 512;
    /// Default number of tokens of a KV page: small enough to waste little memory, large enough
    /// that copies of pages are fast.
    pub const PAGE_TOKENS: usize = 16;
    /// Maximum number of rows of a pass whose logits are all needed: a row of logits is as wide as
    /// the vocabulary.
    pub(crate) const LOGIT_ROWS: usize = 128;

    /// Returns the settings for running these requests together in passes of at most `rows` rows.
    pub fn for_requests(
        model: &Model,
        requests: &[Request],
        rows: usize,
    ) -> Result<Self, EngineError> {
        for request in requests {
            request.check(&model.program, model.tokenizer.is_some())?;
            request.check_probe(&model.program)?;
        }
        let program = &model.program;
        let sessions = requests.len();
        let lengths = || requests.iter().map(|r| r.positions(program));
        let prompts: usize = requests.iter().map(|r| r.tokens.len()).sum();
        let head = requests.iter().any(|r| r.probe.looks_in_head());
        let rows = if head {
            rows.min(Self::LOGIT_ROWS)
        } else {
            rows
        };
        let rows = rows.max(sessions).min(prompts.max(sessions)).max(1);
        let context = lengths().max().unwrap_or(0);
        Ok(Settings {
            rows,
            sessions,
            open: sessions,
            context,
            window_pages: 0,
            host_pages: 0,
            disk_pages: 0,
            pages: lengths().map(|n| n.div_ceil(Self::PAGE_TOKENS)).sum(),
            page_tokens: Self::PAGE_TOKENS,
            logit_rows: if head { rows } else { sessions.max(1) },
            probe_limits: ProbeLimits::of(requests, context),
        })
    }

    /// Returns the settings for any `sessions` sessions of up to `context` positions.
    pub fn for_sessions(
        program: &Program,
        sessions: usize,
        context: usize,
        rows: usize,
    ) -> Result<Self, EngineError> {
        LimitKind::ModelContext.check(context, program.dims.context)?;
        Ok(Settings {
            rows: rows.min(sessions.saturating_mul(context)).max(sessions),
            sessions,
            open: sessions,
            context,
            window_pages: 0,
            host_pages: 0,
            disk_pages: 0,
            pages: sessions.saturating_mul(context.div_ceil(Self::PAGE_TOKENS)),
            page_tokens: Self::PAGE_TOKENS,
            logit_rows: sessions,
            probe_limits: ProbeLimits::default(),
        })
    }

    /// Returns the number of pages of the longest session.
    pub(crate) fn table_pages(&self) -> usize {
        self.context.div_ceil(self.page_tokens).max(1)
    }
}
