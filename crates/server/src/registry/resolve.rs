//! Resolves the reference of a model to the folder or shape it names.

use std::path::PathBuf;

use super::{name::check_name, pushed::PushStore};
use crate::ServeError;

/// Sources that resolve references of models.
pub struct ModelSources<'a> {
    /// Models that clients pushed.
    pub pushed: &'a PushStore,
    /// Folders from which clients may register models.
    pub model_dirs: &'a [PathBuf],
}

impl ModelSources<'_> {
    /// Resolves a reference to a folder or a shape. Clients (`trusted` is false) may name hub
    /// ids, shapes, pushed models, and folders below `model_dirs`. The operator may name any
    /// folder.
    pub fn resolve(&self, reference: &str, trusted: bool) -> Result<String, ServeError> {
        if reference.starts_with("shape:") {
            return Ok(reference.to_owned());
        }
        if let Some(hash) = reference.strip_prefix("pushed:") {
            return Ok(path_text(self.pushed.folder(hash)?));
        }
        if !trusted {
            return self.resolve_for_client(reference);
        }
        Ok(match djinn_hub::resolve(reference)? {
            djinn_hub::Resolved::Shape(shape) => shape,
            djinn_hub::Resolved::Folder(folder) => path_text(folder),
        })
    }

    fn resolve_for_client(&self, reference: &str) -> Result<String, ServeError> {
        for dir in self.model_dirs {
            let (Ok(dir), Ok(folder)) = (dir.canonicalize(), dir.join(reference).canonicalize())
            else {
                continue;
            };
            if folder.starts_with(&dir) && folder != dir && folder.is_dir() {
                return Ok(path_text(folder));
            }
        }
        // A client can name no other path on this machine, because a hub id has exactly one
        // slash.
        let unknown = || {
            ServeError::NotFound(format!(
                "No model '{reference}': clients may name a hub id, shape:NAME, pushed:HASH, or a folder \
                 below the server's --model-dir"
            ))
        };
        check_name(reference).map_err(|_| unknown())?;
        if reference.matches('/').count() != 1 {
            return Err(unknown());
        }
        let id: djinn_hub::ModelId = reference.parse().map_err(|_| unknown())?;
        let paths = djinn_hub::ModelPaths::from_env()?;
        Ok(path_text(djinn_hub::resolve_id(&id, &paths)?))
    }
}

fn path_text(path: PathBuf) -> String {
    path.to_string_lossy().into_owned()
}
