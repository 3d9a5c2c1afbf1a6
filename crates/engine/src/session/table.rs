//! The table of open sessions.

use std::collections::BTreeMap;

use djinn_types::SessionId;

use super::{
    Session,
    ids::SessionIds,
    quota::{Quota, Quotas},
};
use crate::error::{EngineError, LimitKind};

/// Open sessions by id, the source of new ids, and the quotas of their owners.
#[derive(Default)]
pub(crate) struct SessionTable {
    open: BTreeMap<SessionId, Session>,
    new_ids: SessionIds,
    pub quotas: Quotas,
}

impl SessionTable {
    /// Returns an id for a new session, which sorts after all others.
    pub fn new_id(&mut self) -> SessionId {
        self.new_ids.next()
    }

    /// Notes the id of a session that exists or existed.
    pub fn note_id(&mut self, id: SessionId) {
        self.new_ids.note(id);
    }

    /// Adds a session.
    pub fn insert(&mut self, session: Session) {
        self.new_ids.note(session.id);
        self.open.insert(session.id, session);
    }

    /// Removes a session.
    pub fn remove(&mut self, id: SessionId) -> Option<Session> {
        self.open.remove(&id)
    }

    /// Returns a session, or an error if it is not open.
    pub fn get(&self, id: SessionId) -> Result<&Session, EngineError> {
        self.find(id).ok_or(EngineError::NoSession(id))
    }

    /// Returns a session for changes, or an error if it is not open.
    pub fn get_mut(&mut self, id: SessionId) -> Result<&mut Session, EngineError> {
        self.open.get_mut(&id).ok_or(EngineError::NoSession(id))
    }

    /// Returns a session if it is open.
    pub fn find(&self, id: SessionId) -> Option<&Session> {
        self.open.get(&id)
    }

    /// Returns a session that is known to be open.
    ///
    /// # Panics
    /// Panics if the session is not open.
    pub fn known(&self, id: SessionId) -> &Session {
        &self.open[&id]
    }

    /// Returns a session that is known to be open, for changes.
    ///
    /// # Panics
    /// Panics if the session is not open.
    pub fn known_mut(&mut self, id: SessionId) -> &mut Session {
        self.open.get_mut(&id).expect("an open session")
    }

    /// Iterates over all sessions in order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = &Session> {
        self.open.values()
    }

    /// Iterates over all sessions in order of their ids, for changes.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Session> {
        self.open.values_mut()
    }

    /// Whether no session is open.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Ids of the sessions that a condition selects.
    pub fn ids(&self, selected: impl Fn(&Session) -> bool) -> Vec<SessionId> {
        let selected = self.iter().filter(|session| selected(session));
        selected.map(|session| session.id).collect()
    }

    /// Removes the members of a pass from the table, in the order given. During the pass
    /// nothing else can reach them; [`put_back`](Self::put_back) returns them.
    pub fn take_members(&mut self, ids: impl Iterator<Item = SessionId>) -> Vec<Session> {
        let take = |id| self.open.remove(&id).expect("a scheduled session is open");
        ids.map(take).collect()
    }

    /// Returns the members of a pass to the table.
    pub fn put_back(&mut self, members: Vec<Session>) {
        let members = members.into_iter();
        self.open
            .extend(members.map(|session| (session.id, session)));
    }

    /// Refuses one more session where `limit` are open.
    pub fn check_count(&self, limit: usize) -> Result<(), EngineError> {
        let asked = self.open.len() + 1;
        match asked > limit {
            true => Err(EngineError::Limit {
                kind: LimitKind::Sessions,
                asked,
                limit,
            }),
            false => Ok(()),
        }
    }

    /// Refuses a new session of up to `pages` pages that would exceed the quota of its owner.
    pub fn check_quota(&self, owner: &str, pages: usize) -> Result<(), EngineError> {
        self.quotas.check(owner, pages, self.iter())
    }

    /// Sets the quota of owners that have none of their own.
    pub fn set_quota(&mut self, quota: Quota) {
        self.quotas.set_general(quota);
    }
}
