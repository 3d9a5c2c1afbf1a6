//! Requests for one token, and the time until it arrives.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use djinn_client::{ModelHandle, TurnEvent, v1};

use crate::BenchError;

/// First token of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FirstToken {
    /// Seconds from the request to the token.
    pub seconds: f64,
    /// Tokens of the prompt that the prefix cache had.
    pub cached: u64,
    /// The token.
    pub id: u32,
}

/// Fails unless the context of a model has room for a prompt of `tokens` tokens and one more.
pub(crate) fn check_model_context(info: &v1::Model, tokens: usize) -> Result<(), BenchError> {
    let limits = info.limits.unwrap_or_default();
    let (needed, context) = (tokens + 1, limits.context as usize);
    match needed > context {
        true => Err(BenchError::Context { needed, context }),
        false => Ok(()),
    }
}

/// Returns tokens that no earlier call has returned.
pub(crate) fn new_prompt(info: &v1::Model, count: usize) -> Vec<u32> {
    let vocab = info.dims.map_or(0, |dims| dims.vocab);
    let time = SystemTime::now().duration_since(UNIX_EPOCH);
    let salt = time.map_or(0, |time| time.as_nanos() as u64);
    let at = |i: u64| (salt >> (8 * (i % 8))).wrapping_add(i * 7919) % vocab.max(1);
    (0..count as u64).map(|i| at(i) as u32).collect()
}

/// Sends a prompt in a session of its own, and waits for the first token.
pub(crate) async fn request(model: &ModelHandle, prompt: &[u32]) -> Result<FirstToken, BenchError> {
    let session = model.session().tokens(prompt.to_vec()).max_tokens(1);
    let (mut first, mut cached) = (None, 0);
    let began = Instant::now();
    let mut events = session.ignore_eos().open().await?;
    while let Some(event) = events.next().await? {
        match event {
            TurnEvent::Token(token) => {
                first.get_or_insert((began.elapsed().as_secs_f64(), token.id));
            }
            TurnEvent::Finished(finished) => cached = finished.cached_tokens,
            TurnEvent::Captured(..) | TurnEvent::Paused(_) => {}
        }
    }
    let (seconds, id) = first.ok_or(BenchError::StreamEnded)?;
    Ok(FirstToken {
        seconds,
        cached,
        id,
    })
}
