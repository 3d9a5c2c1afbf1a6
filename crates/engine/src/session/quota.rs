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
}

impl Default for Quota {
    fn default() -> Self {
        Quota {
            sessions: usize::MAX,
            pages: usize::MAX,
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

    /// Refuses a new session of up to `pages` pages that would exceed the quota of its owner.
    pub fn check<'s>(
        &self,
        owner: &str,
        pages: usize,
        sessions: impl Iterator<Item = &'s Session>,
    ) -> Result<(), EngineError> {
        let is_open = |session: &&Session| session.owner == owner && !session.state.is_done();
        let (mut count, mut held) = (0, 0);
        for session in sessions.filter(is_open) {
            count += 1;
            held += session.pages_most;
        }
        let quota = self.own.get(owner).unwrap_or(&self.general);
        let wants = [
            (QuotaKind::Sessions, count + 1, quota.sessions),
            (QuotaKind::Pages, held + pages, quota.pages),
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
