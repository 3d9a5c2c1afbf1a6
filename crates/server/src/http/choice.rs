//! One choice of an answer, collected from a turn's events.

use std::collections::BTreeMap;

use djinn_engine::{Finish, Logprob, SessionFailure, Tensor};

use crate::{
    ServeError,
    engine_thread::{SessionEvent, TurnStream},
};

/// One choice of an answer.
#[derive(Default)]
pub struct AnswerChoice {
    /// Generated text.
    pub text: String,
    /// Generated tokens.
    pub tokens: Vec<u32>,
    /// Log-probabilities of each token and its alternatives, if requested.
    pub logprobs: Vec<Vec<Logprob>>,
    /// Number of tokens that the prefix cache had.
    pub cached: usize,
    /// Reason for the end of the turn; `None` until it ends.
    pub finish: Option<Finish>,
    /// Captures by hook.
    pub captured: BTreeMap<String, Tensor>,
}

impl AnswerChoice {
    /// Collects a turn to its end.
    pub async fn collect(mut turn: TurnStream) -> Result<Self, ServeError> {
        let mut choice = AnswerChoice::default();
        while let Some(event) = turn.next().await {
            choice.add(event)?;
        }
        match choice.finish {
            Some(_) => Ok(choice),
            None => Err(turn.model.gone()),
        }
    }

    /// Bytes of the choice's captures, as a measure of the work to encode them.
    pub fn bytes(&self) -> usize {
        self.captured
            .values()
            .map(|tensor| 4 * tensor.data.len())
            .sum()
    }

    fn add(&mut self, event: SessionEvent) -> Result<(), ServeError> {
        match event {
            SessionEvent::Token {
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
            SessionEvent::Captured(name, tensor) => drop(self.captured.insert(name, tensor)),
            SessionEvent::Finished {
                finish,
                failure,
                text,
                cached,
                ..
            } => {
                check_finish(finish, failure)?;
                self.cached = cached;
                self.text.push_str(&text);
                self.finish = Some(finish);
            }
            SessionEvent::Paused { at, .. } => return Err(paused_error(&at)),
            SessionEvent::Replaced => return Err(ServeError::Replaced),
            SessionEvent::Interrupted(error) => return Err(error),
        }
        Ok(())
    }
}

/// Error of an HTTP request after its session stopped at a breakpoint.
pub fn paused_error(at: &djinn_engine::Paused) -> ServeError {
    ServeError::Conflict(format!(
        "The session stopped at the breakpoint {}; resume it over gRPC",
        at.site
    ))
}

/// Returns an error if a turn ended for any reason but length, end of text or a stop string.
pub fn check_finish(finish: Finish, failure: Option<SessionFailure>) -> Result<(), ServeError> {
    match finish {
        Finish::Length | Finish::Context | Finish::Eos | Finish::Stop => Ok(()),
        Finish::Deadline => Err(ServeError::Timeout(
            "The session reached its deadline; request fewer tokens, or a longer deadline"
                .to_owned(),
        )),
        Finish::Lease => Err(ServeError::Conflict(
            "The session's lease expired; open another session".to_owned(),
        )),
        Finish::NotANumber => Err(ServeError::Internal(
            "The model computed NaN: check the weights of the model and the edits of the session"
                .to_owned(),
        )),
        Finish::Failed => Err(match failure {
            Some(failure) => ServeError::SessionFailed(failure),
            None => ServeError::Internal("The pass failed".to_owned()),
        }),
    }
}

/// Reason for the end of a turn in OpenAI's terms.
pub fn finish_reason(finish: Finish) -> &'static str {
    match finish {
        Finish::Eos | Finish::Stop => "stop",
        _ => "length",
    }
}
