//! Quotas of owners.

use std::collections::BTreeMap;

use super::Session;
use crate::error::{EngineError, QuotaKind};

/// Maximum that one owner may have open at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Maximum number of open sessions.
    pub sessions: usize,
    /// Maximum number of KV pages that the open sessions may need together.
    pub pages: usize,
    /// Maximum number of bytes of host memory that captures and checkpoints may take together.
    pub probe_bytes: u64,
}

impl Default for Quota {
    fn default() -> Self {
        Quota {
            sessions: usize::MAX,
            pages: usize::MAX,
            probe_bytes: u64::MAX,
        }
    }
}

/// Quotas of all owners.
#[derive(Debug, Default)]
pub(crate) struct Quotas {
    general: Quota,
    /// Quotas of owners that have their own.
    own: BTreeMap<String, Quota>,
}

impl Quotas {
    /// Sets the quota of owners that have none of their own.
    pub fn set_general(&mut self, quota: Quota) {
        self.general = quota;
    }

    /// Sets the quota of one owner; `None` returns the owner to the general quota.
    pub fn set(&mut self, owner: &str, quota: Option<Quota>) {
        match quota {
            Some(quota) => self.own.insert(owner.to_owned(), quota),
            None => self.own.remove(owner),
        };
    }

    /// Whether an owner has a quota of its own that limits sessions, and one that limits pages.
    pub fn is_explicit(&self, owner: &str) -> (bool, bool) {
        let own = self.own.get(owner).copied().unwrap_or_default();
        (own.sessions < usize::MAX, own.pages < usize::MAX)
    }

    /// Refuses to raise what an owner has to this amount, if it exceeds the quota.
    pub fn check(&self, owner: &str, would_have: Holdings) -> Result<(), EngineError> {
        let quota = self.own.get(owner).unwrap_or(&self.general);
        let bytes = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let wants = [
            (QuotaKind::Sessions, would_have.sessions, quota.sessions),
            (QuotaKind::Pages, would_have.pages, quota.pages),
            (
                QuotaKind::ProbeBytes,
                bytes(would_have.probe_bytes),
                bytes(quota.probe_bytes),
            ),
        ];
        match wants.into_iter().find(|(_, asked, limit)| asked > limit) {
            None => Ok(()),
            Some((kind, asked, limit)) => Err(EngineError::Quota {
                owner: owner.to_owned(),
                kind,
                asked,
                limit,
            }),
        }
    }
}

/// Sessions that are open, and the memory that they may need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holdings {
    /// Number of sessions that have not ended.
    pub sessions: usize,
    /// Number of KV pages that they may need.
    pub pages: usize,
    /// Bytes of host memory for captures and checkpoints, of ended sessions too.
    pub probe_bytes: u64,
}

impl Holdings {
    /// Adds up sessions.
    pub fn of<'s>(sessions: impl Iterator<Item = &'s Session>) -> Self {
        sessions.fold(Holdings::default(), |all, session| {
            let is_open = !session.state.is_done();
            let one = Holdings {
                sessions: usize::from(is_open),
                pages: if is_open { session.pages_most } else { 0 },
                probe_bytes: session.probe_bytes(),
            };
            all.and(one)
        })
    }

    /// Returns the sum of two holdings.
    pub fn and(self, other: Holdings) -> Self {
        Holdings {
            sessions: self.sessions.saturating_add(other.sessions),
            pages: self.pages.saturating_add(other.pages),
            probe_bytes: self.probe_bytes.saturating_add(other.probe_bytes),
        }
    }
}
