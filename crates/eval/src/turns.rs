//! Turns of sessions, with the times at which their tokens arrive.

use std::time::Instant;

use djinn_client::{
    Create, EventStream, FinishReason, ModelHandle, SessionHandle, TurnEvent, TurnOutput, v1,
};

use crate::{config::EvalConfig, error::EvalError};

/// Capture for comparisons with the reference: the logits at the last position of the prompt.
pub const LOGITS: &str = "logits@-1";

/// A turn with the times at which its tokens arrived.
pub struct TimedTurn {
    /// Result of the turn.
    pub turn: TurnOutput,
    /// Milliseconds from the request to the first token, if there was one.
    pub first_ms: Option<f64>,
    /// Milliseconds between consecutive tokens.
    pub gaps_ms: Vec<f64>,
    /// Milliseconds from the request to the end of the turn.
    pub total_ms: f64,
}

impl TimedTurn {
    /// Returns the captured logits.
    pub fn logits(&self) -> &[f32] {
        let logits = self.turn.captured.values().next();
        logits.map_or(&[], |tensor| &tensor.data)
    }
}

/// Collects the events of a turn whose request was sent at `begin`.
pub async fn timed(mut events: EventStream, begin: Instant) -> Result<TimedTurn, EvalError> {
    let mut turn = TurnOutput::new(events.opened().clone());
    let (mut first_ms, mut gaps_ms, mut last) = (None, Vec::new(), begin);
    while let Some(event) = events.next().await? {
        if let TurnEvent::Token(_) = event {
            let now = Instant::now();
            let gap = (now - last).as_secs_f64() * 1e3;
            match first_ms {
                None => first_ms = Some(gap),
                Some(_) => gaps_ms.push(gap),
            }
            last = now;
        }
        turn.take(event);
    }
    Ok(TimedTurn {
        turn,
        first_ms,
        gaps_ms,
        total_ms: begin.elapsed().as_secs_f64() * 1e3,
    })
}

/// Describes a session that samples as configured and does not stop at an end-of-text token.
pub fn session(config: &EvalConfig, model: &ModelHandle, tokens: Vec<u32>, count: u64) -> Create {
    let create = model
        .session()
        .tokens(tokens)
        .max_tokens(count)
        .ignore_eos();
    create.sampling(sampling(config))
}

/// Returns the configured sampling with a fixed seed, so that tokens are the same in every run.
fn sampling(config: &EvalConfig) -> v1::Sampling {
    let inference = &config.experiment.inference;
    v1::Sampling {
        temperature: Some(inference.temperature),
        top_p: inference.top_p,
        repetition_penalty: Some(1.0),
        seed: Some(1),
        ..v1::Sampling::default()
    }
}

/// Returns token ids spread over the vocabulary; each `number` gives another sequence.
pub fn synthetic_tokens(vocab: u64, count: u64, number: u64) -> Vec<u32> {
    let at = |i: u64| (i * 7919 + number * 104_729 + 1) % vocab;
    (0..count).map(|i| at(i) as u32).collect()
}

/// Returns an error unless the turn generated all of its tokens.
pub fn require_complete(turn: &TurnOutput) -> Result<(), EvalError> {
    let reason = match turn.finished() {
        Some(finished) if finished.reason() == FinishReason::Length => return Ok(()),
        Some(finished) if finished.failure.is_empty() => finished.why.clone(),
        Some(finished) => finished.failure.clone(),
        None => "the turn stopped at a breakpoint or the connection closed".to_owned(),
    };
    Err(EvalError::IncompleteTurn { reason })
}

/// Deletes a session, so that its memory is free for the next one, and returns the first error.
pub async fn delete_after<T>(
    session: &SessionHandle,
    result: Result<T, EvalError>,
) -> Result<T, EvalError> {
    let deleted = session.delete().await;
    let result = result?;
    deleted?;
    Ok(result)
}
