//! Edits of activations at hooks.

use djinn_wire::v1::{self, edit::Change};

use crate::tensor::TensorData;

/// Edit of the activation at a hook. The edit changes all elements and positions, unless
/// [`HookEdit::part`] or [`HookEdit::at`] restricts it.
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

    /// Edit in the syntax of the command line: `HOOK[PART]:CHANGE[@POSITIONS]`, without file names.
    pub fn text(text: impl Into<String>) -> Self {
        HookEdit::new("", Change::Text(text.into()))
    }

    /// Multiplies the activation by a factor.
    pub fn scale(hook: impl Into<String>, factor: f32) -> Self {
        HookEdit::new(hook, Change::Scale(factor))
    }

    /// Sets the activation to zero.
    pub fn zero(hook: impl Into<String>) -> Self {
        HookEdit::new(hook, Change::Zero(true))
    }

    /// Adds a tensor, multiplied by a factor.
    pub fn add(hook: impl Into<String>, tensor: &TensorData, factor: f32) -> Self {
        HookEdit::new(hook, Change::Add(add(tensor, factor)))
    }

    /// Adds a tensor that is scaled to the norm of the activation first, multiplied by a factor.
    pub fn add_matched(hook: impl Into<String>, tensor: &TensorData, factor: f32) -> Self {
        HookEdit::new(hook, Change::AddMatched(add(tensor, factor)))
    }

    /// Replaces the activation with a tensor.
    pub fn replace(hook: impl Into<String>, tensor: &TensorData) -> Self {
        HookEdit::new(hook, Change::Replace(tensor.into()))
    }

    /// Removes the component along a direction.
    pub fn project_out(hook: impl Into<String>, tensor: &TensorData) -> Self {
        HookEdit::new(hook, Change::ProjectOut(tensor.into()))
    }

    /// Limits every element to a range.
    pub fn clamp(hook: impl Into<String>, low: f32, high: f32) -> Self {
        HookEdit::new(hook, Change::Clamp(v1::Clamp { low, high }))
    }

    /// Restricts the edit to positions: `prompt`, `generated`, `0,3,-1` or `2..5`.
    pub fn at(mut self, positions: impl Into<String>) -> Self {
        self.0.positions = positions.into();
        self
    }

    /// Restricts the edit to heads or elements: `[3]` or `[0..64]`.
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
