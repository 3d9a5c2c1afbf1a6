//! Lookup of the model that `--model` names.

use std::fs;
use std::path::{Path, PathBuf};

use crate::record::DownloadRecord;
use crate::{HubError, ModelId, ModelPaths, checkpoint};

/// Location of a model on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resolved {
    /// Synthetic shape with its prefix `shape:`. A shape has no files.
    Shape(String),
    /// Folder of a checkpoint.
    Folder(PathBuf),
}

/// Finds the model that `reference` names: a `shape:`, a folder, or `org/name`. A name is looked up
/// among the models that Djinn pulled, then in the Hugging Face cache.
pub fn resolve(reference: &str) -> Result<Resolved, HubError> {
    resolve_with(reference, ModelPaths::from_env)
}

/// Finds a model as [`resolve`] does, in the given folders.
pub fn resolve_in(reference: &str, paths: &ModelPaths) -> Result<Resolved, HubError> {
    resolve_with(reference, || Ok(paths.clone()))
}

/// Finds a model. `paths` is called only for a name: a path works without a home folder.
fn resolve_with(
    reference: &str,
    paths: impl FnOnce() -> Result<ModelPaths, HubError>,
) -> Result<Resolved, HubError> {
    if reference.starts_with("shape:") {
        return Ok(Resolved::Shape(reference.to_owned()));
    }
    let path = PathBuf::from(reference);
    if path.is_dir() {
        return Ok(Resolved::Folder(path));
    }
    if path.exists() {
        return Err(HubError::NotAFolder { path });
    }
    if looks_like_a_path(reference) {
        return Err(HubError::NoSuchPath { path });
    }
    find(&reference.parse()?, &paths()?).map(Resolved::Folder)
}

/// Finds the folder of a hub model on this machine.
pub fn resolve_id(id: &ModelId, paths: &ModelPaths) -> Result<PathBuf, HubError> {
    find(id, paths)
}

/// Returns whether a reference is a path. Names of models have none of these features.
fn looks_like_a_path(reference: &str) -> bool {
    reference.starts_with(['/', '.', '~'])
        || reference.ends_with('/')
        || reference.contains('\\')
        || reference.matches('/').count() > 1 && !reference.contains("://")
}

/// Looks up a model in every folder. The error lists the folders and the reason for each.
fn find(id: &ModelId, paths: &ModelPaths) -> Result<PathBuf, HubError> {
    let mut searched = vec![format!("./{id}")];
    let hf = paths.hf_cache.as_ref().map(|cache| in_hf_cache(id, cache));
    for place in [Some(in_home(id, &paths.home)), hf].into_iter().flatten() {
        match place {
            Ok(folder) => return Ok(folder),
            Err(lack) => searched.push(lack),
        }
    }
    Err(HubError::NotFound {
        id: id.to_string(),
        searched,
    })
}

/// Looks up a model in Djinn's home folder. A folder without a record, such as a folder copied by
/// hand, is accepted if it has all files.
fn in_home(id: &ModelId, home: &Path) -> Result<PathBuf, String> {
    let folder = id.folder_in(home);
    let lack = |what: String| format!("{}: {what}", folder.display());
    if !folder.is_dir() {
        return Err(folder.display().to_string());
    }
    let record = DownloadRecord::load(&folder).map_err(|error| error.to_string())?;
    if record.is_some_and(|record| !record.complete) {
        return Err(lack("the download is incomplete".to_owned()));
    }
    match checkpoint::missing(&folder) {
        None => Ok(folder),
        Some(missing) => Err(lack(format!("no {missing}"))),
    }
}

