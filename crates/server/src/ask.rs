//! What a client asks of a session, whichever way it came, and the engine's request that becomes of it.

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use djinn_engine::{
    BreakSpec, Change, Class, EditSpec, Engine, Operand, Part, Positions, Probe, Request, Sampling,
    Tensor,
};
use djinn_model::{Generation, program::Program};
use djinn_wire::{numbers, v1};

use crate::{
    ServeError,
    config::Limits,
    host::{Words, check_captured},
};

/// Tokens to generate where neither client nor model says.
pub const MAX_TOKENS: usize = 256;

/// Edits, captures and breakpoints of a session at most, by how they are written.
pub const MOST: usize = 256;
/// Texts that may end a turn, and how long each may be.
pub const STOPS: usize = 16;
/// That.
const STOP_BYTES: usize = 1024;
/// Alternatives that are told of a token at most.
pub const LOGPROBS: usize = 128;
/// Characters of positions, parts, hooks and the like at most.
const WRITTEN: usize = 4096;

/// A session to open.
#[derive(Clone, Debug, Default)]
pub struct Ask {
    /// The prompt.
    pub tokens: Vec<u32>,
    /// Tokens to generate at most; as the model says when not said.
    pub max_tokens: Option<usize>,
    /// How they are chosen.
    pub sampling: SamplingAsk,
    /// Texts that end a turn.
    pub stop: Vec<String>,
    /// Whether tokens that end a text do not.
    pub ignore_eos: bool,
    /// What is read, as written.
    pub captures: Vec<String>,
    /// Where, unless they say.
    pub positions: Positions,
    /// What is changed.
    pub edits: Vec<EditSpec>,
    /// What is changed in its first turn alone.
    pub turn_edits: Vec<EditSpec>,
    /// Where to stop.
    pub breaks: Vec<BreakSpec>,
    /// Whether it waits for more afterwards.
    pub keep: bool,
    /// How long it stays unused.
    pub lease: Option<Duration>,
    /// How long it may take.
    pub deadline: Option<Duration>,
    /// How urgent it is.
    pub class: Class,
}

/// How tokens are chosen; what is not said is as the model recommends.
#[derive(Clone, Debug, Default)]
pub struct SamplingAsk {
    /// 0 is greedy.
    pub temperature: Option<f32>,
    /// Where neither the client nor the model says: greedy, unless told.
    pub unsaid_temperature: f32,
    /// Of the likeliest.
    pub top_k: Option<usize>,
    /// By their sum.
    pub top_p: Option<f32>,
    /// By their share of the likeliest.
    pub min_p: Option<f32>,
    /// Of tokens that are there.
    pub repetition_penalty: Option<f32>,
    /// Of tokens that were generated.
    pub presence_penalty: Option<f32>,
    /// As often as they were.
    pub frequency_penalty: Option<f32>,
    /// Of given tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// Drawn when not said.
    pub seed: Option<u64>,
    /// Alternatives to tell of.
    pub logprobs: Option<usize>,
}

impl SamplingAsk {
    /// What was asked for, then what the model recommends.
    pub fn settle(&self, model: &Generation) -> Sampling {
        let by_model = match model.do_sample {
            true => model.temperature,
            false => self.unsaid_temperature,
        };
        Sampling {
            temperature: self.temperature.unwrap_or(by_model),
            top_k: self.top_k.unwrap_or(model.top_k),
            top_p: self.top_p.unwrap_or(model.top_p),
            min_p: self.min_p.unwrap_or(model.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(model.repetition_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(0.0),
            frequency_penalty: self.frequency_penalty.unwrap_or(0.0),
            logit_bias: self.logit_bias.clone(),
            seed: self.seed.unwrap_or_else(fresh_seed),
            logprobs: self.logprobs,
        }
    }
}

impl SamplingAsk {
    /// The first field in which this asks for something else than a session does already.
    pub fn differs(&self, own: &Sampling) -> Option<&'static str> {
        fn other<T: PartialEq>(asked: Option<T>, own: T) -> bool {
            asked.is_some_and(|asked| asked != own)
        }
        let fields = [
            ("temperature", other(self.temperature, own.temperature)),
            ("top_k", other(self.top_k, own.top_k)),
            ("top_p", other(self.top_p, own.top_p)),
            ("min_p", other(self.min_p, own.min_p)),
            (
                "repetition_penalty",
                other(self.repetition_penalty, own.repetition_penalty),
            ),
            (
                "presence_penalty",
                other(self.presence_penalty, own.presence_penalty),
            ),
            (
                "frequency_penalty",
                other(self.frequency_penalty, own.frequency_penalty),
            ),
            ("seed", other(self.seed, own.seed)),
            (
                "logit_bias",
                !self.logit_bias.is_empty() && self.logit_bias != own.logit_bias,
            ),
        ];
        fields
            .into_iter()
            .find(|(_, differs)| *differs)
            .map(|(name, _)| name)
    }
}

/// A seed nobody chose, short enough to be typed again.
fn fresh_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |d| u64::from(d.subsec_nanos()) ^ d.as_secs()) % 1_000_000
}

