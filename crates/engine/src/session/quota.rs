//! Whose sessions these are: what an owner may have, and that nobody else can reach it.

use std::time::Instant;

use djinn_model::Site;

use crate::{
    BreakSpec, Captured, EditSpec, Engine, EngineError, Part, Paused, Positions, Request, RunUntil,
    Sampling, SavedFile, SessionId, Tensor, Transcript, session::Session,
};

/// What one owner may have at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Sessions.
    pub sessions: usize,
    /// KV pages that they may come to.
    pub pages: usize,
}

impl Default for Quota {
    fn default() -> Self {
        Quota {
            sessions: usize::MAX,
            pages: usize::MAX,
        }
    }
}

/// What is told of a session that is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionInfo {
    /// Which.
    pub id: SessionId,
    /// Whose.
    pub owner: String,
    /// Where it stands, in a word.
    pub state: &'static str,
    /// Tokens it has, and how many of them it generated.
    pub tokens: usize,
    /// Those.
    pub generated: usize,
    /// Pages it holds, and how many of them are not on the device.
    pub pages: usize,
    /// Those.
    pub away: usize,
}

impl Engine {
    /// Sets what each owner may have from now on.
    pub fn set_quota(&mut self, quota: Quota) {
        self.quota = quota;
    }

    /// The same for one owner, in place of what each may; none again takes that back.
    pub fn set_quota_of(&mut self, owner: &str, quota: Option<Quota>) {
        match quota {
            Some(quota) => self.quotas.insert(owner.to_owned(), quota),
            None => self.quotas.remove(owner),
        };
    }

    /// Refuses an owner another session of up to so many pages who has as much as it may.
    pub(crate) fn check_open(&self, owner: &str, most: usize) -> Result<(), EngineError> {
        let is_open = |s: &&Session| s.owner == owner && !s.state.is_done();
        let theirs: Vec<&Session> = self.sessions.values().filter(is_open).collect();
        let pages: usize = theirs.iter().map(|session| session.pages_most).sum();
        let quota = self.quotas.get(owner).unwrap_or(&self.quota);
        let wants = [
            ("sessions", theirs.len() + 1, quota.sessions),
            ("pages of KV", pages + most, quota.pages),
        ];
        for (what, asked, limit) in wants {
            if asked > limit {
                let owner = owner.to_owned();
                return Err(EngineError::Quota {
                    owner,
                    what,
                    asked,
                    limit,
                });
            }
        }
        Ok(())
    }

    /// What is told of every session, or of one owner's.
    pub fn list(&self, owner: Option<&str>) -> Vec<SessionInfo> {
        let wanted = |s: &&Session| owner.is_none_or(|owner| s.owner == owner);
        let info = |session: &Session| SessionInfo {
            id: session.id,
            owner: session.owner.clone(),
            state: session.state.name(),
            tokens: session.tokens.len(),
            generated: session.generated(),
            pages: session.pages.len(),
            away: self.pager.pages().nonresident(&session.pages),
        };
        self.sessions.values().filter(wanted).map(info).collect()
    }

    /// Where a session stands, in a word.
    pub fn state_of(&self, id: SessionId) -> Option<&'static str> {
        Some(self.sessions.get(&id)?.state.name())
    }

    /// How a session chooses its tokens.
    pub fn sampling(&self, id: SessionId) -> Option<&Sampling> {
        Some(&self.sessions.get(&id)?.sampling)
    }

    /// How many tokens a session has generated.
    pub fn generated(&self, id: SessionId) -> usize {
        self.sessions.get(&id).map_or(0, Session::generated)
    }

    /// What a session was given and has generated.
    pub fn tokens(&self, id: SessionId) -> Option<&[u32]> {
        Some(&self.sessions.get(&id)?.tokens)
    }

    /// The engine as one owner sees it: nobody else's sessions are there.
    pub fn as_owner<'e>(&'e mut self, owner: &'e str) -> Owned<'e> {
        Owned {
            engine: self,
            owner,
        }
    }
}

/// One owner's sessions.
pub struct Owned<'e> {
    engine: &'e mut Engine,
    owner: &'e str,
}

