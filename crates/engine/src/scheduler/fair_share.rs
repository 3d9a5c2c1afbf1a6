//! Fair share: the virtual time of each session among the sessions of its owner.

use serde::{Deserialize, Serialize};

/// Scheduling class of a session.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Voice and other real-time use: eight times the share of a batch session.
    Realtime,
    /// A person who reads along: four times the share of a batch session.
    #[default]
    Interactive,
    /// Work without a waiting user.
    Batch,
}

impl Class {
    /// Virtual time that one pass costs.
    pub(super) fn price(self) -> u64 {
        match self {
            Class::Realtime => 1,
            Class::Interactive => 2,
            Class::Batch => 8,
        }
    }
}

/// Number of passes in a time slice.
pub(super) const SLICE_PASSES: u32 = 16;

/// Share of one session: the session with the least virtual time runs first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FairShare {
    pub class: Class,
    /// Virtual time with all passes that the session ran in.
    charged: u64,
    /// Virtual time at the start of the time slice; orders the sessions.
    pub virtual_time: u64,
    /// Passes left of the time slice.
    left: u32,
    /// Turn of the session among the sessions of all owners that compete; 0 where none does.
    pub turn: u64,
}

impl FairShare {
    /// Creates the share of a session that arrives when the first session in the order has
    /// virtual time `now`. The session starts half a slice behind it, so that the order advances
    /// however many sessions arrive.
    pub fn new(class: Class, now: u64) -> Self {
        let virtual_time = now + class.price() * u64::from(SLICE_PASSES) / 2;
        FairShare {
            class,
            charged: virtual_time,
            virtual_time,
            left: 0,
            turn: 0,
        }
    }

    /// Returns the share of the same session after an absence: the session neither catches up
    /// nor gains by its absence.
    pub fn rejoin(self, now: u64) -> Self {
        let virtual_time = self.charged.max(now);
        FairShare {
            charged: virtual_time,
            virtual_time,
            left: 0,
            ..self
        }
    }

    /// Returns the sort key of the session; the least runs first.
    pub fn rank(self) -> (u64, u64, Class) {
        (self.turn, self.virtual_time, self.class)
    }

    /// Returns the sort key of the session among the sessions of its owner.
    pub fn own_rank(self) -> (u64, Class) {
        (self.virtual_time, self.class)
    }

    /// Charges the session for one pass.
    pub fn charge(&mut self) {
        if self.left == 0 {
            self.left = SLICE_PASSES;
        }
        self.left -= 1;
        self.charged += self.class.price();
        if self.left == 0 {
            self.virtual_time = self.charged;
        }
    }
}
