//! Sessions that stopped at a hook: what is there, and how they go on.

use std::sync::Arc;

use djinn_model::{Site, hook, program::Buf};

use crate::{
    BreakSpec, EditSpec, Engine, EngineError, Part, Paused, Positions, Probe, RunUntil, SavedStop,
    SessionId, Tensor,
    probe::checkpoint::{Checkpoint, Rewind},
    probe::edit::Edit,
    session::state::Step,
};

impl Engine {
    /// Where a session stands, if it stopped at a hook.
    pub fn paused(&self, id: SessionId) -> Option<Paused> {
        let session = self.sessions.get(&id)?;
        session.paused().filter(|_| session.state.is_paused())
    }

    /// What is at the hook at which a session stopped: `[position, …]`, changed as it was
    /// asked to be on the way there.
    pub fn activation(&self, id: SessionId) -> Result<Tensor, EngineError> {
        self.can(id, Step::GoOn)?;
        let checkpoint = self.sessions[&id].checkpoint.as_ref();
        let checkpoint = checkpoint.ok_or(EngineError::NotThere(id))?;
        Ok(checkpoint.activation(&self.model.program.dims))
    }

    /// Its shape, where a session stopped at one and it is at hand.
    pub fn activation_shape(&self, id: SessionId) -> Option<Vec<usize>> {
        let checkpoint = self.sessions.get(&id)?.checkpoint.as_ref()?;
        Some(checkpoint.shape(&self.model.program.dims))
    }

