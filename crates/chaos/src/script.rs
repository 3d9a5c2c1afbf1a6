//! The inputs of a session. The same inputs give the same tokens on every server.

use djinn_client::{Create, Generate, HookEdit, ModelHandle, Resume, v1};

/// Input of a session.
#[derive(Clone, Debug)]
pub enum ScriptStep {
    /// Opens the session and runs its first turn.
    Open(OpenStep),
    /// Appends tokens and runs another turn.
    Turn(TurnStep),
    /// Continues in a fork with its own seed.
    Fork(u64),
    /// Continues in a copy that was saved and loaded.
    Reload,
}

/// First input of a session.
#[derive(Clone, Debug)]
pub struct OpenStep {
    /// Prompt.
    pub prompt: Vec<u32>,
    /// Tokens to generate.
    pub max_tokens: usize,
    /// Seed of the sampler.
    pub seed: u64,
    /// Whether every turn edits an activation.
    pub is_edited: bool,
    /// Breakpoints.
    pub breakpoints: Vec<String>,
}

/// Further input of a session.
#[derive(Clone, Debug)]
pub struct TurnStep {
    /// Tokens to append; never empty, so that an append that happened can be recognised.
    pub tokens: Vec<u32>,
    /// Tokens to generate.
    pub max_tokens: usize,
    /// Whether this turn edits an activation.
    pub is_edited: bool,
}

/// Sampling with a seed, so that tokens differ between sessions and repeat in a replay.
pub fn sampling(seed: u64) -> v1::Sampling {
    v1::Sampling {
        temperature: Some(0.8),
        top_p: Some(0.95),
        seed: Some(seed),
        ..v1::Sampling::default()
    }
}

impl OpenStep {
    /// Request that opens the session. End-of-text tokens do not end a turn, so the length of
    /// every turn is known in advance.
    pub fn request(&self, model: &ModelHandle) -> Create {
        let mut create = model
            .session()
            .tokens(self.prompt.clone())
            .max_tokens(self.max_tokens as u64)
            .sampling(sampling(self.seed))
            .ignore_eos()
            .keep();
        if self.is_edited {
            create = create.edit(HookEdit::scale("blocks.2.hook_mlp_out", 0.9));
        }
        for breakpoint in &self.breakpoints {
            create = create.breakpoint(breakpoint);
        }
        create
    }
}

impl TurnStep {
    /// Request that runs the turn.
    pub fn request(&self) -> Generate {
        let turn = Generate::new()
            .tokens(self.tokens.clone())
            .max_tokens(self.max_tokens as u64);
        match self.is_edited {
            true => turn.edit(HookEdit::scale("blocks.1.hook_attn_out", 0.8)),
            false => turn,
        }
    }
}

/// Request that resumes a session from a breakpoint. The position decides on the edit.
pub fn resume_at(paused: &v1::Paused) -> Resume {
    match paused.position % 3 {
        0 => Resume::new(),
        1 => Resume::new().edit(HookEdit::scale(&paused.hook, 0.97)),
        _ => Resume::new().edit(HookEdit::clamp(&paused.hook, -2.0, 2.0)),
    }
}
