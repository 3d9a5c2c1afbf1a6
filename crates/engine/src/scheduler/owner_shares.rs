//! Shares of owners: owners that compete get equal shares of the passes, however many sessions
//! each of them runs.
//!
//! Every owner has a virtual time, as every session has one among the sessions of its owner. An
//! owner pays for every session of its own in a pass, and the owner with the least virtual time
//! comes first. While only one owner is active, the order of the sessions is their own.

use std::collections::{BTreeMap, BTreeSet};

use super::fair_share::{Class, FairShare, SLICE_PASSES};

/// Number of rows from which the time of a pass is proportional to its rows. Smaller passes take
/// as long as reading the weights does.
pub(super) const MANY_ROWS: usize = 128;

/// Virtual time of one owner.
#[derive(Clone, Copy, Debug, Default)]
struct OwnerShare {
    /// Virtual time with all passes that sessions of the owner ran in.
    charged: u64,
    /// Virtual time at the start of the time slice; orders the owners.
    virtual_time: u64,
    /// Passes left of the time slice.
    left: u32,
    /// Virtual time of the owner's first session in the order at the last pass.
    session_clock: u64,
    /// Whether a session of the owner had tokens to run before the last pass.
    is_active: bool,
}

/// Virtual times of all owners.
#[derive(Debug, Default)]
pub(crate) struct OwnerShares {
    owners: BTreeMap<String, OwnerShare>,
    /// Virtual time of the first owner in the order at the last pass.
    clock: u64,
}

/// A session with tokens to run, as the order of owners sees it.
pub(crate) struct ActiveShare<'s> {
    pub owner: &'s str,
    pub fair_share: &'s mut FairShare,
    /// Whether the session may run in the next pass.
    pub is_ready: bool,
}

impl OwnerShares {
    /// Returns the virtual time from which a new or returning session of an owner starts.
    pub fn session_clock(&self, owner: &str) -> u64 {
        self.owners.get(owner).map_or(0, |own| own.session_clock)
    }

    /// Sets the turns of all sessions that have tokens to run, before a pass. The sessions come in
    /// order of their ids. `is_open` tells whether an owner has any session.
    pub fn order<'s>(
        &mut self,
        active: impl Iterator<Item = ActiveShare<'s>>,
        is_open: impl Fn(&str) -> bool,
    ) {
        let mut of_owners: BTreeMap<&str, Vec<ActiveShare<'s>>> = BTreeMap::new();
        for share in active {
            of_owners.entry(share.owner).or_default().push(share);
        }
        self.rejoin(&of_owners.keys().copied().collect(), is_open);
        let competes = of_owners.len() > 1;
        for (owner, mut sessions) in of_owners {
            let own = self.owners.entry(owner.to_owned()).or_default();
            sessions.sort_by_key(|session| session.fair_share.own_rank());
            if let Some(first) = sessions.iter().find(|session| session.is_ready) {
                let time = first.fair_share.virtual_time;
                own.session_clock = own.session_clock.max(time);
            }
            let mut turn = own.virtual_time;
            for session in sessions {
                session.fair_share.turn = if competes { turn } else { 0 };
                let slice = session.fair_share.class.price() * u64::from(SLICE_PASSES);
                turn = turn.saturating_add(slice);
            }
        }
    }

    /// Lets owners that were absent rejoin: they neither catch up nor gain by their absence.
    /// Forgets owners without sessions that have paid for all that they used.
    fn rejoin(&mut self, active: &BTreeSet<&str>, is_open: impl Fn(&str) -> bool) {
        for &owner in active {
            let own = self.owners.entry(owner.to_owned()).or_default();
            if !own.is_active {
                own.charged = own.charged.max(self.clock);
                (own.virtual_time, own.left, own.is_active) = (own.charged, 0, true);
            }
        }
        for (owner, own) in &mut self.owners {
            own.is_active = active.contains(owner.as_str());
        }
        let times = self.owners.values().filter(|own| own.is_active);
        let first = times.map(|own| own.virtual_time).min();
        let clock = self.clock.max(first.unwrap_or(0));
        self.clock = clock;
        self.owners
            .retain(|owner, own| own.is_active || own.charged > clock || is_open(owner));
    }

    /// Charges an owner for a session of its own in a pass of `rows` rows. A long prompt costs as
    /// much as the time that it takes.
    pub fn charge(&mut self, owner: &str, class: Class, rows: usize) {
        let Some(own) = self.owners.get_mut(owner) else {
            return;
        };
        if own.left == 0 {
            own.left = SLICE_PASSES;
        }
        own.left -= 1;
        let rows = rows.div_ceil(MANY_ROWS).max(1) as u64;
        own.charged = own.charged.saturating_add(class.price() * rows);
        if own.left == 0 {
            own.virtual_time = own.charged;
        }
    }
}
