//! Debugging of sessions that are paused at a hook: reading activations, resuming with edits,
//! and branching.

use std::sync::Arc;

use djinn_model::{Site, program::Buf};
use djinn_types::SessionId;

use super::{
    Probe,
    breakpoint::{BreakSpec, RunUntil},
    checkpoint::{Checkpoint, PausePlace, Paused},
    edit::{BoundEdit, EditSpec},
    part::Part,
    positions::Positions,
};
use crate::{
    error::{EngineError, LimitKind},
    session::{
        probe_reserve::ProbeReserve,
        state::{OwnerAction, SessionState},
    },
    session_ref::SessionRef,
    tensors::Tensor,
};

impl SessionRef<'_> {
    /// Returns the hook and tokens at which the session is paused.
    fn pause_point(&self) -> Result<Paused, EngineError> {
        self.get().check(OwnerAction::Debug)?;
        let at = self.get().paused();
        Ok(at.expect("a paused session has a place"))
    }

    /// Returns the checkpoint of the paused session.
    fn checkpoint(&self) -> Result<&Checkpoint, EngineError> {
        self.get().check(OwnerAction::Debug)?;
        let checkpoint = self.get().checkpoint();
        checkpoint.ok_or(EngineError::NotRecalled(self.id))
    }

    /// Returns the activation at the hook, `[position, …]`, after the edits before the pause.
    pub fn activation(&self) -> Result<Tensor, EngineError> {
        Ok(self.checkpoint()?.activation(&self.model.program.dims))
    }

    /// Returns some heads or elements of the activation at the hook, for some of the paused
    /// positions.
    pub fn activation_part(
        &self,
        part: &Part,
        positions: &Positions,
    ) -> Result<Tensor, EngineError> {
        let whole = self.activation()?;
        let at = self.pause_point()?;
        let (hook, prompt) = (at.site.to_string(), self.get().prompt());
        let columns = part.columns(at.site, &self.model.program.dims);
        let columns = columns.map_err(|reason| EngineError::Capture {
            hook: hook.clone(),
            reason,
        })?;
        let count = whole.shape[0];
        let width = whole.data.len() / count.max(1);
        // Behind the last block only the last of the paused rows have an activation.
        let first = at.position + at.rows - count;
        let selected = positions
            .intervals(first..first + count, prompt)
            .into_iter();
        let rows: Vec<usize> = selected.flatten().map(|at| at - first).collect();
        if rows.is_empty() {
            let last = first + count.saturating_sub(1);
            let reason = format!(
                "the activation covers positions {first} to {last}, and none of them is selected"
            );
            return Err(EngineError::Capture { hook, reason });
        }
        let of = |row: usize| {
            let columns = columns.iter().cloned();
            columns.flat_map(move |c| row * width + c.start..row * width + c.end)
        };
        let data: Vec<f32> = rows
            .iter()
            .flat_map(|&row| of(row))
            .map(|i| whole.data[i])
            .collect();
        let mut shape = whole.shape;
        let each = data.len() / rows.len();
        shape[0] = rows.len();
        shape[1] = match &shape[2..] {
            [d_head] => each / d_head,
            _ => each,
        };
        Ok(Tensor { shape, data })
    }

    /// Resumes the session from its hook after applying edits there, in the order given. Nothing
    /// before the hook is computed again. The edits apply to the paused tokens that they select.
    pub fn resume_with(&mut self, edits: &[EditSpec], until: RunUntil) -> Result<(), EngineError> {
        let at = self.pause_point()?;
        let edits = self.bind_here(&at, edits)?;
        let mut probe = self.get().probe.clone();
        for edit in &edits {
            probe.push_edit(at.site, edit.clone());
        }
        let reserve = self.pause_reserve(&probe, until)?;
        let session = self.residency.sessions.known_mut(self.id);
        self.durability.commit_probe(session, probe, true)?;
        session.reserve = reserve;
        session.shares = session.shares.min(session.first_probed());
        session.last_pause = session.state.place().map(|place| place.passed(at));
        self.make_ready()?;
        let route = self.get_mut().state.route_mut();
        let route = route.expect("a resumed session has a route");
        route.until = until;
        match &mut route.place {
            Some(PausePlace::Here(checkpoint)) => checkpoint.edits = edits,
            Some(PausePlace::Replay(rewind)) => rewind.stops = false,
            None => {}
        }
        Ok(())
    }

    /// Returns the host memory that the session can take with this probe, if it pauses besides
    /// at `until`, and refuses more than there is.
    fn pause_reserve(&self, probe: &Probe, until: RunUntil) -> Result<ProbeReserve, EngineError> {
        let session = self.get();
        // The turn may run any of its tokens again, and new ones.
        let bytes = self.checker.checkpoint_bytes(probe, until, session.context);
        let held = session.checkpoint().map_or(0, Checkpoint::bytes);
        let reserve = ProbeReserve {
            checkpoint: bytes.max(held),
            ..session.reserve
        };
        let sessions = &*self.residency.sessions;
        sessions.check_reserve(self.id, reserve.total())?;
        Ok(reserve)
    }

    /// Lets a restored session run to its hook again, to pause there with its activations. A
    /// session that has them stays as it is.
    pub fn recall(&mut self) -> Result<(), EngineError> {
        let session = self.get();
        session.check(OwnerAction::Debug)?;
        let settings = self.blueprint.settings();
        let Some(rewind) = session.rewind() else {
            return Ok(());
        };
        let (position, rows) = (rewind.to.position, rewind.to.rows);
        let lens_rows = session
            .probe
            .lens_rows(position..position + rows, session.prompt());
        LimitKind::LensRows.check(lens_rows, settings.probe_limits.lens_rows)?;
        // The tokens paused together, and can only do so again in one pass.
        LimitKind::PassRows.check(rows, settings.rows)?;
        let head_rows = session.head_rows(position..position + rows);
        LimitKind::HeadRows.check(head_rows, settings.logit_rows)?;
        self.make_ready()?;
        let route = self.get_mut().state.route_mut();
        let place = route.and_then(|route| route.place.as_mut());
        if let Some(PausePlace::Replay(rewind)) = place {
            rewind.stops = true;
        }
        Ok(())
    }

    /// Replaces the breakpoints of the session.
    pub fn set_breakpoints(&mut self, breaks: &[BreakSpec]) -> Result<(), EngineError> {
        let session = self.get();
        let probe = session.probe.breaking_at(&self.model.program, breaks)?;
        let probe = probe.resolved(session.prompt());
        let reserve = self.pause_reserve(&probe, RunUntil::Breakpoint)?;
        let session = self.residency.sessions.known_mut(self.id);
        self.durability.commit_probe(session, probe, false)?;
        session.reserve = reserve;
        Ok(())
    }

    /// Opens `count` sessions that continue from the hook of the paused session and share its
    /// pages. Opens all of them or none.
    pub fn branch(&mut self, count: usize) -> Result<Vec<SessionId>, EngineError> {
        self.get().check(OwnerAction::Debug)?;
        let mut branches = Vec::new();
        for _ in 0..count {
            match self.fork(None) {
                Ok(branch) => branches.push(branch),
                Err(error) => {
                    self.discard(branches);
                    return Err(error);
                }
            }
        }
        Ok(branches)
    }

    /// Opens a session that is paused at an earlier hook than this one, with the tokens from
    /// `position` on. `residual` is the residual at that hook, row by row; everything else that
    /// later operations read is in the pages.
    pub fn branch_back(
        &mut self,
        site: Site,
        position: usize,
        residual: &[f32],
    ) -> Result<SessionId, EngineError> {
        let checkpoint = self.checkpoint_at(site, position, residual)?;
        let branch = self.fork(None)?;
        let session = self.residency.sessions.known_mut(branch);
        session.computed = position;
        if let SessionState::Paused { place, .. } = &mut session.state {
            *place = PausePlace::Here(checkpoint);
        }
        // The log must have the new pause.
        let probe = session.probe.clone();
        self.durability.commit_probe(session, probe, false)?;
        Ok(branch)
    }

    /// Returns the checkpoint that the session would have at an earlier hook.
    fn checkpoint_at(
        &self,
        site: Site,
        position: usize,
        residual: &[f32],
    ) -> Result<Checkpoint, EngineError> {
        let refuse = |reason: String| {
            let hook = site.to_string();
            Err(EngineError::Edit { hook, reason })
        };
        let here = self.checkpoint()?;
        let mut stops = self.blueprint.stops.values();
        let Some(stop) = stops.find(|stop| stop.site == site) else {
            return Err(EngineError::NoStop(site.to_string()));
        };
        let computed = self.get().computed;
        let (first, end) = (computed, computed + here.rows);
        if stop.next > here.stop.next || !(first..end).contains(&position) {
            let (at, last) = (here.stop.site, end - 1);
            return refuse(format!(
                "the session is paused at '{at}' with positions {first} to {last}; branch at an \
                 earlier hook and one of these positions"
            ));
        }
        if stop.live != [Buf::Resid] {
            return refuse(
                "later operations read more than the residual there; branch at a hook between \
                 blocks"
                    .to_owned(),
            );
        }
        let (rows, width) = (end - position, self.model.program.dims.d_model);
        if residual.len() != rows * width {
            let found = residual.len();
            return refuse(format!(
                "the residual has {found} numbers, but {rows} rows of {width} are needed"
            ));
        }
        Ok(Checkpoint {
            stop: Arc::clone(stop),
            rows,
            live: Arc::new(vec![(Buf::Resid, residual.to_vec())]),
            edits: Vec::new(),
        })
    }

    /// Binds edits to the hook at which the session is paused.
    fn bind_here(&self, at: &Paused, edits: &[EditSpec]) -> Result<Vec<BoundEdit>, EngineError> {
        let session = self.get();
        let here = at.position..at.position + at.rows;
        let mut bound = Vec::with_capacity(edits.len());
        for spec in edits {
            for (site, edit) in spec.bind(&self.model.program)? {
                check_here(at, site)?;
                bound.push(BoundEdit {
                    positions: edit.positions.within(here.clone(), session.prompt()),
                    ..edit
                });
            }
        }
        let mut probe = Probe::default();
        for edit in &bound {
            probe.push_edit(at.site, edit.clone());
        }
        probe.check(session.prompt(), session.tokens.len())?;
        let limits = &self.blueprint.settings().probe_limits;
        limits.check(&probe, session.tokens.len())?;
        Ok(bound)
    }
}

/// Refuses an edit of another hook than the one at which a session is paused.
fn check_here(at: &Paused, site: Site) -> Result<(), EngineError> {
    match site == at.site {
        true => Ok(()),
        false => Err(EngineError::Edit {
            hook: site.to_string(),
            reason: format!("the session is paused at '{}'; edit that hook", at.site),
        }),
    }
}
