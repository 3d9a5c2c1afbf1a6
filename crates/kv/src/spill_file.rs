//! Spill file: fixed-size slots for pages that left host memory.
//!
//! The file is useless after its process ends. No write is synced, and the next process removes
//! the file of a killed process.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use twox_hash::XxHash3_64;

use crate::error::SpillError;

/// Alignment of slots in bytes. Two slots never share a block of the disk.
const ALIGN_BYTES: u64 = 4096;

/// Slots of equal size in one file, for the lifetime of the process.
///
/// The file grows as slots are written, and unwritten slots are holes. Checksums are kept in
/// memory, so a change of the file cannot change them. Checksums detect accidents, not forgeries.
#[derive(Debug)]
pub struct SpillFile {
    file: File,
    path: PathBuf,
    slot_bytes: u64,
    stride_bytes: u64,
    /// Checksum of each slot that is not empty. A thread holds the lock of a slot while it writes
    /// or reads the slot, so different slots do not wait for each other.
    checksums: Vec<Mutex<Option<u64>>>,
    /// Whether to remove the file on drop.
    is_owned: bool,
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
        fs::create_dir_all(folder).map_err(create)?;
        remove_stale(folder)?;
        let (file, path) = create_locked(folder)?;
        let mut spill = SpillFile::from_file(file, &path, slot_bytes, slots);
        spill.is_owned = true;
        Ok(spill)
    }

    /// Uses a file that is open for reading and writing, such as `/dev/full` in tests. The file
    /// is neither locked nor removed; `path` only appears in errors.
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
            is_owned: false,
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

    /// Path of the file.
    pub fn path(&self) -> &Path {
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

impl Drop for SpillFile {
    fn drop(&mut self) {
        if self.is_owned {
            // If this fails, the next process removes the file.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Checksum of a slot's content. The seed is the number of the slot, so the content of one slot
/// is not valid in another.
fn checksum(slot: u32, bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot_with_seed(slot.into(), bytes)
}

/// Creates a file and locks it. Other processes do not remove a locked file as stale.
fn create_locked(folder: &Path) -> Result<(File, PathBuf), SpillError> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("spill-{}-{number}.djinn", std::process::id());
        let path = folder.join(name);
        let mut options = File::options();
        let created = options.read(true).write(true).create_new(true).open(&path);
        let file = match created {
            // An ended process with the same id left this file, or another process uses it.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
            created => created.map_err(SpillError::system("create", &path))?,
        };
        let is_locked = lock_linked(&file).inspect_err(|_| {
            let _ = fs::remove_file(&path);
        });
        // The lock fails if another process removed the file as stale before this process locked
        // it.
        if is_locked.map_err(SpillError::system("lock", &path))? {
            return Ok((file, path));
        }
    }
}

/// Removes the spill files in a folder that no process has locked.
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
