//! Model under the debugger, on a server in process or elsewhere.

use std::collections::BTreeMap;

use djinn_client::{
    Client, Create, EventStream, HookEdit, ModelHandle, Resume, SessionHandle, TurnEvent, v1,
};
use djinn_engine::{BreakSpec, EditSpec, Tensor};
use djinn_model::Site;
use tokio::runtime::Runtime;

use djinn_analysis::{Lens, greedy, tensor, to_hook_edits, token_texts};

use super::options::DebugOptions;
use crate::{lens::lens_text, output::Failure};

/// Hook at which a session is paused.
#[derive(Clone, Debug, PartialEq)]
pub struct PausePoint {
    /// Name of the hook.
    pub hook: String,
    /// First position that stopped.
    pub position: usize,
    /// Number of positions that stopped.
    pub rows: usize,
    /// Shape of the activation.
    pub shape: Vec<usize>,
}

/// Event of a session that runs.
#[derive(Clone, Debug)]
pub enum DebugEvent {
    /// A token was generated.
    Token(u32),
    /// The session paused at a hook.
    Stopped(PausePoint),
    /// The session is over, for this reason.
    Over(String),
}

/// Point up to which a session continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Goal {
    /// The next breakpoint.
    Breakpoint,
    /// The next hook.
    NextHook,
    /// The next block.
    NextBlock,
    /// The next time this hook is reached.
    Hook(String),
}

/// Row of the table of sessions.
pub struct SessionRow {
    /// Number of the session.
    pub id: u64,
    /// State of the session.
    pub state: String,
    /// Hook at which the session is paused; empty if the session is not paused.
    pub at: String,
    /// Number of generated tokens.
    pub generated: usize,
}

/// Number of the first session before it has started.
const NOT_STARTED: u64 = u64::MAX;

/// Model under the debugger, and the sessions that the debugger opened.
pub struct DebugTarget<'a> {
    runtime: &'a Runtime,
    client: Client,
    model: ModelHandle,
    info: v1::Model,
    /// First session and its tokens, until it has started.
    first: Option<(Create, Vec<u32>)>,
    /// Names of the open sessions of the debugger, by number.
    opened: BTreeMap<u64, String>,
    /// Number of the next session.
    next: u64,
}

impl<'a> DebugTarget<'a> {
    /// Target before its first pass.
    pub fn new(
        runtime: &'a Runtime,
        client: Client,
        model: ModelHandle,
        info: v1::Model,
        options: &DebugOptions,
    ) -> Result<Self, Failure> {
        let first = model.session().tokens(options.tokens.clone()).keep();
        let first = first
            .max_tokens(options.max_tokens as u64)
            .sampling(greedy());
        let mut target = DebugTarget {
            runtime,
            client,
            model,
            info,
            first: Some((first, options.tokens.clone())),
            opened: BTreeMap::new(),
            next: 0,
        };
        target.check_breaks(&options.breaks)?;
        Ok(target)
    }

    fn session(&self, id: u64) -> SessionHandle {
        let name = self.opened.get(&id).cloned();
        let name = name.unwrap_or_else(|| format!("{}:{id}", self.info.name));
        self.client.session(name)
    }

    /// Gives an opened session the next number.
    fn add(&mut self, name: &str) -> u64 {
        let number = self.next;
        self.next += 1;
        self.opened.insert(number, name.to_owned());
        number
    }

    /// Refuses breakpoints at hooks where a session cannot stop.
    fn check_breaks(&mut self, breaks: &[BreakSpec]) -> Result<(), Failure> {
        for one in breaks {
            if self.stopping_hooks(&one.hook)?.is_empty() {
                let hook = &one.hook;
                return Err(Failure::Message(format!(
                    "a session cannot stop at '{hook}'; stop at its block's hook_z, or capture it instead"
                )));
            }
        }
        Ok(())
    }

    fn session_info(&self, id: u64) -> Result<v1::Session, Failure> {
        if id == NOT_STARTED {
            return Err(Failure::Message(
                "the session is not paused: use run or step first".into(),
            ));
        }
        Ok(self.runtime.block_on(self.session(id).info())?)
    }

