//! Folder that a model is downloaded into.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::listing::RemoteFile;
use super::partial_file;
use super::request::Pull;
use crate::error::HubError;
use crate::record::{DownloadRecord, RecordedFile};

const PARTS: &str = ".parts";
const LOCK: &str = ".lock";

/// Model folder that this process has locked, and its record.
pub(super) struct ModelFolder {
    pub path: PathBuf,
    record: Mutex<DownloadRecord>,
    /// Open file that holds the lock.
    _lock: File,
}

impl ModelFolder {
    /// Creates and locks the folder; fails if another process has locked it.
    pub(super) fn claim(request: &Pull) -> Result<Self, HubError> {
        let path = request.id.folder_in(&request.home);
        let parts = path.join(PARTS);
        fs::create_dir_all(&parts).map_err(HubError::io("create", &parts))?;
        let lock_path = path.join(LOCK);
        let lock = File::create(&lock_path).map_err(HubError::io("create", &lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(HubError::Busy { path }),
            Err(TryLockError::Error(error)) => return Err(HubError::io("lock", &lock_path)(error)),
        }
        Ok(Self {
            record: Mutex::new(DownloadRecord::load(&path)?.unwrap_or_default()),
            path,
            _lock: lock,
        })
    }

    /// Returns whether the folder has the file. A file without an entry in the record, such as a
    /// file copied by hand, is hashed instead of downloaded.
    pub(super) fn holds(&self, file: &RemoteFile) -> Result<bool, HubError> {
        let path = self.path.join(&file.name);
        let Ok(found) = fs::metadata(&path) else {
            return Ok(false);
        };
        let bytes = found.len();
        if !found.is_file() || file.bytes.is_some_and(|want| want != bytes) {
            return Ok(false);
        }
        let recorded = self.record().files.get(&file.name).cloned();
        match recorded.filter(|recorded| recorded.bytes == bytes) {
            Some(recorded) => Ok(recorded.content == file.content),
            None if partial_file::is_complete(&path, file)? => {
                self.keep(file, bytes).map(|()| true)
            }
            None => Ok(false),
        }
    }

    /// Prepares the download of files: checks the free space, and marks the folder as incomplete.
    pub(super) fn begin(&self, wanted: &[&RemoteFile]) -> Result<(), HubError> {
        let left = |file: &&RemoteFile| {
            let present = fs::metadata(self.part(file)).map_or(0, |part| part.len());
            file.bytes.unwrap_or(0).saturating_sub(present)
        };
        let need_bytes = wanted.iter().map(left).fold(0, u64::saturating_add);
        let free_bytes = free(&self.path)?;
        if need_bytes > free_bytes {
            return Err(HubError::NoSpace {
                path: self.path.clone(),
                need_bytes,
                free_bytes,
            });
        }
        let mut record = self.record();
        record.complete = false;
        // After a crash the content of these files is unknown.
        for file in wanted {
            record
                .files
                .insert(file.name.clone(), RecordedFile::default());
        }
        record.save(&self.path)
    }

    /// Returns the path of the partial file. The name contains the identifier of the content, so
    /// that a download never continues another version.
    pub(super) fn part(&self, file: &RemoteFile) -> PathBuf {
        let flat = file.name.replace('/', "--");
        let content = file.content.get(..12).unwrap_or(&file.content);
        self.path.join(PARTS).join(format!("{flat}.{content}.part"))
    }

    /// Returns the final path of a file and creates its parent folder.
    pub(super) fn final_path(&self, file: &RemoteFile) -> Result<PathBuf, HubError> {
        let path = self.path.join(&file.name);
        let parent = path.parent().unwrap_or(&self.path);
        fs::create_dir_all(parent).map_err(HubError::io("create", parent))?;
        Ok(path)
    }

    /// Records that a file is complete.
    pub(super) fn keep(&self, file: &RemoteFile, bytes: u64) -> Result<(), HubError> {
        let entry = RecordedFile {
            bytes,
            content: file.content.clone(),
        };
        let mut record = self.record();
        record.files.insert(file.name.clone(), entry);
        record.save(&self.path)
    }

    /// Removes files that only an older revision has, and records that the folder is complete.
    pub(super) fn complete(
        &self,
        request: &Pull,
        sha: &str,
        files: &[&RemoteFile],
    ) -> Result<PathBuf, HubError> {
        let mut record = self.record();
        let listed = |name: &String| files.iter().any(|file| file.name == *name);
        for stale in record.files.keys().filter(|name| !listed(name)) {
            remove(&self.path.join(stale))?;
        }
        record.files.retain(|name, _| listed(name));
        record.id = request.id.to_string();
        record.revision.clone_from(&request.revision);
        record.sha = sha.to_owned();
        record.complete = true;
        record.save(&self.path)?;
        let parts = self.path.join(PARTS);
        fs::remove_dir_all(&parts).map_err(HubError::io("remove", &parts))?;
        Ok(self.path.clone())
    }

    fn record(&self) -> MutexGuard<'_, DownloadRecord> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn remove(path: &Path) -> Result<(), HubError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(HubError::io("remove", path)(error))
        }
        _ => Ok(()),
    }
}

/// Returns the number of bytes that this user may write to the disk of a folder.
fn free(folder: &Path) -> Result<u64, HubError> {
    let disk = rustix::fs::statvfs(folder).map_err(|error| {
        let ask = HubError::io("read the free space of", folder);
        ask(error.into())
    })?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}
