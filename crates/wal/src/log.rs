//! Write-ahead log: records in order, in a folder, across crashes.

mod contents;
mod format;
mod generations;
mod replay;
mod tail;
#[cfg(test)]
mod tests;
mod window;

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

pub use self::contents::{DamagedRange, LogContents};
pub use self::format::PAYLOAD_BYTES_MAX;
use self::generations::Newest;
use self::tail::Tail;
use crate::disk::FolderLock;
use crate::{WalError, disk};

/// Number of times that [`Log::inspect`] reads a folder again in which another process replaces
/// the log.
const INSPECT_ATTEMPTS: usize = 16;

/// Write-ahead log: opening it again reads back all records that were appended and synced.
///
/// The folder contains one file, `log-GENERATION.djinn`, and the file `lock`, which gives one
/// process at a time exclusive access. Each compaction creates a file of the next generation. If
/// two generations exist, the newer one is valid, since it got its name when it was complete.
///
/// A record survives a crash of the process once [`append`](Log::append) has returned, and a
/// crash of the machine once [`sync`](Log::sync) has returned. Opening drops an incomplete record
/// at the end of the file.
///
/// Damage does not stop the log. Opening returns all valid records and a list of the damaged
/// ranges. Before the log accepts a record, opening keeps the damaged file under the name
/// `log-GENERATION.damaged-N` and writes the valid records to a new generation. The log never
/// deletes a file that it has set aside.
///
/// The file contains sync marks, which confirm that all bytes before an offset were on disk.
/// Damage before such an offset is real. Invalid bytes behind it come from a power cut, on
/// filesystems that write later bytes before earlier ones; opening drops them like an incomplete
/// record.
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
            .any(|name| generations::parse(&name.to_string_lossy(), ".djinn").is_some())
    }

    /// Opens the log in `folder`, and creates the folder if it is missing. Returns the records in
    /// order, and the damage. The returned records are on disk.
    ///
    /// Fails if the folder cannot be read or written, if another process uses the folder, or if a
    /// newer djinn wrote the log.
    pub fn open(folder: &Path) -> Result<(Log, LogContents), WalError> {
        disk::create_folder(folder)?;
        let lock = FolderLock::take(folder)?;
        generations::remove_unfinished(folder)?;
        let generations = generations::list(folder)?;
        let options = File::options().read(true).write(true).clone();
        let newest = generations::newest(folder, &generations, &options)?;
        let (tail, contents) = match newest {
            Newest {
                found: Some((file, generation, replay)),
                damage,
            } if damage.is_empty() => {
                let path = folder.join(tail::file_name(generation));
                let tail = Tail::resume(file, &path, &replay)?;
                let contents = LogContents {
                    records: replay.records,
                    torn: replay.torn,
                    ..LogContents::default()
                };
                (tail, contents)
            }
            newest => rescue(folder, &generations, newest)?,
        };
        // A crash may have happened between the rename of the newest file and the sync of the
        // folder.
        disk::sync_folder(folder)?;
        let replaced = generations.into_iter().filter(|&g| g != tail.generation());
        generations::remove(folder, replaced);
        let log = Log {
            folder: folder.to_owned(),
            tail,
            torn: contents.torn,
            _lock: lock,
        };
        Ok((log, contents))
    }

    /// Reads the log in `folder` without changing anything on disk. Works while another process
    /// uses the log; records that this process appends meanwhile may be missing.
    pub fn inspect(folder: &Path) -> Result<LogContents, WalError> {
        let mut attempts = 0;
        loop {
            let generations = generations::list(folder)?;
            let options = File::options().read(true).clone();
            match generations::newest(folder, &generations, &options) {
                Ok(newest) => return Ok(newest.into_contents()),
                // The other process has replaced the file after the folder was listed.
                Err(WalError::System { source, .. })
                    if source.kind() == ErrorKind::NotFound && attempts < INSPECT_ATTEMPTS =>
                {
                    attempts += 1;
                }
                Err(error) => return Err(error),
            }
        }
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

    /// Keeps the file of the log under the name `log-GENERATION.damaged-N`, and returns its path.
    /// For records that the log can read but its user cannot: the user then replaces the records
    /// with [`compact`](Log::compact), and the old ones stay available. No record may be appended
    /// in between, because the file would still receive it.
    pub fn set_aside(&mut self) -> Result<PathBuf, WalError> {
        self.tail.check()?;
        generations::set_aside(&self.folder, self.tail.generation())
    }

    /// Folder of the log.
    pub fn folder(&self) -> &Path {
        &self.folder
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

impl Newest {
    fn into_contents(self) -> LogContents {
        let (records, torn) = match self.found {
            Some((_, _, replay)) => (replay.records, replay.torn),
            None => (Vec::new(), 0),
        };
        LogContents {
            records,
            damage: self.damage,
            torn,
            set_aside: Vec::new(),
        }
    }
}

/// Writes the valid records of a folder to a new generation. If there is damage, all older files
/// are set aside first, so that none of them is lost.
fn rescue(
    folder: &Path,
    generations: &[u64],
    newest: Newest,
) -> Result<(Tail, LogContents), WalError> {
    let mut contents = newest.into_contents();
    if !contents.damage.is_empty() {
        for &generation in generations {
            let aside = generations::set_aside(folder, generation)?;
            contents.set_aside.push(aside);
        }
    }
    let next = generations.last().map_or(1, |newest| newest + 1);
    let tail = Tail::create(folder, next, contents.records.iter().cloned())?;
    Ok((tail, contents))
}
