//! Record of a download, stored beside the files of the model.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::HubError;

/// File name of the record. No file of a checkpoint has a name with a leading dot.
const NAME: &str = ".djinn.json";

/// Revision that a folder holds, and its verified files.
///
/// The record is saved after every file, so an interrupted pull does not verify its files again.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct DownloadRecord {
    /// Name of the model.
    pub id: String,
    /// Requested revision: a branch, a tag or a commit.
    pub revision: String,
    /// Commit that the revision referred to at the time of the download.
    pub sha: String,
    /// Whether every file of the commit is complete. Until then the folder is not a model.
    pub complete: bool,
    /// Files of the folder, complete or in progress.
    pub files: BTreeMap<String, RecordedFile>,
}

/// State of a file: size and content after verification, or defaults before.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct RecordedFile {
    /// Size in bytes.
    pub bytes: u64,
    /// Identifier of the content on the hub.
    pub content: String,
}

impl DownloadRecord {
    /// Reads the record of a folder. A damaged record counts as missing, so a pull verifies the
    /// files again.
    pub(crate) fn load(folder: &Path) -> Result<Option<Self>, HubError> {
        let path = folder.join(NAME);
        match fs::read(&path) {
            Ok(text) => Ok(serde_json::from_slice(&text).ok()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(HubError::io("read", &path)(error)),
        }
    }

    /// Replaces the record of a folder atomically.
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
    fn records_survive_saving_and_damage_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(DownloadRecord::load(folder.path()).unwrap(), None);
        let mut record = DownloadRecord {
            id: "o/n".to_owned(),
            complete: true,
            ..DownloadRecord::default()
        };
        let entry = RecordedFile {
            bytes: 3,
            content: "abc".to_owned(),
        };
        record.files.insert("config.json".to_owned(), entry);
        record.save(folder.path()).unwrap();
        assert_eq!(DownloadRecord::load(folder.path()).unwrap(), Some(record));
        fs::write(folder.path().join(NAME), "{").unwrap();
        assert_eq!(DownloadRecord::load(folder.path()).unwrap(), None);
    }
}
