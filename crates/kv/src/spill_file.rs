//! Spill file: fixed-size slots for pages that left host memory.
//!
//! The file is useless after its process ends, so it has no name, and the operating system frees
//! its space when the process ends or is killed. No write is synced.

use std::fs::{self, DirBuilder, File, Permissions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use twox_hash::XxHash3_64;

use crate::error::SpillError;

/// Alignment of slots in bytes. Two slots never share a block of the disk.
const ALIGN_BYTES: u64 = 4096;

/// Permissions of the file: the owner reads and writes, and other users do nothing.
const FILE_MODE: u32 = 0o600;
/// Permissions of a new folder: the owner alone has access.
const FOLDER_MODE: u32 = 0o700;

/// Slots of equal size in one file, for the lifetime of the process.
///
/// The file grows as slots are written, and unwritten slots are holes. Checksums are kept in
/// memory, so a change of the file cannot change them. Checksums detect accidents, not forgeries.
#[derive(Debug)]
pub struct SpillFile {
    file: File,
    /// Folder of the file, for errors.
    path: PathBuf,
    slot_bytes: u64,
    stride_bytes: u64,
    /// Checksum of each slot that is not empty. A thread holds the lock of a slot while it writes
    /// or reads the slot, so different slots do not wait for each other.
    checksums: Vec<Mutex<Option<u64>>>,
}

impl SpillFile {
    /// Creates a file for `slots` slots of `slot_bytes` bytes in `folder`. Creates the folder if
    /// it is missing. Removes files that ended processes left in the folder.
    ///
    /// # Panics
    /// If all slots together exceed the largest file size, or the number of slots exceeds 32
    /// bits.
    pub fn create(folder: &Path, slot_bytes: u64, slots: usize) -> Result<SpillFile, SpillError> {
        let create = SpillError::system("create the folder", folder);
        create_folder(folder).map_err(create)?;
        remove_stale(folder)?;
        let file = create_unnamed(folder)?;
        let private = file.set_permissions(Permissions::from_mode(FILE_MODE));
        private.map_err(SpillError::system(
            "set the permissions of a file in",
            folder,
        ))?;
        Ok(SpillFile::from_file(file, folder, slot_bytes, slots))
    }

    /// Uses a file that is open for reading and writing, such as `/dev/full` in tests. `path` only
    /// appears in errors.
    ///
    /// # Panics
    /// If all slots together exceed the largest file size, or the number of slots exceeds 32
    /// bits.
    fn from_file(file: File, path: &Path, slot_bytes: u64, slots: usize) -> SpillFile {
        assert!(u32::try_from(slots).is_ok(), "a slot number has 32 bits");
        let stride_bytes = slot_bytes.checked_next_multiple_of(ALIGN_BYTES);
        let end = stride_bytes.and_then(|stride| stride.checked_mul(slots as u64));
        assert!(
            end.is_some_and(|end| i64::try_from(end).is_ok()),
            "{slots} slots of {slot_bytes} bytes exceed the largest file size"
        );
        SpillFile {
            file,
            path: path.to_owned(),
            slot_bytes,
            stride_bytes: stride_bytes.expect("checked above"),
            checksums: (0..slots).map(|_| Mutex::new(None)).collect(),
        }
    }

    /// Writes a slot. After a failure the slot is empty.
    ///
    /// # Panics
    /// If the slot does not exist, or `bytes` does not have the size of a slot.
    pub fn write(&self, slot: u32, bytes: &[u8]) -> Result<(), SpillError> {
        let mut held = self.lock_slot(slot, bytes.len());
        *held = None;
        self.file
            .write_all_at(bytes, self.offset(slot))
            .map_err(|source| SpillError::write(&self.path, source))?;
        *held = Some(checksum(slot, bytes));
        Ok(())
    }

    /// Reads the last content written to a slot. After a failure the content of `to` is undefined.
    ///
    /// # Panics
    /// If the slot does not exist, or `to` does not have the size of a slot.
    pub fn read(&self, slot: u32, to: &mut [u8]) -> Result<(), SpillError> {
        let held = self.lock_slot(slot, to.len());
        let path = || self.path.clone();
        let expected = held.ok_or_else(|| SpillError::SlotEmpty { path: path(), slot })?;
        self.read_at(to, self.offset(slot))?;
        if checksum(slot, to) != expected {
            return Err(SpillError::SlotCorrupt { path: path(), slot });
        }
        Ok(())
    }

    /// Folder of the file. The file itself has no name.
    pub fn folder(&self) -> &Path {
        &self.path
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.checksums.len()
    }

    /// Number of bytes of one slot.
    pub fn slot_bytes(&self) -> u64 {
        self.slot_bytes
    }

    fn lock_slot(&self, slot: u32, bytes: usize) -> MutexGuard<'_, Option<u64>> {
        assert_eq!(bytes as u64, self.slot_bytes, "size of a slot");
        let held = self.checksums[slot as usize].lock();
        // The checksum is set only after a successful write, so it stays valid after a panic.
        held.unwrap_or_else(PoisonError::into_inner)
    }

    fn offset(&self, slot: u32) -> u64 {
        u64::from(slot) * self.stride_bytes
    }

    fn read_at(&self, to: &mut [u8], offset: u64) -> Result<(), SpillError> {
        match self.file.read_exact_at(to, offset) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                let metadata = self.file.metadata();
                Err(SpillError::Truncated {
                    path: self.path.clone(),
                    bytes: metadata.map_err(SpillError::read(&self.path))?.len(),
                    expected: offset.saturating_add(to.len() as u64),
                })
            }
            read => read.map_err(SpillError::read(&self.path)),
        }
    }
}