    /// The same of some heads or elements, and of some of the positions that stopped.
    pub fn activation_part(
        &self,
        id: SessionId,
        part: &Part,
        positions: &Positions,
    ) -> Result<Tensor, EngineError> {
        let whole = self.activation(id)?;
        let at = self.paused(id).expect("it stopped somewhere");
        let dims = &self.model.program.dims;
        let (hook, prompt) = (at.site.to_string(), self.sessions[&id].prompt());
        let columns = part.columns(at.site, dims);
        let columns = columns.map_err(|reason| EngineError::Capture {
            hook: hook.clone(),
            reason,
        })?;
        let count = whole.shape[0];
        let width = whole.data.len() / count.max(1);
        // Behind the last block only some of the rows that stopped are left: the last ones.
        let first = at.position + at.rows - count;
        let rows: Vec<usize> = (0..count)
            .filter(|row| positions.contains(first + row, prompt))
            .collect();
        if rows.is_empty() {
            let last = first + count.saturating_sub(1);
            let reason = format!("positions {first} to {last} are there, and none is selected");
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

    /// Lets a session go on from where it stopped, with what is there changed first, in the
    /// order given; nothing before that is computed again. The changes are for the tokens
    /// that stopped, all of them unless they say which.
    pub fn go_on_from(
        &mut self,
        id: SessionId,
        edits: &[EditSpec],
        until: RunUntil,
    ) -> Result<(), EngineError> {
        self.can(id, Step::GoOn)?;
        let at = self.sessions[&id].paused().expect("it stopped somewhere");
        let edits = self.bind_here(id, &at, edits)?;
        let mut next = self.sessions[&id].probe.clone();
        for edit in &edits {
            next.push_edit(at.site, edit.clone());
        }
        self.commit_changed(id, next, true)?;
        let session = self.session(id);
        session.shares = session.shares.min(session.first_look());
        session.until = until;
        session.past = Some(at);
        if let Some(checkpoint) = &mut session.checkpoint {
            checkpoint.edits = edits;
        }
        if let Some(rewind) = &mut session.rewind {
            rewind.stops = false;
        }
        self.go_on(id)
    }

    /// Lets a session that was taken back from a folder run to where it had stopped, to stop
    /// there again.
    pub fn recall(&mut self, id: SessionId) -> Result<(), EngineError> {
        self.can(id, Step::GoOn)?;
        let settings = &self.blueprint.settings;
        let (limit, lens) = (settings.rows, settings.probe_limits.lens_rows);
        let session = &self.sessions[&id];
        if let Some(Rewind { to, .. }) = &session.rewind {
            let rows = to.position..to.position + to.rows;
            let asked = session.probe.lens_rows(rows, session.prompt());
            if asked > lens {
                let (what, limit) = ("rows under the lens", lens);
                return Err(EngineError::Limit { what, asked, limit });
            }
        }
        match &mut self.session(id).rewind {
            // They stopped together, and can only do so again in one pass.
            Some(rewind) if rewind.to.rows > limit => {
                let (what, asked) = ("rows of a pass", rewind.to.rows);
                return Err(EngineError::Limit { what, asked, limit });
            }
            Some(rewind) => rewind.stops = true,
            None => return Ok(()),
        }
        self.go_on(id)
    }

    /// Sets the breakpoints of a session that does not run, in place of those it had.
    pub fn set_breaks(&mut self, id: SessionId, breaks: &[BreakSpec]) -> Result<(), EngineError> {
        let session = self.sessions.get(&id).ok_or(EngineError::NoSession(id))?;
        let probe = session.probe.breaking_at(&self.model.program, breaks)?;
        let context = self.blueprint.settings.context;
        let (asked, limit) = (
            self.head_rows(&probe, context, session.prompt()),
            self.blueprint.settings.logit_rows,
        );
        if asked > limit {
            let what = "rows through the head";
            return Err(EngineError::Limit { what, asked, limit });
        }
        self.commit_changed(id, probe, false)
    }

    /// The breakpoints of a session.
    pub fn breaks(&self, id: SessionId) -> Option<Vec<BreakSpec>> {
        Some(self.sessions.get(&id)?.probe.break_specs())
    }

    /// So many sessions that go on from where one stopped, beside it: they share all that
    /// lies before. Either all of them are there, or none.
    pub fn branch(&mut self, id: SessionId, count: usize) -> Result<Vec<SessionId>, EngineError> {
        self.can(id, Step::GoOn)?;
        let mut branches = Vec::new();
        for _ in 0..count {
            match self.fork(id, None) {
                Ok(branch) => branches.push(branch),
                Err(error) => {
                    for branch in branches {
                        self.close(branch);
                    }
                    return Err(error);
                }
            }
        }
        Ok(branches)
    }

    /// Another session that stands where this one was on its way here: at a hook before the one
    /// it stands at, with its rows from a position on. `residual` is what was there, row by row;
    /// all else that matters is in the pages. It goes on as any that stopped there would.
    pub fn branch_back(
        &mut self,
        id: SessionId,
        site: Site,
        position: usize,
        residual: &[f32],
    ) -> Result<SessionId, EngineError> {
        self.can(id, Step::GoOn)?;
        let checkpoint = self.checkpoint_at(id, site, position, residual)?;
        let branch = self.fork(id, None)?;
        let session = self.session(branch);
        session.computed = position;
        session.checkpoint = Some(checkpoint);
        // Where it stands is written down anew.
        let probe = session.probe.clone();
        self.commit_changed(branch, probe, false)?;
        Ok(branch)
    }

    /// What a session would have needed to go on from a hook before the one it stands at.
    fn checkpoint_at(
        &self,
        id: SessionId,
        site: Site,
        position: usize,
        residual: &[f32],
    ) -> Result<Checkpoint, EngineError> {
        let refuse = |reason: String| {
            let hook = site.to_string();
            Err(EngineError::Edit { hook, reason })
        };
        let session = &self.sessions[&id];
        let here = session
            .checkpoint
            .as_ref()
            .ok_or(EngineError::NotThere(id))?;
        let mut stops = self.blueprint.stops.values();
        let Some(stop) = stops.find(|stop| stop.site == site) else {
            return Err(EngineError::NoStop(site.to_string()));
        };
        let (first, end) = (session.computed, session.computed + here.rows);
        if stop.next > here.stop.next || !(first..end).contains(&position) {
            let (at, last) = (here.stop.site, end - 1);
            return refuse(format!(
                "the session stands at '{at}', positions {first} to {last}"
            ));
        }
        if stop.live != [Buf::Resid] {
            return refuse("more than the residual matters there".to_owned());
        }
        let (rows, width) = (end - position, self.model.program.dims.d_model);
        if residual.len() != rows * width {
            let found = residual.len();
            return refuse(format!("{found} numbers for {rows} rows of {width}"));
        }
        Ok(Checkpoint {
            stop: Arc::clone(stop),
            rows,
            live: Arc::new(vec![(Buf::Resid, residual.to_vec())]),
            edits: Vec::new(),
        })
    }

    /// A session came to a breakpoint in the pass that just ended.
    pub(crate) fn pause(&mut self, id: SessionId) {
        let session = self.session(id);
        session.take(Step::Stop).expect("it ran in this pass");
        session.rewind = None;
        session.until = RunUntil::Breakpoint;
        session.used = std::time::Instant::now();
    }

    /// How a session comes to where it was written down.
    pub(crate) fn rewind_to(&self, at: &SavedStop) -> Result<Rewind, EngineError> {
        let SavedStop {
            hook,
            position,
            rows,
        } = at;
        hook::find(&self.model.program, hook)?;
        let mut stops = self.blueprint.stops.values();
        let stop = stops.find(|stop| stop.site.to_string() == *hook);
        let stop = stop.ok_or_else(|| EngineError::NoStop(hook.clone()))?;
        let to = Paused {
            site: stop.site,
            position: *position,
            rows: *rows,
        };
        Ok(Rewind {
            to,
            next: stop.next,
            stops: false,
        })
    }

    /// Edits of what is at the hook where a session stands.
    fn bind_here(
        &self,
        id: SessionId,
        at: &Paused,
        edits: &[EditSpec],
    ) -> Result<Vec<Edit>, EngineError> {
        let session = &self.sessions[&id];
        let here = at.position..at.position + at.rows;
        let mut bound = Vec::with_capacity(edits.len());
        for spec in edits {
            for (site, edit) in spec.bind(&self.model.program)? {
                check_here(at, site)?;
                bound.push(Edit {
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
        let probe_limits = &self.blueprint.settings.probe_limits;
        probe_limits.check(&probe, session.tokens.len())?;
        Ok(bound)
    }
}

/// Refuses an edit of another hook than the one where a session stands.
fn check_here(at: &Paused, site: Site) -> Result<(), EngineError> {
    match site == at.site {
        true => Ok(()),
        false => Err(EngineError::Edit {
            hook: site.to_string(),
            reason: format!("the session stands at '{}'", at.site),
        }),
    }
}
