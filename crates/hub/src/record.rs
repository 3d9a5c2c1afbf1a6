//! What Djinn writes down about a model it pulled, beside the model's files.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::HubError;

/// Hidden, and no name a checkpoint's file can have.
const NAME: &str = ".djinn.json";

/// Which revision a folder holds, and which of its files are known to be right.
///
/// It is written after every file, so that an interrupted pull need not read back what it has.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The model.
    pub id: String,
    /// As it was asked for: a branch, a tag or a commit.
    pub revision: String,
    /// The commit that was then.
    pub sha: String,
    /// Whether every file of that commit arrived. Until then the folder is not a model.
    pub complete: bool,
    /// The files written here, or about to be.
    pub files: BTreeMap<String, Entry>,
}

/// One file: what it was verified to be, or nothing so far.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// Its size.
    pub bytes: u64,
    /// What identifies its content on the hub.
    pub content: String,
}

impl Record {
    /// The folder's record. One that cannot be understood is as good as none: the files are then
    /// verified again.
    pub(crate) fn load(folder: &Path) -> Result<Option<Self>, HubError> {
        let path = folder.join(NAME);
        match fs::read(&path) {
            Ok(text) => Ok(serde_json::from_slice(&text).ok()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(HubError::io("read", &path)(error)),
        }
    }

    /// Replaces the folder's record, whole or not at all.
    pub(crate) fn save(&self, folder: &Path) -> Result<(), HubError> {
        let path = folder.join(NAME);
        let new = folder.join(format!("{NAME}.new"));
        let write = HubError::io("write", &path);
        let text = serde_json::to_vec_pretty(self).map_err(std::io::Error::from);
        text.and_then(|text| fs::write(&new, text))
            .and_then(|()| fs::rename(&new, &path))
            .map_err(write)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comes_back_as_it_was_saved_and_forgives_damage() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Record::load(folder.path()).unwrap(), None);
        let mut record = Record {
            id: "o/n".to_owned(),
            complete: true,
            ..Record::default()
        };
        let entry = Entry {
            bytes: 3,
            content: "abc".to_owned(),
        };
        record.files.insert("config.json".to_owned(), entry);
        record.save(folder.path()).unwrap();
        assert_eq!(Record::load(folder.path()).unwrap(), Some(record));
        fs::write(folder.path().join(NAME), "{").unwrap();
        assert_eq!(Record::load(folder.path()).unwrap(), None);
    }
}
