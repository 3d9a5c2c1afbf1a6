//! What sessions are asked, and how long their answers take.

use std::time::Instant;

use djinn_client::{Create, EventStream, ModelHandle, SessionHandle, TurnEvent, TurnOutput, v1};

use crate::{Config, EvalError};

/// What is read to compare with: the logits at the prompt's last position.
pub const LOGITS: &str = "logits@-1";

/// A turn with its times.
pub struct Timed {
    /// What came of it.
    pub turn: TurnOutput,
    /// Milliseconds from asking to the first token, where there was one.
    pub first_ms: Option<f64>,
    /// From one token to the next.
    pub gaps_ms: Vec<f64>,
    /// From asking to the end.
    pub total_ms: f64,
}

impl Timed {
    /// The logits that were read.
    pub fn logits(&self) -> &[f32] {
        let logits = self.turn.captured.values().next();
        logits.map_or(&[], |tensor| &tensor.data)
    }
}

/// Follows a turn that was asked for at `begin` to its end.
pub async fn timed(mut events: EventStream, begin: Instant) -> Result<Timed, EvalError> {
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
    Ok(Timed {
        turn,
        first_ms,
        gaps_ms,
        total_ms: begin.elapsed().as_secs_f64() * 1e3,
    })
}

/// A session that generates as the configuration says, and goes on past what ends a text.
pub fn session(config: &Config, model: &ModelHandle, tokens: Vec<u32>, count: u64) -> Create {
    let asked = model
        .session()
        .tokens(tokens)
        .max_tokens(count)
        .ignore_eos();
    asked.sampling(sampling(config))
}

/// The same seed gives the same tokens, whatever the temperature.
fn sampling(config: &Config) -> v1::Sampling {
    let inference = &config.experiment.inference;
    v1::Sampling {
        temperature: Some(inference.temperature),
        top_p: inference.top_p,
        repetition_penalty: Some(1.0),
        seed: Some(1),
        ..v1::Sampling::default()
    }
}

/// Ids spread over the vocabulary, other ones for every number.
pub fn some_tokens(vocab: u64, count: u64, number: u64) -> Vec<u32> {
    let at = |i: u64| (i * 7919 + number * 104_729 + 1) % vocab;
    (0..count).map(|i| at(i) as u32).collect()
}

/// Refuses a turn that did not generate all it was to: what is cut short is never the same as anything.
pub fn whole(turn: &TurnOutput) -> Result<(), EvalError> {
    match turn.finished() {
        Some(finished) if finished.why == "length" => Ok(()),
        Some(finished) if finished.failure.is_empty() => {
            Err(EvalError::Asked(format!("it ended by {}", finished.why)))
        }
        Some(finished) => Err(EvalError::Asked(finished.failure.clone())),
        None => Err(EvalError::Asked("it stopped in the middle".to_owned())),
    }
}

/// Ends a session whatever became of it, so that the next has its place; what went wrong first is told.
pub async fn ended<T>(session: &SessionHandle, came: Result<T, EvalError>) -> Result<T, EvalError> {
    let deleted = session.delete().await;
    let came = came?;
    deleted?;
    Ok(came)
}
