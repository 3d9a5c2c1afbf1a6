//! Edits and steering vectors, as a server takes them.

use std::{path::Path, sync::Arc};

use djinn_client::{HookEdit, ModelHandle, TensorData, v1};
use djinn_engine::{Change, EditSpec, Operand, read_tensors};
use djinn_model::Site;
use djinn_vectors::Steering;

use crate::AnalysisError;

/// Converts an edit to edits of the protocol. An edit that takes the tensor named as its hook becomes one
/// edit for each hook that its pattern matches. Files are read here, and their numbers are sent.
pub async fn to_hook_edits(
    model: &ModelHandle,
    spec: EditSpec,
) -> Result<Vec<HookEdit>, AnalysisError> {
    let by_hook_name = matches!(
        spec.change.operand(),
        Some(Operand::File { name: None, .. })
    );
    if !by_hook_name || !spec.hook.contains('*') {
        return Ok(vec![to_hook_edit(&spec)?]);
    }
    let hooks: Vec<v1::Hook> = model.hooks(&spec.hook).await?;
    let at_hook = |hook: v1::Hook| EditSpec {
        hook: hook.name,
        ..spec.clone()
    };
    hooks
        .into_iter()
        .map(|hook| to_hook_edit(&at_hook(hook)))
        .collect()
}

/// Converts an edit with one operand.
pub(crate) fn to_hook_edit(spec: &EditSpec) -> Result<HookEdit, AnalysisError> {
    let hook = spec.hook.as_str();
    let numbers = |operand: &Operand| numbers(operand, hook);
    let edit = match &spec.change {
        Change::Scale(factor) => HookEdit::scale(hook, *factor),
        Change::Zero => HookEdit::zero(hook),
        Change::Add { operand, factor } => HookEdit::add(hook, &numbers(operand)?, *factor),
        Change::AddMatched { operand, factor } => {
            HookEdit::add_matched(hook, &numbers(operand)?, *factor)
        }
        Change::Replace(operand) => HookEdit::replace(hook, &numbers(operand)?),
        Change::ProjectOut(operand) => HookEdit::project_out(hook, &numbers(operand)?),
        Change::Clamp { low, high } => HookEdit::clamp(hook, *low, *high),
    };
    let positions = spec.positions.to_string();
    Ok(edit.at(positions).part(spec.part.to_string()))
}

/// Numbers of an operand. Of a file: the named tensor, the only one, or the one named as the hook.
fn numbers(operand: &Operand, hook: &str) -> Result<TensorData, AnalysisError> {
    let tensor = match operand {
        Operand::Inline(numbers) => return Ok(TensorData::row(numbers.clone())),
        Operand::Tensor(tensor) => (**tensor).clone(),
        Operand::File { path, name } => {
            let mut tensors = read_tensors(path)?;
            let only = tensors.keys().next().filter(|_| tensors.len() == 1);
            let name = name.as_deref().or(only.map(String::as_str)).unwrap_or(hook);
            let name = name.to_owned();
            let path = path.clone();
            tensors
                .remove(&name)
                .ok_or(AnalysisError::NoTensor { path, name })?
        }
    };
    Ok(TensorData {
        shape: tensor.shape,
        data: tensor.data,
    })
}

/// Edits that add a steering vector from a file, multiplied by a factor, to a model with this name, number
/// of blocks and width of the residual.
pub fn steering_edits(
    file: &Path,
    factor: f32,
    model: &str,
    (blocks, d_model): (usize, usize),
) -> Result<Vec<EditSpec>, AnalysisError> {
    let vector = Steering::read(file)?;
    let mismatch = |reason: String| AnalysisError::VectorMismatch {
        path: file.to_owned(),
        reason,
    };
    if vector.width() != d_model {
        return Err(mismatch(format!(
            "directions have {} numbers, but the residual of {model} has {d_model}; use a vector made for {model}",
            vector.width(),
        )));
    }
    let edit = |(&block, direction): (&usize, &Vec<f32>)| {
        if block >= blocks {
            return Err(mismatch(format!(
                "has a direction for block {block}, but {model} has {blocks} blocks; use a vector made for {model}"
            )));
        }
        let operand = Operand::Tensor(Arc::new(djinn_engine::Tensor {
            shape: vec![direction.len()],
            data: direction.clone(),
        }));
        let change = Change::Add { operand, factor };
        Ok(EditSpec::at(Site::ResidPost(block), change))
    };
    vector.directions().iter().map(edit).collect()
}