/// Checksum of a slot's content. The seed is the number of the slot, so the content of one slot
/// is not valid in another.
fn checksum(slot: u32, bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot_with_seed(slot.into(), bytes)
}

/// Creates the folder and its missing parents. Only the owner of the process has access to them,
/// whatever the umask.
fn create_folder(folder: &Path) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    if let Some(parent) = folder
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
    {
        create_folder(parent)?;
    }
    match DirBuilder::new().mode(FOLDER_MODE).create(folder) {
        // Another process created the folder meanwhile.
        Err(error) if error.kind() == ErrorKind::AlreadyExists && folder.is_dir() => Ok(()),
        // The umask cannot add permissions, but it can remove the owner's.
        made => {
            made.and_then(|()| fs::set_permissions(folder, Permissions::from_mode(FOLDER_MODE)))
        }
    }
}

/// Creates a file without a name, which only this process can use. The space of the file is free
/// again when the process ends, however it ends.
fn create_unnamed(folder: &Path) -> Result<File, SpillError> {
    #[cfg(target_os = "linux")]
    if let Ok(file) = create_temporary(folder) {
        return Ok(file);
    }
    create_and_unlink(folder)
}

/// Creates a file that never has a name. Some filesystems do not support that.
#[cfg(target_os = "linux")]
fn create_temporary(folder: &Path) -> io::Result<File> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = rustix::fs::open(folder, flags, Mode::from_bits_truncate(FILE_MODE))?;
    Ok(File::from(file))
}

/// Creates a file and removes its name at once.
fn create_and_unlink(folder: &Path) -> Result<File, SpillError> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("spill-{}-{number}.djinn", std::process::id());
        let path = folder.join(name);
        let mut options = File::options();
        options.read(true).write(true).create_new(true);
        match options.mode(FILE_MODE).open(&path) {
            // An ended process with the same id left this file.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            created => {
                let file = created.map_err(SpillError::system("create", &path))?;
                return match fs::remove_file(&path) {
                    // Another process took the file for one of an ended process.
                    Err(error) if error.kind() == ErrorKind::NotFound => Ok(file),
                    removed => {
                        removed.map_err(SpillError::system("unlink", &path))?;
                        Ok(file)
                    }
                };
            }
        }
    }
}

/// Removes spill files that ended processes left in a folder: processes of release 0.1, whose file
/// had a name, and processes that were killed before they removed the name. A running process of
/// release 0.1 holds the lock of its file.
fn remove_stale(folder: &Path) -> Result<(), SpillError> {
    let list = || SpillError::system("list the folder", folder);
    for entry in fs::read_dir(folder).map_err(list())? {
        let entry = entry.map_err(list())?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("spill-") && name.ends_with(".djinn") {
            // A stale file that cannot be removed is harmless.
            let _ = remove_if_stale(&entry.path());
        }
    }
    Ok(())
}

fn remove_if_stale(path: &Path) -> io::Result<()> {
    // The lock is held until the file is removed, so that only one process removes it.
    let file = File::options().read(true).write(true).open(path)?;
    if lock_linked(&file)? {
        fs::remove_file(path)?;
    }
    Ok(())
}

/// Locks a file. Returns `false` if another process has locked or removed it.
fn lock_linked(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(file.metadata()?.nlink() > 0),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests;
