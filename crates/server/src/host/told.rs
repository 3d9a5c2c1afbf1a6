//! What a session comes to, as its listener is told.

use std::time::Duration;

use djinn_engine::{Finish, Logprob, Paused, Tensor};

/// One thing that happened to a session.
#[derive(Debug)]
pub enum Told {
    /// It generated a token.
    Token {
        /// Which.
        token: u32,
        /// The text that this released.
        text: String,
        /// How many it had generated before.
        index: usize,
        /// The token and its alternatives, when asked for.
        logprobs: Vec<Logprob>,
    },
    /// What it read, by hook.
    Captured(String, Tensor),
    /// It stopped at a hook. Last.
    Paused {
        /// Where.
        at: Paused,
        /// What is there.
        shape: Vec<usize>,
        /// Since it was told to go on, or since its last token.
        took: Duration,
    },
    /// Its turn is over, or it is. Last.
    Finished {
        /// Why.
        finish: Finish,
        /// What went wrong, where something did.
        failure: Option<String>,
        /// Text that was held back.
        text: String,
        /// Tokens it has generated.
        generated: usize,
        /// Whether it waits for more.
        kept: bool,
    },
    /// Somebody else listens now. Last.
    Replaced,
}
