//! Changes at hooks.

use djinn_wire::v1::{self, edit::Change};

use crate::tensor::TensorData;

/// A change at a hook: everywhere, until [`HookEdit::part`] and [`HookEdit::at`] say otherwise.
///
/// ```
/// use djinn_client::{HookEdit, TensorData};
///
/// let quieter = HookEdit::scale("blocks.*.hook_mlp_out", 0.5).at("generated");
/// let pushed = HookEdit::add("blocks.3.hook_resid_post", &TensorData::row(vec![0.1; 4]), 2.0).part("[0..4]");
/// let typed = HookEdit::text("blocks.4.hook_resid_post:scale=0.9@-1");
/// # let _ = (quieter, pushed, typed);
/// ```
#[derive(Clone, Debug)]
pub struct HookEdit(v1::Edit);

impl HookEdit {
    fn new(hook: impl Into<String>, change: Change) -> Self {
        HookEdit(v1::Edit {
            hook: hook.into(),
            change: Some(change),
            ..v1::Edit::default()
        })
    }

    /// As the command line has it: `HOOK[PART]:CHANGE[@POSITIONS]`. It cannot name files.
    pub fn text(text: impl Into<String>) -> Self {
        HookEdit::new("", Change::Text(text.into()))
    }

    /// Multiplies what is there.
    pub fn scale(hook: impl Into<String>, factor: f32) -> Self {
        HookEdit::new(hook, Change::Scale(factor))
    }

    /// Sets it to zero.
    pub fn zero(hook: impl Into<String>) -> Self {
        HookEdit::new(hook, Change::Zero(true))
    }

    /// Adds numbers, so many times.
    pub fn add(hook: impl Into<String>, tensor: &TensorData, factor: f32) -> Self {
        HookEdit::new(hook, Change::Add(add(tensor, factor)))
    }

    /// Adds numbers made as long as what is there, so many times.
    pub fn add_matched(hook: impl Into<String>, tensor: &TensorData, factor: f32) -> Self {
        HookEdit::new(hook, Change::AddMatched(add(tensor, factor)))
    }

    /// Puts numbers in its place.
    pub fn replace(hook: impl Into<String>, tensor: &TensorData) -> Self {
        HookEdit::new(hook, Change::Replace(tensor.into()))
    }

    /// Takes away what points along a direction.
    pub fn project_out(hook: impl Into<String>, tensor: &TensorData) -> Self {
        HookEdit::new(hook, Change::ProjectOut(tensor.into()))
    }

    /// Bounds it.
    pub fn clamp(hook: impl Into<String>, low: f32, high: f32) -> Self {
        HookEdit::new(hook, Change::Clamp(v1::Clamp { low, high }))
    }

    /// At some positions alone: `prompt`, `generated`, `0,3,-1`, `2..5`.
    pub fn at(mut self, positions: impl Into<String>) -> Self {
        self.0.positions = positions.into();
        self
    }

    /// Of some heads or elements alone: `[3]`, `[0..64]`.
    pub fn part(mut self, part: impl Into<String>) -> Self {
        self.0.part = part.into();
        self
    }
}

fn add(tensor: &TensorData, factor: f32) -> v1::AddTensor {
    v1::AddTensor {
        tensor: Some(tensor.into()),
        factor: Some(factor),
    }
}

impl From<HookEdit> for v1::Edit {
    fn from(edit: HookEdit) -> Self {
        edit.0
    }
}
