//! Changes at hooks.

use djinn_wire::v1::{self, edit::Change};

use crate::tensor::Tensor;

/// A change at a hook: everywhere, until [`Edit::part`] and [`Edit::at`] say otherwise.
///
/// ```
/// use djinn_client::{Edit, Tensor};
///
/// let quieter = Edit::scale("blocks.*.hook_mlp_out", 0.5).at("generated");
/// let pushed = Edit::add("blocks.3.hook_resid_post", &Tensor::row(vec![0.1; 4]), 2.0).part("[0..4]");
/// let typed = Edit::text("blocks.4.hook_resid_post:scale=0.9@-1");
/// # let _ = (quieter, pushed, typed);
/// ```
#[derive(Clone, Debug)]
pub struct Edit(v1::Edit);

impl Edit {
    fn new(hook: impl Into<String>, change: Change) -> Self {
        Edit(v1::Edit {
            hook: hook.into(),
            change: Some(change),
            ..v1::Edit::default()
        })
    }

    /// As the command line has it: `HOOK[PART]:CHANGE[@POSITIONS]`. It cannot name files.
    pub fn text(text: impl Into<String>) -> Self {
        Edit::new("", Change::Text(text.into()))
    }

    /// Multiplies what is there.
    pub fn scale(hook: impl Into<String>, factor: f32) -> Self {
        Edit::new(hook, Change::Scale(factor))
    }

    /// Sets it to zero.
    pub fn zero(hook: impl Into<String>) -> Self {
        Edit::new(hook, Change::Zero(true))
    }

    /// Adds numbers, so many times.
    pub fn add(hook: impl Into<String>, tensor: &Tensor, factor: f32) -> Self {
        Edit::new(hook, Change::Add(add(tensor, factor)))
    }

    /// Adds numbers made as long as what is there, so many times.
    pub fn add_matched(hook: impl Into<String>, tensor: &Tensor, factor: f32) -> Self {
        Edit::new(hook, Change::AddMatched(add(tensor, factor)))
    }

    /// Puts numbers in its place.
    pub fn replace(hook: impl Into<String>, tensor: &Tensor) -> Self {
        Edit::new(hook, Change::Replace(tensor.into()))
    }

    /// Takes away what points along a direction.
    pub fn project_out(hook: impl Into<String>, tensor: &Tensor) -> Self {
        Edit::new(hook, Change::ProjectOut(tensor.into()))
    }

    /// Bounds it.
    pub fn clamp(hook: impl Into<String>, low: f32, high: f32) -> Self {
        Edit::new(hook, Change::Clamp(v1::Clamp { low, high }))
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

fn add(tensor: &Tensor, factor: f32) -> v1::AddTensor {
    v1::AddTensor {
        tensor: Some(tensor.into()),
        factor: Some(factor),
    }
}

impl From<Edit> for v1::Edit {
    fn from(edit: Edit) -> Self {
        edit.0
    }
}
