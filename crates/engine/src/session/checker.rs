//! Checks of requests, which may run on any thread.

use std::{collections::BTreeMap, ops::Range, sync::Arc};

use djinn_kv::{OutOfPages, PageTable};
use djinn_model::{Model, Site, program::Program};

use super::{probe_reserve::ProbeReserve, request::Request};
use crate::{
    error::{EngineError, LimitKind},
    probe::{Probe, breakpoint::RunUntil},
    scheduler::commitment::{PageCommitment, PageRoom},
    settings::Settings,
};

/// Checker of requests for one engine. A checker is cheap to clone and may be used on any thread,
/// so that the engine thread does not read long prompts and probes:
/// [`Engine::open_checked`](crate::Engine::open_checked) only has constant work left.
#[derive(Clone, Debug)]
pub struct RequestChecker {
    facts: Arc<CheckFacts>,
}

/// Properties of an engine that the checks need.
#[derive(Debug)]
struct CheckFacts {
    program: Program,
    settings: Settings,
    has_tokenizer: bool,
    /// Bytes that a checkpoint at each hook takes for one row.
    row_bytes: BTreeMap<Site, u64>,
}

/// A request that passed all checks of one engine that do not depend on its other sessions.
#[derive(Clone, Debug)]
pub struct CheckedRequest {
    pub(crate) request: Request,
    /// Maximum number of pages that the session may need.
    pub(crate) pages_most: usize,
    /// Number of leading tokens whose pages others may share.
    pub(crate) shares: usize,
    pub(crate) reserve: ProbeReserve,
    facts: Arc<CheckFacts>,
}

impl CheckedRequest {
    /// Returns the request with another owner.
    pub fn with_owner(mut self, owner: &str) -> Self {
        owner.clone_into(&mut self.request.owner);
        self
    }

    /// Returns the owner.
    pub fn owner(&self) -> &str {
        &self.request.owner
    }

    /// Maximum number of KV pages that the session may need.
    pub fn pages(&self) -> usize {
        self.pages_most
    }

    /// Bytes of host memory that the captures of the first turn can take.
    pub fn captured_bytes(&self) -> u64 {
        self.reserve.captures
    }

    /// Bytes of host memory that the captures and the checkpoint of the first turn can take.
    pub fn probe_bytes(&self) -> u64 {
        self.reserve.total()
    }
}

impl RequestChecker {
    pub(crate) fn new(model: &Model, settings: &Settings) -> Self {
        let program = &model.program;
        let stops = program.stops().into_iter().map(|stop| {
            let widths = stop.live.iter().map(|&buf| program.width(buf) as u64);
            (stop.site, widths.sum::<u64>().saturating_mul(4))
        });
        RequestChecker {
            facts: Arc::new(CheckFacts {
                row_bytes: stops.collect(),
                program: program.clone(),
                settings: settings.clone(),
                has_tokenizer: model.tokenizer.is_some(),
            }),
        }
    }

    /// Returns the program of the model, for [`Probe::new`].
    pub fn program(&self) -> &Program {
        &self.facts.program
    }

    /// Returns the settings of the engine.
    pub fn settings(&self) -> &Settings {
        &self.facts.settings
    }

    /// Checks a request against the model and the limits of the engine.
    pub fn check(&self, request: Request) -> Result<CheckedRequest, EngineError> {
        request.check_probe(&self.facts.program)?;
        self.check_restored(request)
    }

    /// Checks the request of a saved session, whose edits were checked when it was opened.
    pub(crate) fn check_restored(&self, request: Request) -> Result<CheckedRequest, EngineError> {
        let CheckFacts {
            program, settings, ..
        } = &*self.facts;
        request.check(program, self.facts.has_tokenizer)?;
        let (prompt, positions) = (request.tokens.len(), request.positions(program));
        settings.probe_limits.check(&request.probe, positions)?;
        LimitKind::Context.check(positions, settings.context)?;
        let pages_most = self.pages_most(&request, positions)?;
        let first = request.probe.first(settings.context, prompt);
        let probe = request.probe.pinned(prompt, positions).resolved(prompt);
        Ok(CheckedRequest {
            reserve: self.reserve(&probe, 0..positions, prompt),
            pages_most,
            shares: first.unwrap_or(usize::MAX),
            request: Request { probe, ..request },
            facts: Arc::clone(&self.facts),
        })
    }

    /// Returns the maximum number of pages of a session. A kept session reserves the full context.
    fn pages_most(&self, request: &Request, positions: usize) -> Result<usize, EngineError> {
        let settings = &self.facts.settings;
        let most = match request.keep {
            true => settings.context,
            false => positions,
        };
        let pages = PageTable::new(settings.page_tokens).missing(most);
        let total = settings.pages;
        let elsewhere = settings.host_pages.saturating_add(settings.disk_pages);
        let elsewhere = elsewhere.saturating_sub(PageRoom::host_reserve(settings));
        let room = PageRoom::new(settings, elsewhere);
        if PageCommitment::new(room, 0).and(pages, pages).fits() {
            return Ok(pages);
        }
        Err(match settings.window_pages {
            0 => EngineError::from(OutOfPages {
                wanted: pages,
                free: total,
                total,
            }),
            window => EngineError::SessionTooLarge {
                pages,
                device: total,
                window,
                host: settings.host_pages,
            },
        })
    }

    /// Whether a request was checked for this engine.
    pub(crate) fn has_checked(&self, checked: &CheckedRequest) -> bool {
        Arc::ptr_eq(&self.facts, &checked.facts)
    }

    /// Returns the host memory that captures and a checkpoint of a turn can take, which runs the
    /// positions `turn`.
    pub(crate) fn reserve(&self, probe: &Probe, turn: Range<usize>, prompt: usize) -> ProbeReserve {
        let rows = turn.len();
        ProbeReserve {
            captures: probe.captured_bytes(&self.facts.program, turn, prompt),
            checkpoint: self.checkpoint_bytes(probe, RunUntil::Breakpoint, rows),
        }
    }

    /// Returns the bytes of the largest checkpoint at which `rows` tokens of a session may pause.
    pub(crate) fn checkpoint_bytes(&self, probe: &Probe, until: RunUntil, rows: usize) -> u64 {
        let rows = rows.min(self.facts.settings.rows) as u64;
        let pauses = |site: Site| until.is(site) || !probe.breaks(site).is_empty();
        let each = self.facts.row_bytes.iter();
        let each = each.filter(|(site, _)| pauses(**site));
        let most = each.map(|(_, bytes)| *bytes).max().unwrap_or(0);
        rows.saturating_mul(most)
    }
}

#[cfg(test)]
mod tests {
    use super::{CheckedRequest, RequestChecker};

    #[test]
    fn checks_may_run_on_any_thread() {
        fn is_shared<T: Send + Sync + Clone>() {}
        is_shared::<RequestChecker>();
        is_shared::<CheckedRequest>();
    }
}
