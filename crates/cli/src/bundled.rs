//! Which model a command means, and the one it means when it says nothing.

use std::{
    env,
    path::{Path, PathBuf},
};

use djinn_hub::Resolved;
use djinn_model::Model;

use crate::failure::Failure;

/// Where the bundled model lies in the source tree.
const BUNDLED: &str = "models/stories-7m";

/// Opens the model a flag names, or the bundled one.
pub fn open(model: Option<&str>) -> Result<Model, Failure> {
    let reference = match model {
        Some(reference) => match djinn_hub::resolve(reference)? {
            Resolved::Shape(shape) => shape,
            Resolved::Folder(folder) => folder.to_string_lossy().into_owned(),
        },
        None => bundled()?.to_string_lossy().into_owned(),
    };
    Ok(Model::open(&reference)?)
}

/// The bundled model: above the program, or in the tree it was built from.
pub fn bundled() -> Result<PathBuf, Failure> {
    let program = env::current_exe().ok();
    let above = program.iter().flat_map(|p| p.ancestors().skip(1));
    let built_from = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    above
        .chain(built_from)
        .map(|folder| folder.join(BUNDLED))
        .find(|folder| folder.join("config.json").is_file())
        .ok_or_else(|| {
            Failure::Message(format!(
                "the bundled model ({BUNDLED}) is not near this program; name one with --model"
            ))
        })
}
