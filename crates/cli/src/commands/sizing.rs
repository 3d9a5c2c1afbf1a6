//! Layouts of an engine in process, so that a command needs no more memory than it uses.

use djinn_engine::{
    ContextDemand, Count, Positions, Probe, Request, Sampling, SessionDemand, Settings, SizeRange,
};
use djinn_model::Model;
use djinn_terminal::Failure;

use super::{connection::SizeFn, edits::local_edits, prompt::local_tokens};
use crate::args::{ChangeArgs, PromptArgs, SamplingArgs};

/// Tokens to generate when neither flag nor model sets a limit.
const MAX_TOKENS: usize = 256;

/// Session to lay an engine out for.
#[derive(Clone)]
pub struct PromptSize {
    /// Prompt of the session.
    pub prompt: PromptArgs,
    /// Tokens to generate; by default the model's own limit.
    pub max_tokens: Option<usize>,
    /// Hooks to capture.
    pub captures: Vec<String>,
    /// Positions of captures that name none.
    pub positions: Positions,
    /// Edits and steering vectors.
    pub changes: ChangeArgs,
    /// Stop strings.
    pub stop: Vec<String>,
    /// Sampling that flags set, checked before the model is loaded.
    pub sampling: Option<SamplingArgs>,
}

impl PromptSize {
    /// Session without captures and edits.
    pub fn new(prompt: PromptArgs) -> Self {
        PromptSize {
            prompt,
            max_tokens: None,
            captures: Vec::new(),
            positions: Positions::All,
            changes: ChangeArgs::default(),
            stop: Vec::new(),
            sampling: None,
        }
    }

    fn request(&self, model: &Model) -> Result<Request, Failure> {
        let tokens = local_tokens(model, &self.prompt)?;
        let edits = local_edits(model, &self.changes)?;
        let generation = &model.generation;
        // A limit on the whole text includes the prompt.
        let by_model = generation.max_new_tokens.or_else(|| {
            let length = generation.max_length?;
            length.checked_sub(tokens.len()).filter(|&n| n > 0)
        });
        Ok(Request {
            max_tokens: self.max_tokens.or(by_model).unwrap_or(MAX_TOKENS),
            probe: Probe::new(
                &model.program,
                &self.captures,
                self.positions.clone(),
                &edits,
            )?,
            stop: self.stop.clone(),
            sampling: self.sampling.as_ref().map(sampling).unwrap_or_default(),
            tokens,
            ..Request::default()
        })
    }
}

/// Layout for one session.
pub fn one_prompt(size: PromptSize, rows: Option<usize>) -> SizeFn {
    prompts(vec![size], rows)
}

/// Layout for several sessions at once.
pub fn prompts(sizes: Vec<PromptSize>, rows: Option<usize>) -> SizeFn {
    Box::new(move |model| {
        let requests = sizes.iter().map(|size| size.request(model));
        let requests = requests.collect::<Result<Vec<_>, _>>()?;
        Ok(SizeRange::for_requests(model, &requests, rows)?)
    })
}

/// Sampling of an engine, with its own defaults where flags set none.
fn sampling(args: &SamplingArgs) -> Sampling {
    let default = Sampling::default();
    Sampling {
        temperature: args.temperature.unwrap_or(default.temperature),
        top_k: args.top_k.unwrap_or(default.top_k),
        top_p: args.top_p.unwrap_or(default.top_p),
        min_p: args.min_p.unwrap_or(default.min_p),
        repetition_penalty: args
            .repetition_penalty
            .unwrap_or(default.repetition_penalty),
        presence_penalty: args.presence_penalty.unwrap_or(default.presence_penalty),
        frequency_penalty: args.frequency_penalty.unwrap_or(default.frequency_penalty),
        logit_bias: args.logit_bias.clone(),
        ..default
    }
}

/// Layout for one session that may use the whole context and any hook, as saved sessions do.
pub fn one_saved_session(size: PromptSize, rows: Option<usize>) -> SizeFn {
    Box::new(move |model| {
        let request = size.request(model)?;
        let positions = request.tokens.len().saturating_add(request.max_tokens);
        let demand = SessionDemand {
            context: ContextDemand::Free(positions),
            probes: true,
            ..interactive(None, rows)
        };
        Ok(SizeRange::for_sessions(&model.program, demand)?)
    })
}

/// Sessions of one user, of which one runs at a time.
pub fn interactive(context: Option<usize>, rows: Option<usize>) -> SessionDemand {
    SessionDemand {
        context: context.map_or(ContextDemand::Free(1), ContextDemand::Set),
        batch: Count::UpTo(1),
        open: 1,
        rows: Count::or(rows, Settings::ROWS),
        probes: false,
        full_sessions: 1,
        together: false,
    }
}
