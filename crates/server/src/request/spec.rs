//! Specification of sessions to open, and their admission.

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};

use djinn_engine::{BreakSpec, CheckedRequest, Class, EditSpec, Positions, Probe, Request};
use djinn_model::{Generation, program::Program};

use super::{
    limits::{
        BREAKPOINTS_MAX, EDITS_MAX, MAX_TOKENS_DEFAULT, check_captures, check_count,
        check_sampling, check_stop,
    },
    sampling::SamplingSpec,
};
use crate::{ServeError, config::ServerLimits, engine_thread::LoadedModel};

/// Specification of the sessions of a request, as a client sends it.
#[derive(Clone, Debug, Default)]
pub struct SessionSpec {
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

/// Checks a specification against the limits and the model, and makes the engine's requests: `choices`
/// sessions for every prompt, which differ by their seeds. Runs away from the engine thread, because its
/// time grows with the request.
pub fn admit(
    model: &LoadedModel,
    limits: &ServerLimits,
    spec: &SessionSpec,
    prompts: &[Arc<[u32]>],
    choices: usize,
) -> Result<Vec<CheckedRequest>, ServeError> {
    spec.check()?;
    let (checker, generation) = (&model.facts.checker, &model.tokenizer.generation);
    let program = checker.program();
    for prompt in prompts {
        model.tokenizer.check_token_count(prompt.len())?;
    }
    check_distinct_captures(&spec.captures, program)?;
    let probe = Probe::new(program, &spec.captures, spec.positions.clone(), &spec.edits)?;
    let probe = probe.with_turn_edits(program, &spec.turn_edits)?;
    let probe = probe.with_breaks(program, &spec.breakpoints)?;
    let sampling = spec.sampling.resolve(generation);
    let context = model.facts.limits.context as usize;
    let (mut requests, mut captured) = (Vec::with_capacity(prompts.len() * choices), 0u64);
    for prompt in prompts {
        let max_tokens = spec.max_tokens(prompt.len(), generation, context);
        for choice in 0..choices {
            let mut sampling = sampling.clone();
            sampling.seed = sampling.seed.wrapping_add(choice as u64);
            let checked = checker.check(Request {
                tokens: prompt.to_vec(),
                max_tokens,
                sampling,
                probe: probe.clone(),
                ..spec.request(generation, limits)
            })?;
            captured = captured.saturating_add(checked.captured_bytes());
            limits.check_captured(captured)?;
            requests.push(checked);
        }
    }
    Ok(requests)
}

/// Checks the tokens of another turn of a session, and returns the limit of tokens to generate: the client's
/// limit, or the model's recommendation.
pub fn admit_turn_tokens(
    model: &LoadedModel,
    tokens: usize,
    max_tokens: Option<usize>,
) -> Result<usize, ServeError> {
    model.tokenizer.check_token_count(tokens)?;
    let recommended = model.tokenizer.generation.max_new_tokens;
    let max_tokens = max_tokens.or(recommended).unwrap_or(MAX_TOKENS_DEFAULT);
    // No turn is longer than the context. The sum of tokens cannot overflow after this.
    Ok(max_tokens.min(model.facts.limits.context as usize + 1))
}

impl SessionSpec {
    /// Checks everything that does not depend on the model.
    fn check(&self) -> Result<(), ServeError> {
        check_stop(&self.stop)?;
        check_sampling(&self.sampling)?;
        check_captures(&self.captures)?;
        let edits = self.edits.len() + self.turn_edits.len();
        check_count("djinn.edits", "edits", edits, EDITS_MAX)?;
        let breaks = self.breakpoints.len();
        check_count("breakpoints", "breakpoints", breaks, BREAKPOINTS_MAX)
    }

    /// Parts of the engine's request that all sessions of the specification share.
    fn request(&self, generation: &Generation, limits: &ServerLimits) -> Request {
        let deadline = self.deadline.map(|d| d.min(limits.deadline));
        let deadline = deadline.or((!self.keep).then_some(limits.deadline));
        let lease = self.lease.unwrap_or(limits.lease).min(limits.longest_lease);
        Request {
            eos: match self.ignore_eos {
                true => Vec::new(),
                false => generation.eos.clone(),
            },
            stop: self.stop.clone(),
            class: self.class,
            keep: self.keep,
            transient: !self.keep,
            deadline: deadline.and_then(|d| Instant::now().checked_add(d)),
            lease: Some(lease),
            ..Request::default()
        }
    }

    /// Limit of tokens to generate: the client's limit, or the model's limit cut to the context.
    fn max_tokens(&self, prompt: usize, model: &Generation, context: usize) -> usize {
        let recommended = model.max_new_tokens.or_else(|| {
            let length = model.max_length?;
            length.checked_sub(prompt).filter(|&n| n > 0)
        });
        let room = (context + 1).saturating_sub(prompt).max(1);
        self.max_tokens
            .unwrap_or_else(|| recommended.unwrap_or(MAX_TOKENS_DEFAULT).min(room))
    }
}

/// Rejects two captures of the same hook, because a reply has one tensor per hook.
fn check_distinct_captures(captures: &[String], program: &Program) -> Result<(), ServeError> {
    let mut seen = HashSet::new();
    for capture in captures {
        let probe = Probe::new(program, &[capture], Positions::All, &[])?;
        for hook in probe.captured_hooks() {
            if let Some(twice) = seen.replace(hook) {
                return Err(ServeError::out_of_range(
                    "djinn.captures",
                    format!(
                        "Two captures read the hook '{twice}': use one capture, or a second session"
                    ),
                ));
            }
        }
    }
    Ok(())
}
