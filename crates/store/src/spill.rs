//! Spill: pages of KV that left host memory, in slots of one file.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::checksum::checksum;
use crate::{StoreError, disk};

/// Slots begin at multiples of this, so that none shares a block of the disk with another.
const ALIGN_BYTES: u64 = 4096;

/// Slots of equal size in one file, for as long as the process lives.
///
/// The file grows as slots are written and has holes where none was. Checksums are kept in
/// memory, out of reach of whoever changes the file.
#[derive(Debug)]
pub struct Spill {
    file: File,
    path: PathBuf,
    slot_bytes: u64,
    stride_bytes: u64,
    /// The checksum of what each slot holds, if anything. Locked while the slot is written or
    /// read: slots do not wait for each other, and uses of the same one take turns.
    checksums: Vec<Mutex<Option<u64>>>,
    /// Whether the file goes when this does.
    removes: bool,
}

impl Spill {
    /// A file of its own in `folder`, which is made where it is missing, with room for `slots`
    /// slots of `slot_bytes` bytes. Removes what processes that are no more left there.
    ///
    /// # Panics
    /// If all slots together are larger than a file can be, or more than 32 bits can count.
    pub fn create(folder: &Path, slot_bytes: u64, slots: usize) -> Result<Spill, StoreError> {
        disk::create_folder(folder)?;
        remove_stale(folder)?;
        let (file, path) = create_locked(folder)?;
        let mut spill = Spill::over(file, &path, slot_bytes, slots);
        spill.removes = true;
        Ok(spill)
    }

    /// Slots in a file that is open already, for reading and writing. It is neither locked
    /// nor removed, and `path` is only what errors call it: this is for files that are not
    /// of the usual kind, such as `/dev/full`, which never has space.
    ///
    /// # Panics
    /// As [`Spill::create`].
    pub fn over(file: File, path: &Path, slot_bytes: u64, slots: usize) -> Spill {
        assert!(
            u32::try_from(slots).is_ok(),
            "slots are numbered by 32 bits"
        );
        let stride_bytes = slot_bytes.checked_next_multiple_of(ALIGN_BYTES);
        let end = stride_bytes.and_then(|stride| stride.checked_mul(slots as u64));
        assert!(
            end.is_some_and(|end| i64::try_from(end).is_ok()),
            "{slots} slots of {slot_bytes} bytes are more than a file can hold"
        );
        Spill {
            file,
            path: path.to_owned(),
            slot_bytes,
            stride_bytes: stride_bytes.expect("checked just now"),
            checksums: (0..slots).map(|_| Mutex::new(None)).collect(),
            removes: false,
        }
    }

    /// Writes a slot. If that fails the slot is as if it had never been written.
    ///
    /// # Panics
    /// If there is no such slot, or `bytes` is not of a slot's size.
    pub fn write(&self, slot: u32, bytes: &[u8]) -> Result<(), StoreError> {
        let mut held = self.slot(slot, bytes.len());
        *held = None;
        self.file
            .write_all_at(bytes, self.offset(slot))
            .map_err(|source| StoreError::write(&self.path, source))?;
        *held = Some(checksum(slot.into(), bytes));
        Ok(())
    }

    /// Reads what was last written to a slot. If that fails, `to` holds nothing of use.
    ///
    /// # Panics
    /// If there is no such slot, or `to` is not of a slot's size.
    pub fn read(&self, slot: u32, to: &mut [u8]) -> Result<(), StoreError> {
        let held = self.slot(slot, to.len());
        let path = || self.path.clone();
        let expected = held.ok_or_else(|| StoreError::SlotEmpty { path: path(), slot })?;
        disk::read_at(&self.file, &self.path, to, self.offset(slot))?;
        if checksum(slot.into(), to) != expected {
            return Err(StoreError::SlotChanged { path: path(), slot });
        }
        Ok(())
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How many slots there are.
    pub fn slots(&self) -> usize {
        self.checksums.len()
    }

    /// How many bytes each holds.
    pub fn slot_bytes(&self) -> u64 {
        self.slot_bytes
    }

    fn slot(&self, slot: u32, bytes: usize) -> MutexGuard<'_, Option<u64>> {
        assert_eq!(bytes as u64, self.slot_bytes, "slots are of one size");
        let held = self.checksums[slot as usize].lock();
        // Nothing panics while it is locked, and any value would be as good as the last.
        held.unwrap_or_else(PoisonError::into_inner)
    }

    fn offset(&self, slot: u32) -> u64 {
        u64::from(slot) * self.stride_bytes
    }
}

impl Drop for Spill {
    fn drop(&mut self) {
        if self.removes {
            // Where this fails the next process tries again.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// A new file that is locked, so that nobody takes it for a stale one.
fn create_locked(folder: &Path) -> Result<(File, PathBuf), StoreError> {
    loop {
        let name = format!("spill-{}-{}.djinn", std::process::id(), disk::unique());
        let path = folder.join(name);
        let mut options = File::options();
        let created = options.read(true).write(true).create_new(true).open(&path);
        let file = match created {
            // Left by a process of the same number that cannot be told from a living one.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
            created => created.map_err(StoreError::system("create", &path))?,
        };
        let owned = lock_linked(&file).inspect_err(|_| {
            let _ = fs::remove_file(&path);
        });
        // Otherwise somebody took it for stale before it was locked.
        if owned.map_err(StoreError::system("lock", &path))? {
            return Ok((file, path));
        }
    }
}

/// Removes spill files nobody holds a lock on.
fn remove_stale(folder: &Path) -> Result<(), StoreError> {
    let list = || StoreError::system("list the folder", folder);
    for entry in fs::read_dir(folder).map_err(list())? {
        let entry = entry.map_err(list())?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("spill-") && name.ends_with(".djinn") {
            // What cannot be removed is in nobody's way.
            let _ = remove_if_stale(&entry.path());
        }
    }
    Ok(())
}

fn remove_if_stale(path: &Path) -> io::Result<()> {
    // The lock is held until the file is gone, so that of several only one removes it.
    let file = File::options().read(true).write(true).open(path)?;
    if lock_linked(&file)? {
        fs::remove_file(path)?;
    }
    Ok(())
}

/// Locks a file, unless somebody else has or it lost its name meanwhile.
fn lock_linked(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(file.metadata()?.nlink() > 0),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

#[cfg(test)]
mod tests;
