//! Specification of a session to open.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use djinn_engine::{BreakSpec, Class, EditSpec, Engine, Positions, Probe, Request};
use djinn_model::{Generation, program::Program};

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
/// Largest length of a capture in bytes.
const CAPTURE_TEXT_BYTES_MAX: usize = 4096;

/// Specification of a session to open, as a client requests it.
#[derive(Clone, Debug, Default)]
pub struct SessionSpec {
    /// Tokens of the prompt.
    pub tokens: Vec<u32>,
    /// Limit of tokens to generate; `None` takes the model's recommendation.
    pub max_tokens: Option<usize>,
    /// Sampling parameters.
    pub sampling: SamplingSpec,
    /// Texts that end a turn.
    pub stop: Vec<String>,
    /// Whether generation continues past end-of-text tokens.
    pub ignore_eos: bool,
    /// Captures: `HOOK[PART][@POSITIONS][|REDUCTION]`.
    pub captures: Vec<String>,
    /// Positions of captures that have none of their own.
    pub positions: Positions,
    /// Edits of every turn.
    pub edits: Vec<EditSpec>,
    /// Edits of the first turn only.
    pub turn_edits: Vec<EditSpec>,
    /// Breakpoints.
    pub breakpoints: Vec<BreakSpec>,
    /// Whether the session stays open after its turn.
    pub keep: bool,
    /// Time that an unused session stays open; `None` takes the server's default.
    pub lease: Option<Duration>,
    /// Time limit of the session; `None` takes the server's default.
    pub deadline: Option<Duration>,
    /// Scheduling class.
    pub class: Class,
}

impl SessionSpec {
    /// Builds the engine's request. This runs on the engine thread, because the model decides
    /// which values are valid.
    pub fn into_request(
        self,
        engine: &Engine,
        limits: &ServerLimits,
    ) -> Result<Request, ServeError> {
        let (model, context) = (engine.model(), engine.blueprint().settings().context);
        let program = &model.program;
        self.check_counts()?;
        self.check_captures(program)?;
        let probe = Probe::new(program, &self.captures, self.positions.clone(), &self.edits)?;
        let probe = probe.with_turn_edits(program, &self.turn_edits)?;
        let probe = probe.with_breaks(program, &self.breakpoints)?;
        let max_tokens = self.max_tokens(&model.generation, context);
        let positions = self
            .tokens
            .len()
            .saturating_add(max_tokens.saturating_sub(1));
        let positions = positions.min(program.dims.context);
        let bytes = probe.captured_bytes(program, 0..positions, self.tokens.len());
        limits.check_captured(bytes)?;
        let deadline = self.deadline.map(|d| d.min(limits.deadline));
        let deadline = deadline.or((!self.keep).then_some(limits.deadline));
        let lease = self.lease.unwrap_or(limits.lease).min(limits.longest_lease);
        Ok(Request {
            max_tokens,
            sampling: self.sampling.resolve(&model.generation),
            eos: match self.ignore_eos {
                true => Vec::new(),
                false => model.generation.eos.clone(),
            },
            tokens: self.tokens,
            stop: self.stop,
            probe,
            class: self.class,
            keep: self.keep,
            transient: !self.keep,
            owner: String::new(),
            deadline: deadline.and_then(|d| Instant::now().checked_add(d)),
            lease: Some(lease),
        })
    }

    /// Limit of tokens to generate: the client's limit, or the model's limit cut to the context.
    fn max_tokens(&self, model: &Generation, context: usize) -> usize {
        let recommended = model.max_new_tokens.or_else(|| {
            let length = model.max_length?;
            length.checked_sub(self.tokens.len()).filter(|&n| n > 0)
        });
        let room = (context + 1).saturating_sub(self.tokens.len()).max(1);
        self.max_tokens
            .unwrap_or_else(|| recommended.unwrap_or(MAX_TOKENS_DEFAULT).min(room))
    }

    /// Rejects more items than any client needs, because the engine checks each item for every
    /// token.
    fn check_counts(&self) -> Result<(), ServeError> {
        let longest_stop = self.stop.iter().map(String::len).max().unwrap_or(0);
        let longest_capture = self.captures.iter().map(String::len).max().unwrap_or(0);
        let counts = [
            ("edits", self.edits.len() + self.turn_edits.len(), EDITS_MAX),
            ("captures", self.captures.len(), CAPTURES_MAX),
            (
                "bytes in a capture",
                longest_capture,
                CAPTURE_TEXT_BYTES_MAX,
            ),
            ("breakpoints", self.breakpoints.len(), BREAKPOINTS_MAX),
            ("stop strings", self.stop.len(), STOP_STRINGS_MAX),
            (
                "bytes in a stop string",
                longest_stop,
                STOP_STRING_BYTES_MAX,
            ),
            (
                "logprobs",
                self.sampling.logprobs.unwrap_or(0),
                LOGPROBS_MAX,
            ),
            (
                "tokens with a logit bias",
                self.sampling.logit_bias.len(),
                LOGIT_BIAS_MAX,
            ),
        ];
        match counts.into_iter().find(|(_, count, limit)| count > limit) {
            Some((what, count, limit)) => Err(ServeError::TooLarge(format!(
                "The request has {count} {what}, but the limit is {limit}"
            ))),
            None => Ok(()),
        }
    }

    /// Rejects two captures of the same hook, because a reply has one tensor per hook.
    fn check_captures(&self, program: &Program) -> Result<(), ServeError> {
        let mut seen = HashSet::new();
        for capture in &self.captures {
            let probe = Probe::new(program, &[capture], Positions::All, &[])?;
            for hook in probe.captured_hooks() {
                if let Some(twice) = seen.replace(hook) {
                    return Err(ServeError::Invalid(format!(
                        "Two captures read the hook '{twice}': use one capture, or a second session"
                    )));
                }
            }
        }
        Ok(())
    }
}
