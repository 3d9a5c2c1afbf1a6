//! Records of the session log.

use serde::{Deserialize, Serialize};

use super::{SavedLogprobs, SavedSession, SavedState};
use crate::SavedProbe;

/// What the log is made of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Record {
    /// First: which model's sessions these are, and the least number the next one has, so
    /// that none is given twice.
    Model {
        name: String,
        identity: String,
        #[serde(default)]
        next_id: u64,
    },
    Session(Box<SavedSession>),
    /// A session was told something, and goes on.
    Said {
        id: u64,
        tokens: Vec<u32>,
        max_tokens: usize,
        /// What it reads and changes from now on, where that is something else.
        #[serde(default)]
        probe: Option<Box<SavedProbe>>,
    },
    /// A session generated tokens after so many that it had, and stands elsewhere if its
    /// turn is over: one record, so that neither is there without the other.
    Tokens {
        id: u64,
        after: usize,
        tokens: Vec<u32>,
        logprobs: Vec<SavedLogprobs>,
        state: Option<SavedState>,
    },
    State {
        id: u64,
        state: SavedState,
    },
    Closed {
        id: u64,
    },
}