impl Owned<'_> {
    /// An error unless a session is theirs: the same as if it were not there.
    fn check(&self, id: SessionId) -> Result<(), EngineError> {
        let session = self.engine.sessions.get(&id);
        match session.is_some_and(|session| session.owner == self.owner) {
            true => Ok(()),
            false => Err(EngineError::NoSession(id)),
        }
    }

    /// [`Engine::open`], for this owner.
    pub fn open(&mut self, request: Request) -> Result<SessionId, EngineError> {
        let owner = self.owner.to_owned();
        self.engine.open(Request { owner, ..request })
    }

    /// [`Engine::fork`].
    pub fn fork(
        &mut self,
        id: SessionId,
        sampling: Option<Sampling>,
    ) -> Result<SessionId, EngineError> {
        self.check(id)?;
        self.engine.fork(id, sampling)
    }

    /// [`Engine::wait`].
    pub fn wait(&mut self, id: SessionId, expected: Option<Instant>) -> Result<(), EngineError> {
        self.check(id)?;
        self.engine.wait(id, expected)
    }

    /// [`Engine::resume`].
    pub fn resume(&mut self, id: SessionId) -> Result<(), EngineError> {
        self.check(id)?;
        self.engine.resume(id)
    }

    /// [`Engine::say`].
    pub fn say(
        &mut self,
        id: SessionId,
        tokens: &[u32],
        max_tokens: usize,
    ) -> Result<(), EngineError> {
        self.check(id)?;
        self.engine.say(id, tokens, max_tokens)
    }

    /// [`Engine::say_with`].
    pub fn say_with(
        &mut self,
        id: SessionId,
        tokens: &[u32],
        max_tokens: usize,
        edits: &[EditSpec],
    ) -> Result<(), EngineError> {
        self.check(id)?;
        self.engine.say_with(id, tokens, max_tokens, edits)
    }

    /// [`Engine::paused`].
    pub fn paused(&self, id: SessionId) -> Result<Option<Paused>, EngineError> {
        self.check(id)?;
        Ok(self.engine.paused(id))
    }

    /// [`Engine::activation`].
    pub fn activation(&self, id: SessionId) -> Result<Tensor, EngineError> {
        self.check(id)?;
        self.engine.activation(id)
    }

    /// [`Engine::activation_part`].
    pub fn activation_part(
        &self,
        id: SessionId,
        part: &Part,
        positions: &Positions,
    ) -> Result<Tensor, EngineError> {
        self.check(id)?;
        self.engine.activation_part(id, part, positions)
    }

    /// [`Engine::take_captured`].
    pub fn take_captured(&mut self, id: SessionId) -> Result<Captured, EngineError> {
        self.check(id)?;
        Ok(self.engine.take_captured(id))
    }

    /// [`Engine::export`].
    pub fn export(&self, id: SessionId) -> Result<SavedFile, EngineError> {
        self.check(id)?;
        self.engine.export(id)
    }

    /// [`Engine::import`], as this owner's.
    pub fn import(&mut self, file: SavedFile) -> Result<SessionId, EngineError> {
        self.engine.import(file, self.owner)
    }

    /// [`Engine::go_on_from`].
    pub fn go_on_from(
        &mut self,
        id: SessionId,
        edits: &[EditSpec],
        until: RunUntil,
    ) -> Result<(), EngineError> {
        self.check(id)?;
        self.engine.go_on_from(id, edits, until)
    }

    /// [`Engine::recall`].
    pub fn recall(&mut self, id: SessionId) -> Result<(), EngineError> {
        self.check(id)?;
        self.engine.recall(id)
    }

    /// [`Engine::set_breaks`].
    pub fn set_breaks(&mut self, id: SessionId, breaks: &[BreakSpec]) -> Result<(), EngineError> {
        self.check(id)?;
        self.engine.set_breaks(id, breaks)
    }

    /// [`Engine::branch`].
    pub fn branch(&mut self, id: SessionId, count: usize) -> Result<Vec<SessionId>, EngineError> {
        self.check(id)?;
        self.engine.branch(id, count)
    }

    /// [`Engine::branch_back`].
    pub fn branch_back(
        &mut self,
        id: SessionId,
        site: Site,
        position: usize,
        residual: &[f32],
    ) -> Result<SessionId, EngineError> {
        self.check(id)?;
        self.engine.branch_back(id, site, position, residual)
    }

    /// [`Engine::renew`].
    pub fn renew(&mut self, id: SessionId) -> Result<(), EngineError> {
        self.check(id)?;
        self.engine.renew(id)
    }

    /// [`Engine::close`].
    pub fn close(&mut self, id: SessionId) -> Result<Transcript, EngineError> {
        self.check(id)?;
        self.engine.close(id).ok_or(EngineError::NoSession(id))
    }

    /// [`Engine::list`], of this owner's.
    pub fn list(&self) -> Vec<SessionInfo> {
        self.engine.list(Some(self.owner))
    }
}
