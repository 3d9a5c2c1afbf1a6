//! Events and results of a session's turn.

use std::collections::BTreeMap;

use djinn_wire::v1;

use crate::tensor::TensorData;

/// Event of a session's turn.
#[derive(Clone, Debug, PartialEq)]
pub enum TurnEvent {
    /// The session generated a token.
    Token(v1::Token),
    /// A complete capture: name of the hook, and the values there.
    Captured(String, TensorData),
    /// The session stopped at a breakpoint. No event follows.
    Paused(v1::Paused),
    /// The turn ended. No event follows.
    Finished(v1::Finished),
}

/// Result of a whole turn.
#[derive(Clone, Debug)]
pub struct TurnOutput {
    /// First event of the turn.
    pub opened: v1::Opened,
    /// Generated tokens.
    pub tokens: Vec<u32>,
    /// Generated text.
    pub text: String,
    /// Log-probabilities of each token and its alternatives, if requested.
    pub logprobs: Vec<Vec<v1::Logprob>>,
    /// Captures by hook.
    pub captured: BTreeMap<String, TensorData>,
    /// End of the turn; `None` while the turn runs.
    pub end: Option<TurnEnd>,
}

/// Way in which a turn ended.
#[derive(Clone, Debug, PartialEq)]
pub enum TurnEnd {
    /// The session stopped at a breakpoint.
    Paused(v1::Paused),
    /// The turn finished.
    Finished(v1::Finished),
}

impl TurnOutput {
    /// Creates the result of a turn without events.
    pub fn new(opened: v1::Opened) -> Self {
        TurnOutput {
            opened,
            tokens: Vec::new(),
            text: String::new(),
            logprobs: Vec::new(),
            captured: BTreeMap::new(),
            end: None,
        }
    }

    /// Adds an event.
    pub fn take(&mut self, event: TurnEvent) {
        match event {
            TurnEvent::Token(token) => {
                self.tokens.push(token.id);
                self.text += &token.text;
                if !token.logprobs.is_empty() {
                    self.logprobs.push(token.logprobs);
                }
            }
            TurnEvent::Captured(name, tensor) => drop(self.captured.insert(name, tensor)),
            TurnEvent::Paused(paused) => self.end = Some(TurnEnd::Paused(paused)),
            TurnEvent::Finished(finished) => {
                self.text += &finished.text;
                self.end = Some(TurnEnd::Finished(finished));
            }
        }
    }

    /// Breakpoint at which the turn stopped, if any.
    pub fn paused(&self) -> Option<&v1::Paused> {
        match &self.end {
            Some(TurnEnd::Paused(paused)) => Some(paused),
            _ => None,
        }
    }

    /// End of the turn, if it finished.
    pub fn finished(&self) -> Option<&v1::Finished> {
        match &self.end {
            Some(TurnEnd::Finished(finished)) => Some(finished),
            _ => None,
        }
    }
}
