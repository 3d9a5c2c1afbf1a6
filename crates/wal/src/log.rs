//! Log: records in the order they came, in a folder, across crashes.

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

/// A write-ahead log: what was appended and synced is there when it is opened again.
///
/// The folder holds one file, `log-GENERATION.djinn`, and `lock`, by which one process at a
/// time has it. Each compaction makes a file of the next generation; while the older one is
/// still there the newer one counts, since it got its name when it was whole.
///
/// A record is safe from a crash of the process once [`append`](Log::append) returned, and
/// from a crash of the machine once [`sync`](Log::sync) did. Opening ends at the first record
/// that is not whole, if no whole one follows. If one does, opening fails and the file stays
/// as it is. A power cut can cause that too, on filesystems that write later bytes before
/// earlier ones: then it concerns records after the last sync.
#[derive(Debug)]
pub struct Log {
    folder: PathBuf,
    tail: Tail,
    torn: u64,
    /// Last, so that the files are closed before others may open them.
    _lock: FolderLock,
}

impl Log {
    /// Whether a folder holds a log. Changes nothing there.
    pub fn is_in(folder: &Path) -> bool {
        let Ok(entries) = fs::read_dir(folder) else {
            return false;
        };
        let names = entries.flatten().map(|entry| entry.file_name());
        names
            .into_iter()
            .any(|name| parse(&name.to_string_lossy(), ".djinn").is_some())
    }

    /// Opens the log in `folder`, which is made where it is missing, and gives back its
    /// records in order. They are on disk by then.
    pub fn open(folder: &Path) -> Result<(Log, Vec<Vec<u8>>), WalError> {
        disk::create_folder(folder)?;
        let lock = FolderLock::take(folder)?;
        let generations = generations(folder)?;
        let (tail, records, torn) = newest(folder, &generations)?;
        // A crash may have come between the new file's name and this.
        disk::sync_folder(folder)?;
        for generation in generations {
            if generation != tail.generation() {
                // Where this fails the next opening tries again.
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

    /// Appends a record of up to [`PAYLOAD_BYTES_MAX`] bytes, with one write. It is on disk
    /// after the next [`sync`](Log::sync). If it fails the log is as before; if even that
    /// cannot be brought about, every later call fails with [`WalError::Poisoned`].
    pub fn append(&mut self, payload: &[u8]) -> Result<(), WalError> {
        self.tail.append(payload)
    }

    /// Waits until all records are on disk. If that fails it is unknown which are and no later
    /// attempt would tell, so every later call fails with [`WalError::Poisoned`].
    pub fn sync(&mut self) -> Result<(), WalError> {
        self.tail.sync()
    }

    /// Puts these records in place of all there are. They are on disk when it returns, and a
    /// crash before that leaves either the old ones or these. If it fails the old log goes on;
    /// only if the folder cannot be synced once the new file has its name, it is unknown which
    /// of both would be found, and every later call fails with [`WalError::Poisoned`].
    pub fn compact(&mut self, records: impl IntoIterator<Item = Vec<u8>>) -> Result<(), WalError> {
        self.tail.check()?;
        let next = Tail::create(&self.folder, self.tail.generation() + 1, records)?;
        disk::sync_folder(&self.folder).inspect_err(|_| self.tail.poison())?;
        let old = std::mem::replace(&mut self.tail, next);
        // Where this fails the next opening tries again.
        let _ = fs::remove_file(old.path());
        Ok(())
    }

    /// How long the file is now.
    pub fn bytes(&self) -> u64 {
        self.tail.bytes()
    }

    /// How many bytes a crash had left of a record when the log was opened; they are gone.
    pub fn torn(&self) -> u64 {
        self.torn
    }
}

/// The newest file's records, where to append to it, and how many torn bytes were dropped.
fn newest(folder: &Path, generations: &[u64]) -> Result<(Tail, Vec<Vec<u8>>, u64), WalError> {
    let mut torn = 0;
    for &generation in generations.iter().rev() {
        let path = folder.join(tail::file_name(generation));
        let mut options = File::options();
        let opened = options.read(true).write(true).open(&path);
        let file = opened.map_err(WalError::system("open", &path))?;
        let bytes = disk::size(&file, &path)?;
        // Without a whole header it never had a record, or lost all: an older one is better.
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

/// Which generations there are, the oldest first. Unfinished ones are removed.
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
            // If it stays it is in nobody's way.
            let _ = fs::remove_file(entry.path());
        }
    }
    generations.sort_unstable();
    Ok(generations)
}

/// The generation in a file's name, if it is one that another can follow.
fn parse(name: &str, ending: &str) -> Option<u64> {
    let digits = name.strip_prefix("log-")?.strip_suffix(ending)?;
    let generation = u64::from_str_radix(digits, 16).ok()?;
    (digits.len() == 16 && generation < u64::MAX).then_some(generation)
}
