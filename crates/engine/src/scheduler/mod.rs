//! The scheduler: which sessions are admitted, which run in the next pass, and whose pages are
//! evicted, prefetched or spilled for them.

pub(crate) mod admission;
pub(crate) mod cache_demotion;
pub(crate) mod commitment;
pub(crate) mod decision;
pub(crate) mod disk_work;
pub(crate) mod elastic;
pub(crate) mod eviction;
pub(crate) mod expiry;
pub(crate) mod fair_share;
mod frame_budget;
pub(crate) mod owner_shares;
pub(crate) mod ready;
mod rows;
pub(crate) mod selection;
#[cfg(test)]
mod simulation;
pub(crate) mod spill_policy;
#[cfg(test)]
mod tests;
pub(crate) mod waiting;

use std::{collections::BTreeSet, time::Instant};

use djinn_kv::Pager;
use djinn_types::SessionId;

use crate::session::{Session, output::Output, residency::SessionMemory, table::SessionTable};
use owner_shares::{ActiveShare, MANY_ROWS, OwnerShares};
use selection::{PassSelection, SelectionLimits};
use spill_policy::SpillPolicy;

/// Number of consecutive steps without a runnable session after which one of them ends.
const STUCK_STEPS: usize = 3;

/// Scheduler of an engine.
pub(crate) struct Scheduler {
    limits: SelectionLimits,
    pub spill: SpillPolicy,
    owners: OwnerShares,
    /// Seconds per row of a large pass; 0 until there was one.
    seconds_per_row: f64,
    /// Number of consecutive steps in which no session could run.
    stuck: usize,
    /// Whether only turns run that have begun, so that the model can leave the device.
    pub is_draining: bool,
}

impl Scheduler {
    /// Creates a scheduler without history.
    pub fn new(limits: SelectionLimits, spill: SpillPolicy) -> Self {
        Scheduler {
            limits,
            spill,
            owners: OwnerShares::default(),
            seconds_per_row: 0.0,
            stuck: 0,
            is_draining: false,
        }
    }

    /// Virtual time of an owner's first session in the order at the last pass.
    pub fn virtual_time(&self, owner: &str) -> u64 {
        self.owners.session_clock(owner)
    }

    /// Orders the sessions that have tokens to run, by the shares of their owners.
    fn order(&mut self, sessions: &mut SessionTable) {
        let open: BTreeSet<String> = sessions.iter().map(|s| s.owner.clone()).collect();
        let waits = |session: &&mut Session| session.is_ready() || session.is_queued();
        let active = sessions
            .iter_mut()
            .filter(waits)
            .map(|session| ActiveShare {
                is_ready: session.is_ready(),
                owner: &session.owner,
                fair_share: &mut session.fair_share,
            });
        self.owners.order(active, |owner| open.contains(owner));
    }

    /// Whether a session could run now.
    pub fn can_run(&self, sessions: &SessionTable, pager: &Pager) -> bool {
        match self.is_draining {
            true => sessions.iter().any(selection::runs_while_draining),
            false => admission::can_run(sessions, pager, &self.spill),
        }
    }

    /// Applies the time `now`: takes in pages from disk, ends sessions that have expired,
    /// prefetches sessions that are expected soon, and stops expecting late ones. Returns the
    /// outputs of sessions that ended.
    pub fn apply_time(&mut self, residency: &mut SessionMemory<'_>, now: Instant) -> Vec<Output> {
        let mut outputs = self.spill.finish_transfers(residency, false);
        self.spill.retry_disk(now);
        outputs.extend(expiry::expire(residency, now));
        outputs.extend(expiry::prefetch(residency, now));
        expiry::forget_late(residency, &self.spill, now);
        outputs
    }

    /// Starts transfers of pages that sessions need next. `running` are the members of the next pass.
    /// Returns the outputs of sessions whose pages could not be moved.
    pub fn start_transfers(
        &mut self,
        residency: &mut SessionMemory<'_>,
        running: &[(SessionId, usize)],
        now: Instant,
    ) -> Vec<Output> {
        self.spill.start_transfers(residency, running, now)
    }

    /// Copies cached pages to host memory before the selection of a pass, which may take their frames.
    pub fn demote_cached(&self, residency: &mut SessionMemory<'_>, now: Instant) {
        cache_demotion::demote(residency, &self.spill, now);
    }

    /// Admits queued sessions that KV memory has room for, unless the scheduler drains.
    pub fn admit(&mut self, sessions: &mut SessionTable, pager: &Pager) {
        if self.is_draining {
            return;
        }
        self.order(sessions);
        admission::admit(sessions, pager, &self.spill, &self.owners);
    }

    /// Selects the members of the next pass.
    pub fn select(&mut self, residency: &mut SessionMemory<'_>, now: Instant) -> PassSelection {
        self.order(residency.sessions);
        let runs = match self.is_draining {
            true => selection::runs_while_draining,
            false => Session::is_ready,
        };
        let selection = selection::select(
            residency,
            runs,
            &self.spill,
            &self.limits,
            &mut self.owners,
            self.seconds_per_row,
            now,
        );
        // A session whose pages need more room than there is at once evicts others step by step.
        if !selection.run.is_empty() || selection.has_evicted {
            self.stuck = 0;
        }
        selection
    }

    /// Waits, when no session runs, until a page arrives from disk; ends a session if the disk
    /// accepts no pages. Returns the outputs of sessions that ended.
    pub fn wait_for_pages(&mut self, residency: &mut SessionMemory<'_>) -> Vec<Output> {
        if residency.pager.disk_transfers_in_flight() > 0 {
            return self.spill.finish_transfers(residency, true);
        }
        // Pages that the disk already holds are evicted at once, which may resolve the next step.
        self.stuck += usize::from(residency.sessions.iter().any(Session::is_ready));
        match self.stuck < STUCK_STEPS {
            true => Vec::new(),
            false => self.spill.resolve_deadlock(residency).into_iter().collect(),
        }
    }

    /// Largest number of sessions in a pass.
    pub fn batch(&self) -> usize {
        self.limits.pass.sessions
    }

    /// Learns how many bytes of weights stream in each pass.
    pub fn note_streamed(&mut self, bytes: u64) {
        self.limits.streamed_bytes = bytes;
        self.limits.streams = bytes > 0;
    }

    /// Learns from the duration of a pass.
    pub fn note_pass(&mut self, rows: usize, seconds: f64) {
        if rows >= MANY_ROWS {
            self.seconds_per_row = seconds / rows as f64;
        }
    }
}