/// Looks up a model in the Hugging Face cache: a branch is a file that contains a commit, and a
/// commit is a folder.
fn in_hf_cache(id: &ModelId, cache: &Path) -> Result<PathBuf, String> {
    let model = cache.join(id.hf_folder());
    let lack = |what: &str| format!("{}: {what}", model.display());
    if !model.is_dir() {
        return Err(model.display().to_string());
    }
    let commit = fs::read_to_string(model.join("refs/main")).map_err(|_| lack("no refs/main"))?;
    let commit = commit.trim();
    if commit.is_empty() || !commit.chars().all(|c| c.is_ascii_alphanumeric()) {
        return Err(lack("refs/main names no commit"));
    }
    let snapshot = model.join("snapshots").join(commit);
    match checkpoint::missing(&snapshot) {
        None => Ok(snapshot),
        Some(missing) => Err(lack(&format!("snapshots/{commit} has no {missing}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(root: &Path) -> ModelPaths {
        ModelPaths {
            home: root.join("djinn"),
            hf_cache: Some(root.join("hf")),
        }
    }

    fn put(folder: &Path, files: &[&str]) {
        fs::create_dir_all(folder).unwrap();
        for file in files {
            fs::write(folder.join(file), "{}").unwrap();
        }
    }

    fn record(folder: &Path, complete: bool) {
        let record = DownloadRecord {
            complete,
            ..DownloadRecord::default()
        };
        record.save(folder).unwrap();
    }

    #[test]
    fn shapes_are_returned_unchanged() {
        let shape = resolve_in("shape:llama-70b/2", &places(Path::new("/nowhere"))).unwrap();
        assert_eq!(shape, Resolved::Shape("shape:llama-70b/2".to_owned()));
    }

    #[test]
    fn folders_are_returned_unchanged() {
        let root = tempfile::tempdir().unwrap();
        let reference = root.path().to_str().unwrap();
        let found = resolve_in(reference, &places(root.path())).unwrap();
        assert_eq!(found, Resolved::Folder(root.path().to_owned()));
    }

    #[test]
    fn references_like_paths_give_errors_about_paths() {
        let root = tempfile::tempdir().unwrap();
        let nowhere = places(root.path());
        for path in [
            "/no/such/folder",
            "./x",
            "../x",
            "~/x",
            "a/b/c",
            "org/name/",
            "a\\b",
        ] {
            let error = resolve_in(path, &nowhere).unwrap_err();
            assert!(
                matches!(error, HubError::NoSuchPath { .. }),
                "{path}: {error}"
            );
        }
        let file = root.path().join("file");
        fs::write(&file, "").unwrap();
        let error = resolve_in(file.to_str().unwrap(), &nowhere).unwrap_err();
        assert!(matches!(error, HubError::NotAFolder { .. }), "{error}");
        for other in ["", "a b", "https://huggingface.co/org/name"] {
            let error = resolve_in(other, &nowhere).unwrap_err();
            assert!(matches!(error, HubError::BadId { .. }), "{other}: {error}");
        }
    }

    #[test]
    fn the_home_folder_takes_precedence_over_the_hugging_face_cache() {
        let root = tempfile::tempdir().unwrap();
        let places = places(root.path());
        let hf = root.path().join("hf/models--org--name");
        let snapshot = hf.join("snapshots/abc123");
        put(&snapshot, &[checkpoint::CONFIG, checkpoint::SINGLE]);
        put(&hf.join("refs"), &[]);
        fs::write(hf.join("refs/main"), "abc123\n").unwrap();
        let found = resolve_in("org/name", &places).unwrap();
        assert_eq!(found, Resolved::Folder(snapshot.clone()));

        let own = root.path().join("djinn/models/org/name");
        put(&own, &[checkpoint::CONFIG, checkpoint::SINGLE]);
        let found = || resolve_in("org/name", &places).unwrap();
        assert_eq!(found(), Resolved::Folder(own.clone()), "put there by hand");
        record(&own, false);
        assert_eq!(found(), Resolved::Folder(snapshot), "not finished");
        record(&own, true);
        assert_eq!(found(), Resolved::Folder(own), "pulled");
    }

    #[test]
    fn not_found_lists_the_searched_folders() {
        let root = tempfile::tempdir().unwrap();
        let own = root.path().join("djinn/models/org/name");
        put(&own, &[checkpoint::CONFIG]);
        let hf = root.path().join("hf/models--org--name");
        put(&hf.join("refs"), &[]);
        fs::write(hf.join("refs/main"), "../../elsewhere").unwrap();
        let error = resolve_in("org/name", &places(root.path())).unwrap_err();
        let HubError::NotFound { id, searched } = error else {
            panic!("{error}");
        };
        assert_eq!(id, "org/name");
        let expect = [
            "./org/name".to_owned(),
            format!("{}: no model.safetensors", own.display()),
            format!("{}: refs/main names no commit", hf.display()),
        ];
        assert_eq!(searched, expect);
    }

    /// Checks that the folder of an organisation is not mistaken for a model of the same name.
    #[test]
    fn organisations_are_not_models() {
        let root = tempfile::tempdir().unwrap();
        let own = root.path().join("djinn/models/gpt2/small");
        put(&own, &[checkpoint::CONFIG, checkpoint::SINGLE]);
        let error = resolve_in("gpt2", &places(root.path())).unwrap_err();
        let HubError::NotFound { searched, .. } = error else {
            panic!("{error}");
        };
        let folder = root.path().join("djinn/models/gpt2");
        assert!(searched.contains(&format!("{}: no config.json", folder.display())));
    }
}
