//! What a turn comes to, gathered: a choice of an answer.

use std::collections::BTreeMap;

use djinn_engine::{Finish, Logprob, Tensor};

use crate::{
    ServeError,
    host::{Told, Turn},
};

/// One of the answers.
#[derive(Default)]
pub struct Choice {
    /// What was generated.
    pub text: String,
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// Of each itself and its alternatives, when asked for.
    pub logprobs: Vec<Vec<Logprob>>,
    /// Why it ended.
    pub finish: Option<Finish>,
    /// What was read.
    pub captured: BTreeMap<String, Tensor>,
}

impl Choice {
    /// Takes in what happened.
    pub fn take(&mut self, told: Told) -> Result<(), ServeError> {
        match told {
            Told::Token {
                token,
                text,
                logprobs,
                ..
            } => {
                self.text.push_str(&text);
                self.tokens.push(token);
                if !logprobs.is_empty() {
                    self.logprobs.push(logprobs);
                }
            }
            Told::Captured(name, tensor) => drop(self.captured.insert(name, tensor)),
            Told::Finished {
                finish,
                failure,
                text,
                ..
            } => {
                check(finish, failure)?;
                self.text.push_str(&text);
                self.finish = Some(finish);
            }
            Told::Paused { at, .. } => {
                return Err(ServeError::Conflict(format!(
                    "the session stopped at {}",
                    at.site
                )));
            }
            Told::Replaced => {
                return Err(ServeError::Conflict(
                    "the session was closed, or is followed from elsewhere".to_owned(),
                ));
            }
        }
        Ok(())
    }

    /// Follows a turn to its end.
    pub async fn of(mut turn: Turn) -> Result<Self, ServeError> {
        let mut choice = Choice::default();
        while let Some(told) = turn.next().await {
            choice.take(told)?;
        }
        match choice.finish {
            Some(_) => Ok(choice),
            None => Err(turn.host.gone()),
        }
    }
}

/// An error where a turn did not end as turns do.
pub fn check(finish: Finish, failure: Option<String>) -> Result<(), ServeError> {
    match finish {
        Finish::Length | Finish::Context | Finish::Eos | Finish::Stop => Ok(()),
        Finish::Deadline => Err(ServeError::Timeout("its time is up".to_owned())),
        Finish::Lease => Err(ServeError::Conflict("its lease ran out".to_owned())),
        Finish::NotANumber => Err(ServeError::Internal(
            "the model computed something that is not a number: weights or edits are broken"
                .to_owned(),
        )),
        Finish::Failed => Err(ServeError::Internal(
            failure.unwrap_or_else(|| "the pass failed".to_owned()),
        )),
    }
}

/// Why it ended, as OpenAI says it.
pub fn reason(finish: Finish) -> &'static str {
    match finish {
        Finish::Eos | Finish::Stop => "stop",
        _ => "length",
    }
}
