//! Edits and steering vectors of flags, as a server and as an engine take them.

use djinn_analysis::{AnalysisError, loaded_info, steering_edits, to_hook_edits};
use djinn_client::{HookEdit, ModelHandle};
use djinn_engine::EditSpec;

use crate::args::ChangeArgs;

/// Edits and steering vectors as a server takes them, in order.
pub async fn edits(model: &ModelHandle, args: &ChangeArgs) -> Result<Vec<HookEdit>, AnalysisError> {
    if args.edit.is_empty() && args.steer.is_empty() {
        return Ok(Vec::new());
    }
    let info = loaded_info(model).await?;
    let dims = info.dims.unwrap_or_default();
    let size = (dims.blocks as usize, dims.d_model as usize);
    let mut edits = Vec::new();
    for spec in edit_specs(&info.name, size, args)? {
        edits.extend(to_hook_edits(model, spec).await?);
    }
    Ok(edits)
}

/// Edits and steering vectors as an engine takes them, in order.
pub fn local_edits(
    model: &djinn_model::Model,
    args: &ChangeArgs,
) -> Result<Vec<EditSpec>, AnalysisError> {
    let dims = &model.program.dims;
    edit_specs(&model.name, (dims.blocks, dims.d_model), args)
}

/// Edits and steering vectors for a model with this number of blocks and width of the residual.
fn edit_specs(
    model: &str,
    size: (usize, usize),
    args: &ChangeArgs,
) -> Result<Vec<EditSpec>, AnalysisError> {
    let mut edits = args.edit.clone();
    for steer in &args.steer {
        edits.extend(steering_edits(&steer.file, steer.factor, model, size)?);
    }
    Ok(edits)
}
