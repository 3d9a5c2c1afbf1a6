//! Changes as flags say them, as a server takes them: files are read here, and their numbers sent.

use djinn_client::{HookEdit, ModelHandle, TensorData, v1};
use djinn_engine::{Change, EditSpec, Operand, read_tensors};

use crate::{args::ChangeArgs, commands::steer::changes_of, failure::Failure};

/// Everything that flags change on the way, in order.
pub async fn edits(model: &ModelHandle, args: &ChangeArgs) -> Result<Vec<HookEdit>, Failure> {
    if args.edit.is_empty() && args.steer.is_empty() {
        return Ok(Vec::new());
    }
    let told = model.info().await?;
    let dims = told.dims.unwrap_or_default();
    let size = (dims.blocks as usize, dims.d_model as usize);
    let mut edits = Vec::new();
    for spec in changes_of(&told.name, size, args)? {
        edits.extend(sent(model, spec).await?);
    }
    Ok(edits)
}

/// One change, or one for each hook where each takes the tensor of its name.
pub async fn sent(model: &ModelHandle, spec: EditSpec) -> Result<Vec<HookEdit>, Failure> {
    let takes_its_own = matches!(
        spec.change.operand(),
        Some(Operand::File { name: None, .. })
    );
    if !takes_its_own || !spec.hook.contains('*') {
        return Ok(vec![edit(&spec)?]);
    }
    let hooks: Vec<v1::Hook> = model.hooks(&spec.hook).await?;
    let at = |hook: v1::Hook| EditSpec {
        hook: hook.name,
        ..spec.clone()
    };
    hooks.into_iter().map(|hook| edit(&at(hook))).collect()
}

fn edit(spec: &EditSpec) -> Result<HookEdit, Failure> {
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

/// The numbers of an operand: of a file the tensor that is named, or the only one, or the hook's.
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
                    "{}: has no tensor '{name}'; name one with #NAME",
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
