//! The folder a model comes to lie in.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Pull;
use super::listing::RemoteFile;
use super::part;
use crate::HubError;
use crate::record::{Entry, Record};

const PARTS: &str = ".parts";
const LOCK: &str = ".lock";

/// A folder that this process alone writes, and its record.
pub(super) struct Folder {
    pub path: PathBuf,
    record: Mutex<Record>,
    /// Holds the lock for as long as it is open.
    _lock: File,
}

impl Folder {
    /// Takes the folder, or says that someone else has it.
    pub(super) fn claim(request: &Pull) -> Result<Self, HubError> {
        let path = request.id.folder_in(&request.home);
        let parts = path.join(PARTS);
        fs::create_dir_all(&parts).map_err(HubError::io("make", &parts))?;
        let lock_path = path.join(LOCK);
        let lock = File::create(&lock_path).map_err(HubError::io("make", &lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(HubError::Busy { path }),
            Err(TryLockError::Error(error)) => return Err(HubError::io("lock", &lock_path)(error)),
        }
        Ok(Self {
            record: Mutex::new(Record::load(&path)?.unwrap_or_default()),
            path,
            _lock: lock,
        })
    }

    /// Whether the file is here already. A file the record does not know, because it was put here by
    /// hand or the record was lost, is read and hashed: that beats downloading it.
    pub(super) fn holds(&self, file: &RemoteFile) -> Result<bool, HubError> {
        let place = self.path.join(&file.name);
        let Ok(found) = fs::metadata(&place) else {
            return Ok(false);
        };
        let bytes = found.len();
        if !found.is_file() || file.bytes.is_some_and(|want| want != bytes) {
            return Ok(false);
        }
        let known = self.record().files.get(&file.name).cloned();
        match known.filter(|known| known.bytes == bytes) {
            Some(known) => Ok(known.content == file.content),
            None if part::is_whole(&place, file)? => self.keep(file, bytes).map(|()| true),
            None => Ok(false),
        }
    }

    /// Before the first byte: says that the folder is not a model for now, and that the disk can
    /// take what comes.
    pub(super) fn begin(&self, wanted: &[&RemoteFile]) -> Result<(), HubError> {
        let left = |file: &&RemoteFile| {
            let here = fs::metadata(self.part(file)).map_or(0, |part| part.len());
            file.bytes.unwrap_or(0).saturating_sub(here)
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
        // Whatever is found under these names after a crash is not what the record knew.
        for file in wanted {
            record.files.insert(file.name.clone(), Entry::default());
        }
        record.save(&self.path)
    }

    /// Where the file grows. Its content is part of the name, so that what is left of one version is
    /// never continued with another.
    pub(super) fn part(&self, file: &RemoteFile) -> PathBuf {
        let flat = file.name.replace('/', "--");
        let content = file.content.get(..12).unwrap_or(&file.content);
        self.path.join(PARTS).join(format!("{flat}.{content}.part"))
    }

    /// Where the file belongs once it is whole.
    pub(super) fn place(&self, file: &RemoteFile) -> Result<PathBuf, HubError> {
        let place = self.path.join(&file.name);
        let parent = place.parent().unwrap_or(&self.path);
        fs::create_dir_all(parent).map_err(HubError::io("make", parent))?;
        Ok(place)
    }

    /// Writes down that the file is in its place.
    pub(super) fn keep(&self, file: &RemoteFile, bytes: u64) -> Result<(), HubError> {
        let entry = Entry {
            bytes,
            content: file.content.clone(),
        };
        let mut record = self.record();
        record.files.insert(file.name.clone(), entry);
        record.save(&self.path)
    }

    /// Every file is here: drops what an older revision had and this one has not, and writes down
    /// that the folder is a model.
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

    fn record(&self) -> MutexGuard<'_, Record> {
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

/// The bytes that this user may still write on the folder's disk.
fn free(folder: &Path) -> Result<u64, HubError> {
    let disk = rustix::fs::statvfs(folder).map_err(|error| {
        let ask = HubError::io("ask for the free space of", folder);
        ask(error.into())
    })?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}
