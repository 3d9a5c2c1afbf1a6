//! What turns cost, and what a session has paid.

use serde::{Deserialize, Serialize};

/// How urgent a session is.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Somebody listens: eight times the share of a batch.
    Realtime,
    /// Somebody reads: four times the share.
    #[default]
    Interactive,
    /// Nobody waits.
    Batch,
}

impl Class {
    /// What a pass costs.
    fn price(self) -> u64 {
        match self {
            Class::Realtime => 1,
            Class::Interactive => 2,
            Class::Batch => 8,
        }
    }
}

/// Passes of a turn.
pub(super) const TURN: u32 = 16;

/// What a session has paid, and where that puts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FairShare {
    pub class: Class,
    /// Paid so far.
    paid: u64,
    /// Paid when its turn began, or where it came in.
    pub place: u64,
    /// Passes left of its turn.
    left: u32,
}

impl FairShare {
    /// Of a session that comes when the first in the order stands at `clock`: it comes in
    /// behind that one by half a turn, so that however many come, the order moves on.
    pub fn new(class: Class, clock: u64) -> Self {
        let place = clock + class.price() * u64::from(TURN) / 2;
        FairShare {
            class,
            paid: place,
            place,
            left: 0,
        }
    }

    /// The same session after a while away: it neither has to catch up nor is ahead of the
    /// others by having been away.
    pub fn back(self, clock: u64) -> Self {
        let place = self.paid.max(clock);
        FairShare {
            paid: place,
            place,
            left: 0,
            ..self
        }
    }

    /// What the order goes by: the least comes first.
    pub fn rank(self) -> (u64, Class) {
        (self.place, self.class)
    }

    /// The session ran in a pass.
    pub fn ran(&mut self) {
        if self.left == 0 {
            self.left = TURN;
        }
        self.left -= 1;
        self.paid += self.class.price();
        if self.left == 0 {
            self.place = self.paid;
        }
    }
}
