//! Edits and steering vectors from flags, as an engine and as a server take them.

use std::sync::Arc;

use djinn_client::{HookEdit, ModelHandle, TensorData, v1};
use djinn_engine::{Change, EditSpec, Operand, read_tensors};
use djinn_model::Site;
use djinn_vectors::Steering;

use crate::{args::ChangeArgs, failure::Failure};

/// Edits and steering vectors as a server takes them, in order. Files are read here; their numbers are
/// sent.
pub async fn edits(model: &ModelHandle, args: &ChangeArgs) -> Result<Vec<HookEdit>, Failure> {
    if args.edit.is_empty() && args.steer.is_empty() {
        return Ok(Vec::new());
    }
    let info = model.info().await?;
    let dims = info.dims.unwrap_or_default();
    let size = (dims.blocks as usize, dims.d_model as usize);
    let mut edits = Vec::new();
    for spec in edit_specs(&info.name, size, args)? {
        edits.extend(wire_edits(model, spec).await?);
    }
    Ok(edits)
}

/// Edits of a specification: one, or one for each hook where each takes the tensor of its name.
pub async fn wire_edits(model: &ModelHandle, spec: EditSpec) -> Result<Vec<HookEdit>, Failure> {
    let by_hook_name = matches!(
        spec.change.operand(),
        Some(Operand::File { name: None, .. })
    );
    if !by_hook_name || !spec.hook.contains('*') {
        return Ok(vec![wire_edit(&spec)?]);
    }
    let hooks: Vec<v1::Hook> = model.hooks(&spec.hook).await?;
    let at = |hook: v1::Hook| EditSpec {
        hook: hook.name,
        ..spec.clone()
    };
    hooks.into_iter().map(|hook| wire_edit(&at(hook))).collect()
}

fn wire_edit(spec: &EditSpec) -> Result<HookEdit, Failure> {
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
fn numbers(operand: &Operand, hook: &str) -> Result<TensorData, Failure> {
    let tensor = match operand {
        Operand::Inline(numbers) => return Ok(TensorData::row(numbers.clone())),
        Operand::Tensor(tensor) => (**tensor).clone(),
        Operand::File { path, name } => {
            let mut tensors = read_tensors(path)?;
            let only = tensors.keys().next().filter(|_| tensors.len() == 1);
            let name = name.as_deref().or(only.map(String::as_str)).unwrap_or(hook);
            let name = name.to_owned();
            tensors.remove(&name).ok_or_else(|| {
                Failure::Message(format!(
                    "{}: no tensor '{name}'; name one with #NAME",
                    path.display()
                ))
            })?
        }
    };
    Ok(TensorData {
        shape: tensor.shape,
        data: tensor.data,
    })
}

/// Edits and steering vectors as an engine of this process takes them, in order.
pub fn local_edits(
    model: &djinn_model::Model,
    args: &ChangeArgs,
) -> Result<Vec<EditSpec>, Failure> {
    let dims = &model.program.dims;
    edit_specs(&model.name, (dims.blocks, dims.d_model), args)
}

/// Edits and steering vectors for a model with this number of blocks and width of the residual.
fn edit_specs(
    model: &str,
    (blocks, d_model): (usize, usize),
    args: &ChangeArgs,
) -> Result<Vec<EditSpec>, Failure> {
    let mut edits = args.edit.clone();
    for steer in &args.steer {
        let vector = Steering::read(&steer.file)?;
        let refuse = |reason: String| {
            Err(Failure::Message(format!(
                "{}: {reason}",
                steer.file.display()
            )))
        };
        if vector.width() != d_model {
            return refuse(format!(
                "directions have {} numbers, but the residual of {model} has {d_model}",
                vector.width(),
            ));
        }
        for (&block, direction) in vector.directions() {
            if block >= blocks {
                return refuse(format!(
                    "has a direction for block {block}, but {model} has {blocks} blocks"
                ));
            }
            let operand = Operand::Tensor(Arc::new(djinn_engine::Tensor {
                shape: vec![direction.len()],
                data: direction.clone(),
            }));
            let factor = steer.factor;
            edits.push(EditSpec::at(
                Site::ResidPost(block),
                Change::Add { operand, factor },
            ));
        }
    }
    Ok(edits)
}
