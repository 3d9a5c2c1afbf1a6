//! An engine of this process is debugged.

use djinn_engine::{
    BreakSpec, EditSpec, Engine, Output, Paused, Positions, Probe, Request, RunUntil, SessionId,
    Tensor,
};
use djinn_model::{Site, hook};

use super::target::{Goal, Heard, Listed, Place, Target};
use crate::{
    commands::{lens, run_out},
    failure::Failure,
};

/// An engine, and the session it is debugged with.
pub struct Local {
    engine: Engine,
    first: SessionId,
}

impl Local {
    /// Opens the session; nothing has run yet.
    pub fn new(mut engine: Engine, request: Request) -> Result<Self, Failure> {
        let first = engine.open(request)?;
        // It runs when it is told to, and not beside what is looked at before.
        engine.any_session(first)?.wait(None)?;
        Ok(Local { engine, first })
    }

    fn sites(&self, pattern: &str) -> Result<Vec<Site>, Failure> {
        let program = &self.engine.model().program;
        let mut found = hook::find(program, pattern)?;
        let stops = program.stops();
        found.retain(|site| stops.iter().any(|stop| stop.site == *site));
        Ok(found)
    }

    fn until(&self, goal: &Goal) -> Result<RunUntil, Failure> {
        Ok(match goal {
            Goal::Breakpoint => RunUntil::Breakpoint,
            Goal::NextHook => RunUntil::Hook,
            Goal::NextBlock => RunUntil::Block,
            Goal::Hook(name) => match self.sites(name)?[..] {
                [site] => RunUntil::Site(site),
                _ => return Err(Failure::Message(format!("'{name}' is not one hook"))),
            },
        })
    }

    /// Runs until nobody can, and tells what became of one.
    fn run_on(&mut self, id: SessionId) -> Result<Vec<Heard>, Failure> {
        let mut heard = Vec::new();
        while !self.engine.is_idle() {
            for output in self.engine.step()? {
                if output.session == id {
                    heard.extend(self.hear(output)?);
                }
            }
        }
        Ok(heard)
    }

    fn hear(&self, output: Output) -> Result<Vec<Heard>, Failure> {
        if let Some(failure) = output.failure {
            return Err(Failure::Message(failure));
        }
        let token = output.token.map(Heard::Token);
        let stopped = output.paused;
        let stopped = stopped.map(|at| Heard::Stopped(self.place_of(output.session, &at)));
        let over = output.finish.map(|finish| Heard::Over(finish.to_string()));
        Ok([token, stopped, over].into_iter().flatten().collect())
    }

    fn place_of(&self, id: SessionId, at: &Paused) -> Place {
        let shape = self
            .engine
            .view(id)
            .and_then(|session| session.activation_shape())
            .unwrap_or_default();
        Place {
            hook: at.site.to_string(),
            position: at.position,
            rows: at.rows,
            shape,
        }
    }
}

impl Target for Local {
    fn first(&self) -> u64 {
        self.first.0
    }

    fn hooks(&mut self) -> Result<Vec<String>, Failure> {
        let hooks = self.engine.model().program.hooks();
        Ok(hooks.iter().map(ToString::to_string).collect())
    }

    fn stops(&mut self, pattern: &str) -> Result<Vec<String>, Failure> {
        let sites = self.sites(pattern)?;
        Ok(sites.iter().map(ToString::to_string).collect())
    }

    fn set_breaks(&mut self, id: u64, breaks: &[BreakSpec]) -> Result<(), Failure> {
        Ok(self
            .engine
            .any_session(SessionId(id))?
            .set_breakpoints(breaks)?)
    }

    fn start(
        &mut self,
        id: u64,
        breaks: &[BreakSpec],
    ) -> Result<Option<(u64, Vec<Heard>)>, Failure> {
        if self
            .engine
            .any_session(SessionId(id))
            .and_then(|mut session| session.resume())
            .is_err()
        {
            return Ok(None);
        }
        self.engine
            .any_session(SessionId(id))?
            .set_breakpoints(breaks)?;
        Ok(Some((id, self.run_on(SessionId(id))?)))
    }

    fn go(&mut self, id: u64, edits: &[EditSpec], goal: &Goal) -> Result<Vec<Heard>, Failure> {
        let until = self.until(goal)?;
        self.engine
            .any_session(SessionId(id))?
            .resume_with(edits, until)?;
        self.run_on(SessionId(id))
    }

    fn check_edits(&mut self, id: u64, edits: &[EditSpec]) -> Result<(), Failure> {
        // Tried on another that stands there.
        let tried = self.engine.any_session(SessionId(id))?.branch(1)?[0];
        let fits = self
            .engine
            .any_session(tried)
            .and_then(|mut session| session.resume_with(edits, RunUntil::Hook));
        self.engine.close(tried);
        Ok(fits?)
    }

    fn place(&mut self, id: u64) -> Result<Option<Place>, Failure> {
        let at = self
            .engine
            .view(SessionId(id))
            .and_then(|session| session.paused());
        Ok(at.map(|at| self.place_of(SessionId(id), &at)))
    }

    fn activation(&mut self, id: u64) -> Result<Tensor, Failure> {
        Ok(self.engine.any_session(SessionId(id))?.activation()?)
    }

    fn branch(&mut self, id: u64, count: usize) -> Result<Vec<u64>, Failure> {
        let branches = self.engine.any_session(SessionId(id))?.branch(count)?;
        Ok(branches.into_iter().map(|id| id.0).collect())
    }

    fn close(&mut self, id: u64) {
        self.engine.close(SessionId(id));
    }

    fn list(&mut self) -> Result<Vec<Listed>, Failure> {
        let told = |info: djinn_engine::SessionInfo| Listed {
            id: info.id.0,
            state: info.status.name().to_owned(),
            at: self
                .engine
                .view(info.id)
                .and_then(|session| session.paused())
                .map_or(String::new(), |at| at.site.to_string()),
            generated: info.generated,
        };
        Ok(self.engine.list(None).into_iter().map(told).collect())
    }

    fn tokens(&mut self, id: u64) -> Result<Option<Vec<u32>>, Failure> {
        Ok(self
            .engine
            .view(SessionId(id))
            .map(|session| session.tokens())
            .map(<[u32]>::to_vec))
    }

    fn text(&mut self, tokens: &[u32]) -> Option<String> {
        let text = self.engine.model().tokenizer.as_ref()?;
        text.decode(tokens, true).ok()
    }

    fn names(&mut self, tokens: &[u32]) -> Result<Vec<String>, Failure> {
        Ok(lens::names(self.engine.model(), tokens))
    }

    fn lens(&mut self, tokens: &[u32]) -> Result<String, Failure> {
        lens::of_tokens(&mut self.engine, tokens)
    }

    fn pattern(&mut self, tokens: &[u32], block: usize) -> Result<Tensor, Failure> {
        let hook = Site::Pattern(block).to_string();
        let last = Positions::Ranges(vec![(-1, 0)]);
        let probe = Probe::new(&self.engine.model().program, &[&hook], last, &[])?;
        let other = self.engine.open(Request {
            tokens: tokens.to_vec(),
            probe,
            ..Request::default()
        })?;
        run_out(&mut self.engine)?;
        let transcript = self.engine.close(other).expect("it is open");
        let pattern = transcript.captured.tensors().remove(&hook);
        pattern.ok_or_else(|| Failure::Message("no pattern was read".into()))
    }
}