    fn edits(&self, edits: &[EditSpec]) -> Result<Vec<HookEdit>, Failure> {
        let mut all = Vec::new();
        for spec in edits {
            all.extend(
                self.runtime
                    .block_on(to_hook_edits(&self.model, spec.clone()))?,
            );
        }
        Ok(all)
    }
}

/// Collects events until the session stops or ends.
async fn collect(mut events: EventStream) -> Result<Vec<DebugEvent>, Failure> {
    let mut heard = Vec::new();
    while let Some(event) = events.next().await? {
        match event {
            TurnEvent::Token(token) => heard.push(DebugEvent::Token(token.id)),
            TurnEvent::Paused(at) => heard.push(DebugEvent::Stopped(stop_point(&at))),
            TurnEvent::Finished(end) if !end.failure.is_empty() => {
                return Err(Failure::Message(end.failure));
            }
            TurnEvent::Finished(end) => heard.push(DebugEvent::Over(end.why)),
            TurnEvent::Captured(..) => {}
        }
    }
    Ok(heard)
}

fn stop_point(at: &v1::Paused) -> PausePoint {
    PausePoint {
        hook: at.hook.clone(),
        position: at.position as usize,
        rows: at.rows as usize,
        shape: at.shape.iter().map(|&d| d as usize).collect(),
    }
}

