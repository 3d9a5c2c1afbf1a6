//! `djinn debug --server`: a server's model is debugged.

use std::collections::BTreeSet;

use djinn_client::{
    Client, Create, EventStream, HookEdit, ModelHandle, Resume, SessionHandle, TurnEvent, v1,
};
use djinn_engine::{BreakSpec, EditSpec, Tensor};
use djinn_model::Site;
use tokio::runtime::Runtime;

use super::{
    connect,
    edits::sent,
    greedy,
    lens::{look, names},
    prompt, runtime, tensor,
};
use crate::{
    args::DebugArgs,
    commands::debug::target::{Goal, Heard, Listed, Place, Target},
    failure::Failure,
};

/// The number of the session that has not begun: a server's begins when it runs.
const UNBORN: u64 = u64::MAX;

/// A model of a server, and the sessions of it that this debugger began.
pub struct Remote {
    runtime: Runtime,
    client: Client,
    model: ModelHandle,
    name: String,
    has_text: bool,
    /// What the first session begins with, until it has.
    asked: Option<(Create, Vec<u32>)>,
    ours: BTreeSet<u64>,
}

impl Remote {
    /// Finds the model; nothing has run yet.
    pub fn connect(args: &DebugArgs) -> Result<Self, Failure> {
        let runtime = runtime()?;
        let (client, model, told, tokens) = runtime.block_on(async {
            let client = connect(&args.server).await?;
            let model = client.model(args.model.model.as_deref().unwrap_or_default());
            let tokens = prompt::tokens(&model, &args.prompt).await?;
            let told = model.info().await?;
            Ok::<_, Failure>((client, model, told, tokens))
        })?;
        let asked = model.session().tokens(tokens.clone()).keep();
        let asked = asked.max_tokens(args.max_tokens as u64).sampling(greedy());
        let mut remote = Remote {
            runtime,
            client,
            model,
            name: told.name,
            has_text: told.has_text,
            asked: Some((asked, tokens)),
            ours: BTreeSet::new(),
        };
        remote.check_breaks(&args.breaks)?;
        Ok(remote)
    }

    fn session(&self, id: u64) -> SessionHandle {
        self.client.session(format!("{}:{id}", self.name))
    }

    /// Refuses hooks that are not there, or at which nothing can stop.
    fn check_breaks(&mut self, breaks: &[BreakSpec]) -> Result<(), Failure> {
        for one in breaks {
            if self.stops(&one.hook)?.is_empty() {
                let hook = &one.hook;
                return Err(Failure::Message(format!(
                    "a session cannot stop at '{hook}'"
                )));
            }
        }
        Ok(())
    }

    fn info(&self, id: u64) -> Result<v1::Session, Failure> {
        if id == UNBORN {
            return Err(Failure::Message(
                "the session is not paused: nothing has run yet".into(),
            ));
        }
        Ok(self.runtime.block_on(self.session(id).info())?)
    }

    fn edits(&self, edits: &[EditSpec]) -> Result<Vec<HookEdit>, Failure> {
        let mut all = Vec::new();
        for spec in edits {
            all.extend(self.runtime.block_on(sent(&self.model, spec.clone()))?);
        }
        Ok(all)
    }
}

/// Everything that becomes of a session until it stops or ends.
async fn hear(mut events: EventStream) -> Result<Vec<Heard>, Failure> {
    let mut heard = Vec::new();
    while let Some(event) = events.next().await? {
        match event {
            TurnEvent::Token(token) => heard.push(Heard::Token(token.id)),
            TurnEvent::Paused(at) => heard.push(Heard::Stopped(place(&at))),
            TurnEvent::Finished(end) if !end.failure.is_empty() => {
                return Err(Failure::Message(end.failure));
            }
            TurnEvent::Finished(end) => heard.push(Heard::Over(end.why)),
            TurnEvent::Captured(..) => {}
        }
    }
    Ok(heard)
}

fn place(at: &v1::Paused) -> Place {
    Place {
        hook: at.hook.clone(),
        position: at.position as usize,
        rows: at.rows as usize,
        shape: at.shape.iter().map(|&d| d as usize).collect(),
    }
}

/// The number in a session's name.
fn number(name: &str) -> Option<u64> {
    name.rsplit_once(':')?.1.parse().ok()
}

impl Target for Remote {
    fn first(&self) -> u64 {
        UNBORN
    }

    fn hooks(&mut self) -> Result<Vec<String>, Failure> {
        let hooks = self.runtime.block_on(self.model.hooks("*"))?;
        Ok(hooks.into_iter().map(|hook| hook.name).collect())
    }

    fn stops(&mut self, pattern: &str) -> Result<Vec<String>, Failure> {
        let hooks = self.runtime.block_on(self.model.hooks(pattern))?;
        let stops = hooks.into_iter().filter(|hook| hook.stops);
        Ok(stops.map(|hook| hook.name).collect())
    }

