//! Limits on the parts of a request. They hold for every way into the engine: HTTP, gRPC, loaded and forked
//! sessions.

use djinn_engine::{Class, SavedFile, SavedState};

use super::sampling::SamplingSpec;
use crate::{ServeError, config::ServerLimits};

/// Tokens to generate if neither the client nor the model sets a limit.
pub const MAX_TOKENS_DEFAULT: usize = 256;
/// Largest number of edits of a session.
pub const EDITS_MAX: usize = 256;
/// Largest number of captures of a session.
const CAPTURES_MAX: usize = 256;
/// Largest number of breakpoints of a session.
pub const BREAKPOINTS_MAX: usize = 256;
/// Largest number of stop strings.
pub const STOP_STRINGS_MAX: usize = 16;
/// Largest length of a stop string in bytes.
const STOP_STRING_BYTES_MAX: usize = 1024;
/// Largest number of alternatives reported with a token.
pub const LOGPROBS_MAX: usize = 128;
/// Largest number of tokens with a logit bias.
const LOGIT_BIAS_MAX: usize = 1024;
/// Largest number of tokens that end a turn.
const EOS_MAX: usize = 1024;
/// Largest number of captures, edits or breakpoints of a saved session, which lists every hook that a
/// pattern matched.
const SAVED_PROBE_MAX: usize = 1 << 16;
/// Largest length of a capture in bytes.
const CAPTURE_TEXT_BYTES_MAX: usize = 4096;
/// Largest number of tokens that one call turns into text.
const DETOKENIZE_MAX: usize = 1 << 20;
/// Largest text in bytes that one call turns into tokens without a session.
const TOKENIZE_BYTES_MAX: usize = 4 << 20;

/// Returns an error if a request has more items of a kind than the limit.
pub(super) fn check_count(
    field: &str,
    what: &str,
    count: usize,
    limit: usize,
) -> Result<(), ServeError> {
    match count > limit {
        true => Err(ServeError::out_of_range(
            field,
            format!("The request has {count} {what}, but the limit is {limit}"),
        )),
        false => Ok(()),
    }
}

/// Checks stop strings: none is empty, and neither their number nor their length exceeds a limit.
pub fn check_stop(stop: &[String]) -> Result<(), ServeError> {
    if stop.iter().any(String::is_empty) {
        let error = "A stop string is empty; leave it out";
        return Err(ServeError::out_of_range("stop", error));
    }
    let longest = stop.iter().map(String::len).max().unwrap_or(0);
    check_count("stop", "stop strings", stop.len(), STOP_STRINGS_MAX)?;
    check_count(
        "stop",
        "bytes in a stop string",
        longest,
        STOP_STRING_BYTES_MAX,
    )
}

/// Checks the sizes of sampling parameters.
pub fn check_sampling(sampling: &SamplingSpec) -> Result<(), ServeError> {
    let logprobs = sampling.logprobs.unwrap_or(0);
    check_count("logprobs", "logprobs", logprobs, LOGPROBS_MAX)?;
    let biased = sampling.logit_bias.len();
    check_count(
        "logit_bias",
        "tokens with a logit bias",
        biased,
        LOGIT_BIAS_MAX,
    )
}

/// Checks the number and the length of captures.
pub(super) fn check_captures(captures: &[String]) -> Result<(), ServeError> {
    let longest = captures.iter().map(String::len).max().unwrap_or(0);
    check_count("djinn.captures", "captures", captures.len(), CAPTURES_MAX)?;
    let limit = CAPTURE_TEXT_BYTES_MAX;
    check_count("djinn.captures", "bytes in a capture", longest, limit)
}

/// Checks the number of tokens that one call turns into text.
pub fn check_detokenize(tokens: usize) -> Result<(), ServeError> {
    check_count("tokens", "tokens", tokens, DETOKENIZE_MAX)
}

/// Checks the length of a text that one call turns into tokens.
pub fn check_tokenize(bytes: usize) -> Result<(), ServeError> {
    check_count("text", "bytes of text", bytes, TOKENIZE_BYTES_MAX)
}

/// Applies the limits to a session from a file, which may contain anything: the limits of a new session, and
/// lease and deadline of the server.
pub fn admit_saved(mut file: SavedFile, limits: &ServerLimits) -> Result<SavedFile, ServeError> {
    let session = &mut file.session;
    if matches!(session.state, SavedState::Done { .. }) {
        let error = "The saved session has ended and cannot continue; open a new session";
        return Err(ServeError::Conflict(error.to_owned()));
    }
    check_stop(&session.stop)?;
    check_count("eos", "tokens that end a turn", session.eos.len(), EOS_MAX)?;
    check_sampling(&SamplingSpec {
        logprobs: session.sampling.logprobs,
        logit_bias: session.sampling.logit_bias.clone(),
        ..SamplingSpec::default()
    })?;
    if let Some(probe) = &session.probe {
        let counts = probe.counts();
        for (what, count) in [
            ("captures", counts.captures),
            ("edits", counts.edits),
            ("breakpoints", counts.breakpoints),
        ] {
            check_count(what, what, count, SAVED_PROBE_MAX)?;
        }
    }
    // Clients cannot ask for more than an interactive session gets.
    if session.class == Class::Realtime {
        session.class = Class::Interactive;
    }
    let (lease, longest) = (
        limits.lease.as_secs_f64(),
        limits.longest_lease.as_secs_f64(),
    );
    let asked = session.lease.filter(|lease| *lease >= 0.0);
    session.lease = Some(asked.unwrap_or(lease).min(longest));
    if !session.keep {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let end = (now.unwrap_or_default() + limits.deadline).as_secs_f64();
        session.deadline = Some(session.deadline.map_or(end, |deadline| deadline.min(end)));
    }
    Ok(file)
}