impl Ask {
    /// Tokens that its turn may generate, in a session of so many positions: as many as are asked for,
    /// and where nobody says no more than there is room for.
    fn max_tokens(&self, model: &Generation, context: usize) -> usize {
        let by_model = model.max_new_tokens.or_else(|| {
            let length = model.max_length?;
            length.checked_sub(self.tokens.len()).filter(|&n| n > 0)
        });
        let room = (context + 1).saturating_sub(self.tokens.len()).max(1);
        self.max_tokens
            .unwrap_or_else(|| by_model.unwrap_or(MAX_TOKENS).min(room))
    }

    /// Refuses more than anybody asks for: each is looked at for every token.
    fn check_counts(&self) -> Result<(), ServeError> {
        let long = self.stop.iter().any(|stop| stop.len() > STOP_BYTES);
        let counts = [
            ("edits", self.edits.len() + self.turn_edits.len(), MOST),
            ("captures", self.captures.len(), MOST),
            ("breakpoints", self.breaks.len(), MOST),
            ("stop strings", self.stop.len(), STOPS),
            (
                "bytes of a stop string",
                if long { STOP_BYTES + 1 } else { 0 },
                STOP_BYTES,
            ),
            ("logprobs", self.sampling.logprobs.unwrap_or(0), LOGPROBS),
            (
                "tokens with a bias",
                self.sampling.logit_bias.len(),
                4 * MOST,
            ),
        ];
        match counts.into_iter().find(|(_, count, most)| count > most) {
            Some((what, _, most)) => Err(ServeError::TooLarge(format!("{most} {what} at most"))),
            None => Ok(()),
        }
    }

    /// Refuses to read a hook in two ways: only one would come back.
    fn check_captures(&self, program: &Program) -> Result<(), ServeError> {
        let mut seen = HashSet::new();
        for capture in &self.captures {
            check_written(capture)?;
            let one = Probe::new(program, &[capture], Positions::All, &[])?;
            for hook in one.captured_hooks() {
                if let Some(twice) = seen.replace(hook) {
                    return Err(ServeError::Invalid(format!(
                        "captures: '{twice}' is read twice; read it in another session too"
                    )));
                }
            }
        }
        Ok(())
    }

