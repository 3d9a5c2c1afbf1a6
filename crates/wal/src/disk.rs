//! File helpers: durable folders, folder locks, and reads that detect the end of a file.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt};
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

/// Permissions of files: the owner reads and writes, and other users do nothing.
const FILE_MODE: u32 = 0o600;
/// Permissions of folders: the owner alone has access.
const FOLDER_MODE: u32 = 0o700;

/// Opens a file for the owner of the process alone. The permissions do not depend on the umask.
/// An existing file with other permissions gets these.
pub(crate) fn open_private(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let file = options.mode(FILE_MODE).open(path)?;
    make_private(&file)?;
    Ok(file)
}

/// Takes the permissions on a file from other users.
pub(crate) fn make_private(file: &File) -> io::Result<()> {
    let mode = file.metadata()?.permissions().mode() & 0o7777;
    match mode == FILE_MODE {
        true => Ok(()),
        false => file.set_permissions(Permissions::from_mode(FILE_MODE)),
    }
}

/// Copies a file to a new name that only the owner of the process can read, and syncs the copy.
/// The copy shares the bytes with the original where the filesystem has hard links.
pub(crate) fn keep_copy(from: &Path, to: &Path) -> io::Result<()> {
    if fs::hard_link(from, to).is_ok() {
        return make_private(&File::open(to)?);
    }
    let mut options = File::options();
    let mut copy = open_private(options.write(true).create_new(true), to)?;
    io::copy(&mut File::open(from)?, &mut copy)?;
    copy.sync_all()
}

/// Creates a folder and its parents so that they survive a power cut. Only the owner of the
/// process has access to new folders.
pub(crate) fn create_folder(folder: &Path) -> Result<(), WalError> {
    if folder.is_dir() {
        return Ok(());
    }
    let parent = folder_of(folder);
    if parent != folder {
        create_folder(parent)?;
    }
    let mut builder = DirBuilder::new();
    // The umask cannot add permissions, but it can remove the owner's.
    let made = builder.mode(FOLDER_MODE).create(folder);
    let made = made.and_then(|()| fs::set_permissions(folder, Permissions::from_mode(FOLDER_MODE)));
    match made {
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
        let mut options = File::options();
        options.create(true).truncate(false).write(true);
        let file = open_private(&mut options, &path).map_err(WalError::system("open", &path))?;
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
