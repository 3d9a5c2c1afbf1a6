//! The table of open sessions.

use std::collections::BTreeMap;

use djinn_types::SessionId;

use super::{
    Session,
    ids::SessionIds,
    quota::{Holdings, Quota, Quotas},
};
use crate::{
    error::{EngineError, LimitKind, QuotaKind},
    settings::Settings,
};

/// Open sessions by id, the source of new ids, and the quotas of their owners.
#[derive(Default)]
pub(crate) struct SessionTable {
    open: BTreeMap<SessionId, Session>,
    new_ids: SessionIds,
    pub quotas: Quotas,
    /// Maximum number of bytes for captures and checkpoints of all sessions.
    pub probe_budget: Option<u64>,
    /// Whether owners leave room for newcomers.
    pub fair_slots: bool,
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
        LimitKind::Sessions.check(self.open.len() + 1, limit)
    }

    /// Returns what an owner has, or what all have together.
    pub fn holdings(&self, owner: Option<&str>) -> Holdings {
        let is_theirs = |session: &&Session| owner.is_none_or(|owner| session.owner == owner);
        Holdings::of(self.iter().filter(is_theirs))
    }

    /// Refuses new sessions that would exceed the quota of their owner, or the memory for probes
    /// of all owners.
    pub fn check_quota(&self, owner: &str, new: Holdings) -> Result<(), EngineError> {
        self.quotas
            .check(owner, self.holdings(Some(owner)).and(new))?;
        self.check_probe_budget(new.probe_bytes)
    }

    /// Refuses `bytes` more host memory for probes where all sessions together have too much.
    fn check_probe_budget(&self, bytes: u64) -> Result<(), EngineError> {
        let Some(limit) = self.probe_budget.filter(|_| bytes > 0) else {
            return Ok(());
        };
        let asked = self.holdings(None).probe_bytes.saturating_add(bytes);
        let number = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        LimitKind::ProbeBytes.check(number(asked), number(limit))
    }

    /// Refuses a session that is to take `bytes` of host memory for its probe, more than now.
    pub fn check_reserve(&self, id: SessionId, bytes: u64) -> Result<(), EngineError> {
        let session = self.get(id)?;
        let more = bytes.saturating_sub(session.probe_bytes());
        let new = Holdings {
            probe_bytes: more,
            ..Holdings::default()
        };
        match more {
            0 => Ok(()),
            _ => self.check_quota(&session.owner, new),
        }
    }

    /// Refuses a new session of an owner that has more than is free for others, so that there is
    /// always room for newcomers. A quota of the owner's own replaces this rule. `room` is what
    /// the engine has room for.
    pub fn check_fair_slots(
        &self,
        owner: &str,
        new: Holdings,
        room: Holdings,
    ) -> Result<(), EngineError> {
        if !self.fair_slots {
            return Ok(());
        }
        let (limits_sessions, limits_pages) = self.quotas.is_explicit(owner);
        let (own, all) = (self.holdings(Some(owner)), self.holdings(None));
        let refuse = |kind, held, free| {
            Err(EngineError::FairShare {
                owner: owner.to_owned(),
                kind,
                held,
                free,
            })
        };
        let free = room.sessions.saturating_sub(self.open.len());
        if !limits_sessions && own.sessions >= free {
            return refuse(QuotaKind::Sessions, own.sessions, free);
        }
        let free = room.pages.saturating_sub(all.pages);
        let has_others = self.iter().any(|session| session.owner != owner);
        let has_others = has_others && !limits_pages;
        // The first session of an owner may queue for pages; others must leave room.
        if has_others && own.sessions > 0 && own.pages.saturating_add(new.pages) > free {
            return refuse(QuotaKind::Pages, own.pages, free);
        }
        Ok(())
    }

    /// Sets the quota of owners that have none of their own.
    pub fn set_quota(&mut self, quota: Quota) {
        self.quotas.set_general(quota);
    }
}

/// Refuses new sessions of an owner where the number of sessions, a quota, the memory for probes
/// or the share of other owners leaves no room for them.
pub(crate) fn check_room(
    sessions: &SessionTable,
    settings: &Settings,
    owner: &str,
    new: Holdings,
) -> Result<(), EngineError> {
    sessions.check_count(settings.open)?;
    sessions.check_quota(owner, new)?;
    let pages = settings.pages.saturating_add(settings.host_pages);
    let room = Holdings {
        sessions: settings.open,
        pages: pages.saturating_add(settings.disk_pages),
        probe_bytes: u64::MAX,
    };
    sessions.check_fair_slots(owner, new, room)
}
