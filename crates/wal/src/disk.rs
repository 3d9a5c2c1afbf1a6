//! File helpers: durable folders, folder locks, and reads that detect the end of a file.

use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::WalError;

/// Returns a number that is unique within this process, for file names.
pub(crate) fn unique() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Returns the parent folder of a path.
pub(crate) fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => path,
    }
}

/// Creates a folder and its parents so that they survive a power cut.
pub(crate) fn create_folder(folder: &Path) -> Result<(), WalError> {
    if folder.is_dir() {
        return Ok(());
    }
    let parent = folder_of(folder);
    if parent != folder {
        create_folder(parent)?;
    }
    match fs::create_dir(folder) {
        // Another process created the folder meanwhile.
        Err(error) if error.kind() == ErrorKind::AlreadyExists && folder.is_dir() => {}
        made => made.map_err(WalError::system("create the folder", folder))?,
    }
    sync_folder(parent)
}

/// Waits until the file names in a folder are on disk. Syncing a file does not sync its name.
pub(crate) fn sync_folder(folder: &Path) -> Result<(), WalError> {
    File::open(folder)
        .and_then(|opened| opened.sync_all())
        .map_err(WalError::system("sync the folder", folder))
}

/// Fills `to` from a file. Fails with [`WalError::CutShort`] if the file ends before `to` is
/// full.
pub(crate) fn read_at(
    file: &File,
    path: &Path,
    to: &mut [u8],
    offset: u64,
) -> Result<(), WalError> {
    match file.read_exact_at(to, offset) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Err(WalError::CutShort {
            path: path.to_owned(),
            bytes: size(file, path)?,
            expected: offset.saturating_add(to.len() as u64),
        }),
        read => read.map_err(WalError::read(path)),
    }
}

/// Returns the size of a file in bytes.
pub(crate) fn size(file: &File, path: &Path) -> Result<u64, WalError> {
    let metadata = file.metadata().map_err(WalError::read(path))?;
    Ok(metadata.len())
}

/// Exclusive lock on a folder.
#[derive(Debug)]
pub(crate) struct FolderLock(File);

impl FolderLock {
    /// Locks a folder by the file `lock` in it. Fails if another process has locked the folder.
    pub(crate) fn take(folder: &Path) -> Result<FolderLock, WalError> {
        let path = folder.join("lock");
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(WalError::system("open", &path))?;
        match file.try_lock() {
            Ok(()) => Ok(FolderLock(file)),
            Err(TryLockError::WouldBlock) => Err(WalError::InUse {
                folder: folder.to_owned(),
            }),
            Err(TryLockError::Error(source)) => Err(WalError::system("lock", &path)(source)),
        }
    }
}

impl Drop for FolderLock {
    fn drop(&mut self) {
        // Closing the file is not enough, because a child process that is starting may hold a
        // copy of the descriptor. If unlocking fails, the lock ends with that copy.
        let _ = self.0.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::FolderLock;
    use crate::WalError;

    #[test]
    fn dropping_the_lock_unlocks_despite_descriptor_copies() {
        let folder = tempfile::tempdir().unwrap();
        let lock = FolderLock::take(folder.path()).unwrap();
        let _copy = lock.0.try_clone().unwrap();
        let error = FolderLock::take(folder.path()).unwrap_err();
        assert!(matches!(error, WalError::InUse { .. }), "{error}");
        drop(lock);
        FolderLock::take(folder.path()).unwrap();
    }
}
