//! What `--model M` means.

use std::fs;
use std::path::{Path, PathBuf};

use crate::record::Record;
use crate::{HubError, ModelId, Places, checkpoint};

/// A model that is at hand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resolved {
    /// A synthetic shape, `shape:` included; it needs no files.
    Shape(String),
    /// The folder of a checkpoint.
    Folder(PathBuf),
}

/// Finds the model that `reference` names: a `shape:`, a folder, or `org/name` among the models that
/// Djinn pulled and then in the Hugging Face cache.
pub fn resolve(reference: &str) -> Result<Resolved, HubError> {
    resolve_with(reference, Places::from_env)
}

/// [`resolve`], with the places to look in given.
pub fn resolve_in(reference: &str, places: &Places) -> Result<Resolved, HubError> {
    resolve_with(reference, || Ok(places.clone()))
}

/// The places are asked for only once they are needed: a path works without a home.
fn resolve_with(
    reference: &str,
    places: impl FnOnce() -> Result<Places, HubError>,
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
    find(&reference.parse()?, &places()?).map(Resolved::Folder)
}

/// The folder of a hub model that is at hand, and nothing else of that name.
pub fn resolve_id(id: &ModelId, places: &Places) -> Result<PathBuf, HubError> {
    find(id, places)
}

/// No model's name has any of these.
fn looks_like_a_path(reference: &str) -> bool {
    reference.starts_with(['/', '.', '~'])
        || reference.ends_with('/')
        || reference.contains('\\')
        || reference.matches('/').count() > 1 && !reference.contains("://")
}

/// Looks in every place, and remembers what each lacked.
fn find(id: &ModelId, places: &Places) -> Result<PathBuf, HubError> {
    let mut looked = vec![format!("./{id}")];
    let hf = places.hf_cache.as_ref().map(|cache| in_hf_cache(id, cache));
    for place in [Some(in_home(id, &places.home)), hf].into_iter().flatten() {
        match place {
            Ok(folder) => return Ok(folder),
            Err(lack) => looked.push(lack),
        }
    }
    Err(HubError::NotHere {
        id: id.to_string(),
        looked: looked.join("; "),
    })
}

/// The model as Djinn pulled it, or as someone put it there by hand: then it has no record, and
/// having its files is enough.
fn in_home(id: &ModelId, home: &Path) -> Result<PathBuf, String> {
    let folder = id.folder_in(home);
    let lack = |what: String| format!("{}: {what}", folder.display());
    if !folder.is_dir() {
        return Err(folder.display().to_string());
    }
    let record = Record::load(&folder).map_err(|error| error.to_string())?;
    if record.is_some_and(|record| !record.complete) {
        return Err(lack("a download that was not finished".to_owned()));
    }
    match checkpoint::missing(&folder) {
        None => Ok(folder),
        Some(missing) => Err(lack(format!("no {missing}"))),
    }
}

/// The model as transformers leaves it: a branch is a file that holds a commit, and a commit is a
/// folder.
fn in_hf_cache(id: &ModelId, cache: &Path) -> Result<PathBuf, String> {
    let model = cache.join(id.hf_folder());
    let lack = |what: &str| format!("{}: {what}", model.display());
    if !model.is_dir() {
        return Err(model.display().to_string());
    }
    let commit = fs::read_to_string(model.join("refs/main")).map_err(|_| lack("no refs/main"))?;
    let commit = commit.trim();
    if commit.is_empty() || !commit.chars().all(|c| c.is_ascii_alphanumeric()) {
        return Err(lack("no commit in refs/main"));
    }
    let snapshot = model.join("snapshots").join(commit);
    match checkpoint::missing(&snapshot) {
        None => Ok(snapshot),
        Some(missing) => Err(lack(&format!("no {missing} in snapshots/{commit}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(root: &Path) -> Places {
        Places {
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
        let record = Record {
            complete,
            ..Record::default()
        };
        record.save(folder).unwrap();
    }

    #[test]
    fn a_shape_passes_through() {
        let shape = resolve_in("shape:llama-70b/2", &places(Path::new("/nowhere"))).unwrap();
        assert_eq!(shape, Resolved::Shape("shape:llama-70b/2".to_owned()));
    }

    #[test]
    fn a_folder_is_taken_as_it_is() {
        let root = tempfile::tempdir().unwrap();
        let reference = root.path().to_str().unwrap();
        let found = resolve_in(reference, &places(root.path())).unwrap();
        assert_eq!(found, Resolved::Folder(root.path().to_owned()));
    }

    #[test]
    fn what_looks_like_a_path_gets_an_error_about_paths() {
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
    fn djinn_comes_before_the_hugging_face_cache() {
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
    fn not_found_lists_where_it_looked_and_what_to_do() {
        let root = tempfile::tempdir().unwrap();
        let own = root.path().join("djinn/models/org/name");
        put(&own, &[checkpoint::CONFIG]);
        let hf = root.path().join("hf/models--org--name");
        put(&hf.join("refs"), &[]);
        fs::write(hf.join("refs/main"), "../../elsewhere").unwrap();
        let error = resolve_in("org/name", &places(root.path())).unwrap_err();
        let expect = format!(
            "org/name is not on this machine (looked in ./org/name; {}: no model.safetensors; {}: \
             no commit in refs/main): run `djinn pull org/name`",
            own.display(),
            hf.display(),
        );
        assert_eq!(error.to_string(), expect);
    }

    /// The folder of an organisation is not the old model of the same name.
    #[test]
    fn an_organisation_is_not_a_model() {
        let root = tempfile::tempdir().unwrap();
        let own = root.path().join("djinn/models/gpt2/small");
        put(&own, &[checkpoint::CONFIG, checkpoint::SINGLE]);
        let error = resolve_in("gpt2", &places(root.path())).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("djinn/models/gpt2: no config.json")
        );
    }
}