    /// The engine's request. Runs where the engine does, whose model says what can be asked.
    pub fn request(self, engine: &Engine, limits: &Limits) -> Result<Request, ServeError> {
        let (model, context) = (engine.model(), engine.blueprint().settings().context);
        let program = &model.program;
        self.check_counts()?;
        self.check_captures(program)?;
        let probe = Probe::new(program, &self.captures, self.positions.clone(), &self.edits)?;
        let probe = probe.with_turn_edits(program, &self.turn_edits)?;
        let probe = probe.with_breaks(program, &self.breaks)?;
        let max_tokens = self.max_tokens(&model.generation, context);
        let positions = self
            .tokens
            .len()
            .saturating_add(max_tokens.saturating_sub(1));
        let positions = positions.min(program.dims.context);
        let bytes = probe.captured_bytes(program, 0..positions, self.tokens.len());
        check_captured(bytes, limits.capture_bytes)?;
        let deadline = self.deadline.map(|d| d.min(limits.deadline));
        let deadline = deadline.or((!self.keep).then_some(limits.deadline));
        let lease = self.lease.unwrap_or(limits.lease).min(limits.longest_lease);
        Ok(Request {
            max_tokens,
            sampling: self.sampling.settle(&model.generation),
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
}

/// Seconds that came from somewhere: none that are negative, or are no number.
pub fn seconds(name: &str, seconds: f64) -> Result<Duration, ServeError> {
    // Longer than anybody waits, and far from the end of clocks.
    match Duration::try_from_secs_f64(seconds) {
        Ok(time) if seconds <= 1e9 => Ok(time),
        _ => Err(ServeError::Invalid(format!(
            "{name} = {seconds}: seconds, 0 or more"
        ))),
    }
}

/// The tokens of a prompt.
pub fn prompt(words: &Words, prompt: Option<v1::Prompt>) -> Result<Vec<u32>, ServeError> {
    match prompt.and_then(|prompt| prompt.what) {
        None => words.encode(""),
        Some(v1::prompt::What::Text(text)) => words.encode(&text),
        Some(v1::prompt::What::Tokens(tokens)) => Ok(tokens.ids),
        Some(v1::prompt::What::Chat(chat)) => {
            words.encode_chat(&messages(&chat), Default::default())
        }
    }
}

/// The tokens of what a session is told that goes on.
pub fn more(words: &Words, prompt: Option<v1::Prompt>) -> Result<Vec<u32>, ServeError> {
    match prompt.and_then(|prompt| prompt.what) {
        None => Ok(Vec::new()),
        Some(v1::prompt::What::Text(text)) if text.is_empty() => Ok(Vec::new()),
        Some(v1::prompt::What::Text(text)) => words.encode_more(&text),
        Some(v1::prompt::What::Tokens(tokens)) => Ok(tokens.ids),
        Some(v1::prompt::What::Chat(chat)) => {
            words.encode_chat(&messages(&chat), Default::default())
        }
    }
}

/// Messages as templates know them.
pub fn messages(chat: &v1::Chat) -> Vec<serde_json::Value> {
    let message = |m: &v1::ChatMessage| serde_json::json!({ "role": m.role, "content": m.content });
    chat.messages.iter().map(message).collect()
}

/// Refuses what nobody writes by hand.
fn check_written(text: &str) -> Result<(), ServeError> {
    match text.len() > WRITTEN {
        true => Err(ServeError::TooLarge(format!(
            "{WRITTEN} characters of positions or parts at most"
        ))),
        false => Ok(()),
    }
}

/// Positions as written; all where nothing is.
pub fn positions(text: &str) -> Result<Positions, ServeError> {
    check_written(text)?;
    match text {
        "" => Ok(Positions::All),
        text => text.parse().map_err(ServeError::Invalid),
    }
}

/// A part as written, in brackets or without; all where nothing is.
pub fn part(text: &str) -> Result<Part, ServeError> {
    check_written(text)?;
    let bare = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'));
    match bare.unwrap_or(text) {
        "" => Ok(Part::default()),
        text => text.parse().map_err(ServeError::Invalid),
    }
}

/// An edit as written. It cannot name files: those would be the server's.
pub fn edit_text(text: &str) -> Result<EditSpec, ServeError> {
    let edit: EditSpec = text.parse().map_err(djinn_engine::EngineError::from)?;
    match edit.change.operand() {
        Some(Operand::File { .. }) => Err(ServeError::Invalid(format!(
            "edit '{text}': files are not read here; send the numbers, as add=[0.1,-2] or as a tensor"
        ))),
        _ => Ok(edit),
    }
}

/// Edits as they travel.
pub fn edits(edits: Vec<v1::Edit>) -> Result<Vec<EditSpec>, ServeError> {
    if edits.len() > MOST {
        return Err(ServeError::TooLarge(format!("{MOST} edits at most")));
    }
    edits.into_iter().map(edit).collect()
}

fn edit(edit: v1::Edit) -> Result<EditSpec, ServeError> {
    use v1::edit::Change as Wire;
    let operand = |tensor: Option<v1::Tensor>| {
        let tensor = tensor.ok_or_else(|| {
            ServeError::Invalid(format!("edit at '{}': its tensor is missing", edit.hook))
        })?;
        let (shape, data) = numbers(&tensor)?;
        Ok::<_, ServeError>(Operand::Tensor(Arc::new(Tensor { shape, data })))
    };
    let change = match edit.change {
        Some(Wire::Text(text)) => return edit_text(&text),
        Some(Wire::Scale(factor)) => Change::Scale(factor),
        Some(Wire::Zero(_)) => Change::Zero,
        Some(Wire::Add(add)) => Change::Add {
            factor: add.factor.unwrap_or(1.0),
            operand: operand(add.tensor)?,
        },
        Some(Wire::AddMatched(add)) => Change::AddMatched {
            factor: add.factor.unwrap_or(1.0),
            operand: operand(add.tensor)?,
        },
        Some(Wire::Replace(tensor)) => Change::Replace(operand(Some(tensor))?),
        Some(Wire::ProjectOut(tensor)) => Change::ProjectOut(operand(Some(tensor))?),
        Some(Wire::Clamp(clamp)) if clamp.low > clamp.high => {
            return Err(ServeError::Invalid(format!(
                "edit at '{}': clamp from {} to {}",
                edit.hook, clamp.low, clamp.high
            )));
        }
        Some(Wire::Clamp(clamp)) => Change::Clamp {
            low: clamp.low,
            high: clamp.high,
        },
        None => {
            return Err(ServeError::Invalid(format!(
                "edit at '{}': what it changes is missing",
                edit.hook
            )));
        }
    };
    Ok(EditSpec {
        hook: edit.hook,
        part: part(&edit.part)?,
        change,
        positions: positions(&edit.positions)?,
    })
}

/// Breakpoints as written.
pub fn breaks(texts: &[String]) -> Result<Vec<BreakSpec>, ServeError> {
    if texts.len() > MOST {
        return Err(ServeError::TooLarge(format!("{MOST} breakpoints at most")));
    }
    for text in texts {
        check_written(text)?;
    }
    let parse = |text: &String| text.parse::<BreakSpec>();
    let parsed: Result<_, _> = texts.iter().map(parse).collect();
    parsed.map_err(|error| djinn_engine::EngineError::from(error).into())
}

/// Sampling as it travels.
pub fn sampling(wanted: Option<v1::Sampling>) -> SamplingAsk {
    let wanted = wanted.unwrap_or_default();
    let mut logit_bias: Vec<(u32, f32)> = wanted.logit_bias.into_iter().collect();
    logit_bias.sort_by_key(|(token, _)| *token);
    SamplingAsk {
        temperature: wanted.temperature,
        unsaid_temperature: 0.0,
        top_k: wanted.top_k.map(|k| k as usize),
        top_p: wanted.top_p,
        min_p: wanted.min_p,
        repetition_penalty: wanted.repetition_penalty,
        presence_penalty: wanted.presence_penalty,
        frequency_penalty: wanted.frequency_penalty,
        logit_bias,
        seed: wanted.seed,
        logprobs: wanted.logprobs.map(|n| n as usize),
    }
}

#[cfg(test)]
mod tests {
    use super::{edit_text, part};

    #[test]
    fn no_edit_reads_a_file_of_the_server() {
        assert!(edit_text("blocks.0.hook_resid_post:scale=0.5").is_ok());
        assert!(edit_text("blocks.0.hook_resid_post:add=[0.5,1]").is_ok());
        for text in [
            "blocks.0.hook_resid_post:add=/etc/passwd",
            "blocks.0.hook_resid_post:replace=../x.safetensors#a",
            "blocks.0.hook_resid_post:project-out=x*2",
        ] {
            let error = edit_text(text).map(drop).map_err(|e| e.to_string());
            assert!(
                error.is_err_and(|e| e.contains("files are not read")),
                "{text}"
            );
        }
    }

    #[test]
    fn parts_with_or_without_brackets() {
        let same = |a: &str, b: &str| part(a).ok() == part(b).ok() && part(a).is_ok();
        assert!(same("[0..4]", "0..4"));
        assert!(same("", "[]"));
        assert!(part("[4..0]").is_err());
    }
}
