//! Limits, all set before anything is allocated.

use djinn_model::{Model, program::Program};

use crate::{
    error::{EngineError, LimitKind},
    probe::probe_limits::ProbeLimits,
    session::request::Request,
};

/// What an engine is laid out for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Rows of one pass at most: tokens of a prompt run together, plus one for each
    /// session that generates.
    pub rows: usize,
    /// Sessions of one pass at most.
    pub sessions: usize,
    /// Sessions open at once; those that a pass has no room for take turns.
    pub open: usize,
    /// Positions of the longest session.
    pub context: usize,
    /// KV pages where passes run.
    pub pages: usize,
    /// KV pages in host memory, where sessions are that wait or whose turn it is not.
    pub host_pages: usize,
    /// KV pages on disk, where those go that find no room in host memory.
    pub disk_pages: usize,
    /// Tokens of a page.
    pub page_tokens: usize,
    /// Rows that go through the head together, beside those of the lens.
    pub logit_rows: usize,
    /// Room for what is read and changed on the way.
    pub probe_limits: ProbeLimits,
}

impl Settings {
    /// Rows a pass runs unless told otherwise.
    pub const ROWS: usize = 512;
    /// Tokens of a page: small enough to waste little, large enough that a page is
    /// megabytes for the models that page.
    pub const PAGE_TOKENS: usize = 16;
    /// Rows of a pass at most when the logits of all of them are wanted: those are as
    /// wide as the vocabulary, and a pass goes through the head once.
    const LOGIT_ROWS: usize = 128;

    /// What these requests need, run together in passes of at most `rows` rows.
    pub fn for_requests(
        model: &Model,
        requests: &[Request],
        rows: usize,
    ) -> Result<Self, EngineError> {
        for request in requests {
            request.check(model)?;
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
            host_pages: 0,
            disk_pages: 0,
            pages: lengths().map(|n| n.div_ceil(Self::PAGE_TOKENS)).sum(),
            page_tokens: Self::PAGE_TOKENS,
            logit_rows: if head { rows } else { sessions.max(1) },
            probe_limits: ProbeLimits::of(requests, context),
        })
    }

    /// What so many sessions of so many positions need, whatever they will ask.
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
            host_pages: 0,
            disk_pages: 0,
            pages: sessions.saturating_mul(context.div_ceil(Self::PAGE_TOKENS)),
            page_tokens: Self::PAGE_TOKENS,
            logit_rows: sessions,
            probe_limits: ProbeLimits::default(),
        })
    }

    /// Pages of the longest session.
    pub(crate) fn table_pages(&self) -> usize {
        self.context.div_ceil(self.page_tokens).max(1)
    }
}
