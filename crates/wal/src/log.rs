//! Write-ahead log: records in order, in a folder, across crashes.

mod format;
mod replay;
mod tail;
#[cfg(test)]
mod tests;

use std::fs::{self, File};
use std::path::{Path, PathBuf};

pub use self::format::PAYLOAD_BYTES_MAX;
use self::replay::replay;
use self::tail::Tail;
use crate::disk::FolderLock;
use crate::{WalError, disk};

/// Write-ahead log: opening it again reads back all records that were appended and synced.
///
/// The folder contains one file, `log-GENERATION.djinn`, and the file `lock`, which gives one
/// process at a time exclusive access. Each compaction creates a file of the next generation. If
/// two generations exist, the newer one is valid, since it got its name when it was complete.
///
/// A record survives a crash of the process once [`append`](Log::append) has returned, and a
/// crash of the machine once [`sync`](Log::sync) has returned. Opening drops an incomplete record
/// at the end of the file. If a valid record follows an invalid one, opening fails and leaves the
/// file unchanged. A power cut can cause that too, on filesystems that write later bytes before
/// earlier ones; it then affects only records after the last sync.
#[derive(Debug)]
pub struct Log {
    folder: PathBuf,
    tail: Tail,
    torn: u64,
    /// Lock on the folder. This is the last field, so files are closed before the folder is
    /// unlocked.
    _lock: FolderLock,
}

impl Log {
    /// Whether a folder contains a log. Does not change the folder.
    pub fn is_in(folder: &Path) -> bool {
        let Ok(entries) = fs::read_dir(folder) else {
            return false;
        };
        let names = entries.flatten().map(|entry| entry.file_name());
        names
            .into_iter()
            .any(|name| parse(&name.to_string_lossy(), ".djinn").is_some())
    }

    /// Opens the log in `folder`, and creates the folder if it is missing. Returns the records in
    /// order. The returned records are on disk.
    pub fn open(folder: &Path) -> Result<(Log, Vec<Vec<u8>>), WalError> {
        disk::create_folder(folder)?;
        let lock = FolderLock::take(folder)?;
        let generations = generations(folder)?;
        let (tail, records, torn) = newest(folder, &generations)?;
        // A crash may have happened between the rename of the newest file and the sync of the
        // folder.
        disk::sync_folder(folder)?;
        for generation in generations {
            if generation != tail.generation() {
                // If this fails, the next open tries again.
                let _ = fs::remove_file(folder.join(tail::file_name(generation)));
            }
        }
        let log = Log {
            folder: folder.to_owned(),
            tail,
            torn,
            _lock: lock,
        };
        Ok((log, records))
    }

    /// Appends a record of up to [`PAYLOAD_BYTES_MAX`] bytes with one write. The record is on
    /// disk after the next [`sync`](Log::sync). A failed append is undone. If undoing fails too,
    /// every later call fails with [`WalError::Poisoned`].
    pub fn append(&mut self, payload: &[u8]) -> Result<(), WalError> {
        self.tail.append(payload)
    }

    /// Waits until all records are on disk. After a failure the log does not know which records
    /// are on disk, and another attempt cannot find out. Every later call then fails with
    /// [`WalError::Poisoned`].
    pub fn sync(&mut self) -> Result<(), WalError> {
        self.tail.sync()
    }

    /// Replaces all records, also of a log that accepts no more records after a failure: the new
    /// file replaces the one whose state is unknown. The new records are on disk when this call returns. A crash before
    /// that leaves either the old records or the new ones. After a failure the old log stays in
    /// use, with one exception: if the folder cannot be synced after the new file got its name,
    /// the log does not know which file the next open finds. Every later call then fails with
    /// [`WalError::Poisoned`].
    pub fn compact(&mut self, records: impl IntoIterator<Item = Vec<u8>>) -> Result<(), WalError> {
        let next = Tail::create(&self.folder, self.tail.generation() + 1, records)?;
        disk::sync_folder(&self.folder).inspect_err(|_| self.tail.poison())?;
        let old = std::mem::replace(&mut self.tail, next);
        // If this fails, the next open tries again.
        let _ = fs::remove_file(old.path());
        Ok(())
    }

    /// Size of the file in bytes.
    pub fn bytes(&self) -> u64 {
        self.tail.bytes()
    }

    /// Number of bytes of an incomplete record that opening removed.
    pub fn torn(&self) -> u64 {
        self.torn
    }
}

/// Reads the newest file. Returns its tail, its records, and the number of torn bytes dropped.
fn newest(folder: &Path, generations: &[u64]) -> Result<(Tail, Vec<Vec<u8>>, u64), WalError> {
    let mut torn = 0;
    for &generation in generations.iter().rev() {
        let path = folder.join(tail::file_name(generation));
        let mut options = File::options();
        let opened = options.read(true).write(true).open(&path);
        let file = opened.map_err(WalError::system("open", &path))?;
        let bytes = disk::size(&file, &path)?;
        // A file without a complete header has no records, so an older generation is better.
        if bytes < format::HEADER_BYTES as u64 {
            torn += bytes;
            continue;
        }
        let replay = replay(&file, &path, generation)?;
        let tail = Tail::resume(file, &path, generation, &replay)?;
        return Ok((tail, replay.records, torn + replay.torn));
    }
    let next = generations.last().map_or(1, |newest| newest + 1);
    Ok((Tail::create(folder, next, [])?, Vec::new(), torn))
}

/// Lists the generations in a folder, the oldest first, and removes incomplete files.
fn generations(folder: &Path) -> Result<Vec<u64>, WalError> {
    let list = || WalError::system("list the folder", folder);
    let mut generations = Vec::new();
    for entry in fs::read_dir(folder).map_err(list())? {
        let entry = entry.map_err(list())?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if let Some(generation) = parse(&name, ".djinn") {
            generations.push(generation);
        } else if parse(&name, ".tmp").is_some() {
            // A leftover file is harmless.
            let _ = fs::remove_file(entry.path());
        }
    }
    generations.sort_unstable();
    Ok(generations)
}

/// Parses the generation in a file name. The largest generation is invalid, because no generation
/// could follow it.
fn parse(name: &str, ending: &str) -> Option<u64> {
    let digits = name.strip_prefix("log-")?.strip_suffix(ending)?;
    let generation = u64::from_str_radix(digits, 16).ok()?;
    (digits.len() == 16 && generation < u64::MAX).then_some(generation)
}
