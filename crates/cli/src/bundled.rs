//! Lookup of a command's model; the bundled model is the default.

use std::{
    env,
    path::{Path, PathBuf},
};

use djinn_hub::Resolved;
use djinn_model::Model;
use djinn_terminal::Failure;

/// Folder of the bundled model in the source tree.
const BUNDLED: &str = "models/stories-7m";

/// Opens the model that a flag names, or the bundled one.
pub fn open(model: Option<&str>) -> Result<Model, Failure> {
    Ok(Model::open(&reference(model)?)?)
}

/// Folder or shape of the model that a flag names, or of the bundled one.
pub fn reference(model: Option<&str>) -> Result<String, Failure> {
    Ok(match model {
        Some(reference) => match djinn_hub::resolve(reference)? {
            Resolved::Shape(shape) => shape,
            Resolved::Folder(folder) => folder.to_string_lossy().into_owned(),
        },
        None => bundled()?.to_string_lossy().into_owned(),
    })
}

/// Folder of the bundled model: in a folder above the program, or in the source tree of the build.
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
                "the bundled model ({BUNDLED}) was not found above this program; name a model with --model"
            ))
        })
}