impl DebugTarget<'_> {
    /// Number of the session to debug, before its first pass.
    pub fn first(&self) -> u64 {
        NOT_STARTED
    }

    /// Hooks of the model in the order of a pass.
    pub fn hooks(&mut self) -> Result<Vec<String>, Failure> {
        let hooks = self.runtime.block_on(self.model.hooks("*"))?;
        Ok(hooks.into_iter().map(|hook| hook.name).collect())
    }

    /// Hooks that match a pattern and at which a session can stop.
    pub fn stopping_hooks(&mut self, pattern: &str) -> Result<Vec<String>, Failure> {
        let hooks = self.runtime.block_on(self.model.hooks(pattern))?;
        let stops = hooks.into_iter().filter(|hook| hook.stops);
        Ok(stops.map(|hook| hook.name).collect())
    }

    /// Sets the breakpoints of a session.
    pub fn set_breaks(&mut self, id: u64, breaks: &[BreakSpec]) -> Result<(), Failure> {
        if id == NOT_STARTED {
            return self.check_breaks(breaks);
        }
        let texts = breaks.iter().map(ToString::to_string);
        Ok(self
            .runtime
            .block_on(self.session(id).set_breakpoints(texts))?)
    }

    /// Starts the first session with these breakpoints, unless it has started. Returns its number and
    /// events.
    pub fn start(
        &mut self,
        id: u64,
        breaks: &[BreakSpec],
    ) -> Result<Option<(u64, Vec<DebugEvent>)>, Failure> {
        let Some((mut session, tokens)) = self.first.take().filter(|_| id == NOT_STARTED) else {
            return Ok(None);
        };
        let again = session.clone();
        for one in breaks {
            session = session.breakpoint(one.to_string());
        }
        let events = match self.runtime.block_on(session.open()) {
            Ok(events) => events,
            Err(error) => {
                self.first = Some((again, tokens));
                return Err(error.into());
            }
        };
        let id = self.add(events.session().name());
        Ok(Some((id, self.runtime.block_on(collect(events))?)))
    }

    /// Continues a paused session after applying edits.
    pub fn go(
        &mut self,
        id: u64,
        edits: &[EditSpec],
        goal: &Goal,
    ) -> Result<Vec<DebugEvent>, Failure> {
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
        let resumed = async { collect(session.resume(resume).await?).await };
        self.runtime.block_on(resumed)
    }

    /// Checks that edits fit the activation at which a session is paused.
    pub fn check_edits(&mut self, id: u64, edits: &[EditSpec]) -> Result<(), Failure> {
        // Edits are tried on a branch.
        let tried = self.branch(id, 1)?;
        let fits = self.go(tried[0], edits, &Goal::NextHook);
        self.close(tried[0]);
        fits.map(drop)
    }

    /// Hook at which a session is paused, if it is.
    pub fn stop_point(&mut self, id: u64) -> Result<Option<PausePoint>, Failure> {
        match id {
            NOT_STARTED => Ok(None),
            id => Ok(self.session_info(id)?.paused.as_ref().map(stop_point)),
        }
    }

    /// Activation at which a session is paused.
    pub fn activation(&mut self, id: u64) -> Result<Tensor, Failure> {
        self.session_info(id)?;
        let read = self.runtime.block_on(self.session(id).activation("", ""));
        Ok(tensor(read?))
    }

    /// Branches a paused session; returns the numbers of the branches.
    pub fn branch(&mut self, id: u64, count: usize) -> Result<Vec<u64>, Failure> {
        let branches = self
            .runtime
            .block_on(self.session(id).branch(count as u32))?;
        Ok(branches.iter().map(|b| self.add(b.name())).collect())
    }

    /// Ends a session.
    pub fn close(&mut self, id: u64) {
        // A session that is gone already needs no closing.
        let _ = self.runtime.block_on(self.session(id).delete());
        self.opened.remove(&id);
    }

    /// Rows of all sessions of this debugger.
    pub fn list(&mut self) -> Result<Vec<SessionRow>, Failure> {
        let all = self
            .runtime
            .block_on(self.client.sessions(Some(&self.info.name)))?;
        let row = |session: v1::Session| {
            let mut opened = self.opened.iter();
            let (&id, _) = opened.find(|(_, name)| **name == session.session)?;
            Some(SessionRow {
                id,
                state: session.state,
                at: session.paused.map_or(String::new(), |at| at.hook),
                generated: session.generated as usize,
            })
        };
        Ok(all.into_iter().filter_map(row).collect())
    }

    /// Tokens of a session, if it exists.
    pub fn tokens(&mut self, id: u64) -> Result<Option<Vec<u32>>, Failure> {
        if id == NOT_STARTED {
            return Ok(self.first.as_ref().map(|(_, tokens)| tokens.clone()));
        }
        Ok(match self.opened.contains_key(&id) {
            true => Some(self.session_info(id)?.token_ids),
            false => None,
        })
    }

    /// Text of tokens, if the model has a tokenizer.
    pub fn text(&mut self, tokens: &[u32]) -> Option<String> {
        let text = self.model.detokenize(tokens, false);
        self.runtime
            .block_on(text)
            .ok()
            .filter(|_| self.info.has_text)
    }

    /// Texts of tokens, one by one.
    pub fn names(&mut self, tokens: &[u32]) -> Result<Vec<String>, Failure> {
        let texts = token_texts(&self.model, self.info.has_text, tokens);
        Ok(self.runtime.block_on(texts)?)
    }

    /// Lens of tokens after every block, as text.
    pub fn lens(&mut self, tokens: &[u32]) -> Result<String, Failure> {
        let lens = Lens::read(&self.model, &self.info, tokens.to_vec(), 1);
        Ok(lens_text(&self.runtime.block_on(lens)?))
    }

    /// Attention pattern of the last token in a block, by head.
    pub fn pattern(&mut self, tokens: &[u32], block: usize) -> Result<Tensor, Failure> {
        let hook = Site::Pattern(block).to_string();
        let session = self.model.session().tokens(tokens).max_tokens(0);
        let session = session.capture(format!("{hook}@-1"));
        let turn = self
            .runtime
            .block_on(async { session.open().await?.collect().await })?;
        let captured = turn.captured.into_iter().next();
        let captured =
            captured.ok_or_else(|| Failure::Message("no attention pattern was captured".into()))?;
        Ok(tensor(captured.1))
    }
}

impl Drop for DebugTarget<'_> {
    fn drop(&mut self) {
        while let Some(&id) = self.opened.keys().next() {
            self.close(id);
        }
    }
}