    fn set_breaks(&mut self, id: u64, breaks: &[BreakSpec]) -> Result<(), Failure> {
        if id == UNBORN {
            return self.check_breaks(breaks);
        }
        let texts = breaks.iter().map(ToString::to_string);
        Ok(self
            .runtime
            .block_on(self.session(id).set_breakpoints(texts))?)
    }

    fn start(
        &mut self,
        id: u64,
        breaks: &[BreakSpec],
    ) -> Result<Option<(u64, Vec<Heard>)>, Failure> {
        let Some((mut asked, tokens)) = self.asked.take().filter(|_| id == UNBORN) else {
            return Ok(None);
        };
        let again = asked.clone();
        for one in breaks {
            asked = asked.breakpoint(one.to_string());
        }
        let events = match self.runtime.block_on(asked.open()) {
            Ok(events) => events,
            Err(error) => {
                self.asked = Some((again, tokens));
                return Err(error.into());
            }
        };
        let id = number(events.session().name()).unwrap_or(UNBORN);
        self.ours.insert(id);
        Ok(Some((id, self.runtime.block_on(hear(events))?)))
    }

    fn go(&mut self, id: u64, edits: &[EditSpec], goal: &Goal) -> Result<Vec<Heard>, Failure> {
        let mut resume = match goal {
            Goal::Breakpoint => Resume::new(),
            Goal::NextHook => Resume::new().to_next_hook(),
            Goal::NextBlock => Resume::new().to_next_block(),
            Goal::Hook(name) => Resume::new().to_hook(name),
        };
        for edit in self.edits(edits)? {
            resume = resume.edit(edit);
        }
        let session = self.session(id);
        let resumed = async { hear(session.resume(resume).await?).await };
        self.runtime.block_on(resumed)
    }

    fn check_edits(&mut self, id: u64, edits: &[EditSpec]) -> Result<(), Failure> {
        // Tried on another that stands there.
        let tried = self.branch(id, 1)?;
        let fits = self.go(tried[0], edits, &Goal::NextHook);
        self.close(tried[0]);
        fits.map(drop)
    }

    fn place(&mut self, id: u64) -> Result<Option<Place>, Failure> {
        match id {
            UNBORN => Ok(None),
            id => Ok(self.info(id)?.paused.as_ref().map(place)),
        }
    }

    fn activation(&mut self, id: u64) -> Result<Tensor, Failure> {
        self.info(id)?;
        let read = self.runtime.block_on(self.session(id).activation("", ""));
        Ok(tensor(read?))
    }

    fn branch(&mut self, id: u64, count: usize) -> Result<Vec<u64>, Failure> {
        let branches = self
            .runtime
            .block_on(self.session(id).branch(count as u32))?;
        let numbers: Vec<u64> = branches.iter().filter_map(|b| number(b.name())).collect();
        self.ours.extend(&numbers);
        Ok(numbers)
    }

    fn close(&mut self, id: u64) {
        self.ours.remove(&id);
        // One that is gone already is as good.
        let _ = self.runtime.block_on(self.session(id).delete());
    }

    fn list(&mut self) -> Result<Vec<Listed>, Failure> {
        let all = self
            .runtime
            .block_on(self.client.sessions(Some(&self.name)))?;
        let told = |session: v1::Session| {
            let id = number(&session.session).filter(|id| self.ours.contains(id))?;
            Some(Listed {
                id,
                state: session.state,
                at: session.paused.map_or(String::new(), |at| at.hook),
                generated: session.generated as usize,
            })
        };
        Ok(all.into_iter().filter_map(told).collect())
    }

    fn tokens(&mut self, id: u64) -> Result<Option<Vec<u32>>, Failure> {
        if id == UNBORN {
            return Ok(self.asked.as_ref().map(|(_, tokens)| tokens.clone()));
        }
        Ok(match self.ours.contains(&id) {
            true => Some(self.info(id)?.token_ids),
            false => None,
        })
    }

    fn text(&mut self, tokens: &[u32]) -> Option<String> {
        let text = self.model.detokenize(tokens, false);
        self.runtime.block_on(text).ok().filter(|_| self.has_text)
    }

    fn names(&mut self, tokens: &[u32]) -> Result<Vec<String>, Failure> {
        let named = names(&self.model, self.has_text, tokens);
        self.runtime.block_on(named)
    }

    fn lens(&mut self, tokens: &[u32]) -> Result<String, Failure> {
        let grid = look(&self.model, tokens.to_vec(), 1);
        Ok(self.runtime.block_on(grid)?.text())
    }

    fn pattern(&mut self, tokens: &[u32], block: usize) -> Result<Tensor, Failure> {
        let hook = Site::Pattern(block).to_string();
        let asked = self.model.session().tokens(tokens).max_tokens(0);
        let asked = asked.capture(format!("{hook}@-1"));
        let turn = self
            .runtime
            .block_on(async { asked.open().await?.collect().await })?;
        let seen = turn.captured.into_iter().next();
        let seen = seen.ok_or_else(|| Failure::Message("no pattern was read".into()))?;
        Ok(tensor(seen.1))
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        for id in std::mem::take(&mut self.ours) {
            self.close(id);
        }
    }
}
