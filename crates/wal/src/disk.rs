//! What the files share: folders that stay, locks, and reads that notice a file's end.

use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::WalError;

/// A number no other caller in this process gets, for names of files.
pub(crate) fn unique() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The folder that a file or folder is in.
pub(crate) fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => path,
    }
}

/// Makes a folder, and those it is in, so that it is still there after a power cut.
pub(crate) fn create_folder(folder: &Path) -> Result<(), WalError> {
    if folder.is_dir() {
        return Ok(());
    }
    let parent = folder_of(folder);
    if parent != folder {
        create_folder(parent)?;
    }
    match fs::create_dir(folder) {
        // Somebody else was faster.
        Err(error) if error.kind() == ErrorKind::AlreadyExists && folder.is_dir() => {}
        made => made.map_err(WalError::system("create the folder", folder))?,
    }
    sync_folder(parent)
}

/// Waits until the names in a folder are on disk: syncing a file does not do that.
pub(crate) fn sync_folder(folder: &Path) -> Result<(), WalError> {
    File::open(folder)
        .and_then(|opened| opened.sync_all())
        .map_err(WalError::system("sync the folder", folder))
}

/// Fills `to` from a file, and says so when the file ends before it is full.
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

/// How long a file is now.
pub(crate) fn size(file: &File, path: &Path) -> Result<u64, WalError> {
    let metadata = file.metadata().map_err(WalError::read(path))?;
    Ok(metadata.len())
}

/// A folder that only the holder of this uses.
#[derive(Debug)]
pub(crate) struct FolderLock(File);

impl FolderLock {
    /// Locks a folder by a file in it, or says that somebody else has.
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
        // Closing is not enough: a process that is being started elsewhere in this one may
        // hold a copy of the file for a moment. If this fails the lock ends with that copy.
        let _ = self.0.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::FolderLock;
    use crate::WalError;

    #[test]
    fn a_lock_ends_with_its_holder_and_not_with_copies_of_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let lock = FolderLock::take(folder.path()).unwrap();
        let _copy = lock.0.try_clone().unwrap();
        let error = FolderLock::take(folder.path()).unwrap_err();
        assert!(matches!(error, WalError::InUse { .. }), "{error}");
        drop(lock);
        FolderLock::take(folder.path()).unwrap();
    }
}
