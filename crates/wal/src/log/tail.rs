//! Tail of a log: the file that records are appended to.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::format::{self, FileHeader, HEADER_BYTES, PAYLOAD_BYTES_MAX};
use super::replay::Replay;
use crate::{WalError, disk};

/// File that ends with a complete record, or that accepts no more records.
#[derive(Debug)]
pub(super) struct Tail {
    file: File,
    path: PathBuf,
    header: FileHeader,
    /// Sequence number of the next record.
    sequence: u64,
    bytes: u64,
    /// Whether the file ends with a sync mark.
    ends_with_mark: bool,
    poisoned: bool,
}

/// Name of the complete file of a generation.
pub(super) fn file_name(generation: u64) -> String {
    format!("log-{generation:016x}.djinn")
}

/// Name of the file of a generation while it is being created.
pub(super) fn unfinished_name(generation: u64) -> String {
    format!("log-{generation:016x}.tmp")
}

impl Tail {
    /// Creates a file with these records, and renames it to its final name when it is on disk.
    /// The caller syncs the folder.
    pub(super) fn create(
        folder: &Path,
        generation: u64,
        records: impl IntoIterator<Item = Vec<u8>>,
    ) -> Result<Tail, WalError> {
        let unfinished = folder.join(unfinished_name(generation));
        let path = folder.join(file_name(generation));
        let filled = Tail::fill(&unfinished, generation, records);
        let named = filled.and_then(|tail| {
            fs::rename(&unfinished, &path).map_err(WalError::system("rename", &unfinished))?;
            Ok(Tail { path, ..tail })
        });
        named.inspect_err(|_| {
            // A leftover file is harmless, because the next attempt overwrites it.
            let _ = fs::remove_file(&unfinished);
        })
    }

    fn fill(
        path: &Path,
        generation: u64,
        records: impl IntoIterator<Item = Vec<u8>>,
    ) -> Result<Tail, WalError> {
        let mut options = File::options();
        options.write(true).create(true).truncate(true);
        let file = disk::open_private(&mut options, path);
        let file = file.map_err(WalError::system("create", path))?;
        let header = FileHeader::new(generation);
        file.write_all_at(&header.to_bytes(), 0)
            .map_err(|source| WalError::write(path, source))?;
        let mut tail = Tail::new(file, path, header, 0, HEADER_BYTES as u64);
        for payload in records {
            tail.append(&payload)?;
        }
        // The file gets its name after the sync, so the mark is true once the file is visible.
        tail.write_mark()?;
        tail.file
            .sync_all()
            .map_err(WalError::system("sync", path))?;
        Ok(tail)
    }

    /// Continues a file that was read back without damage, after removing an incomplete record at
    /// its end.
    pub(super) fn resume(file: File, path: &Path, replay: &Replay) -> Result<Tail, WalError> {
        if replay.torn > 0 {
            file.set_len(replay.end)
                .map_err(WalError::system("cut", path))?;
        }
        disk::make_private(&file).map_err(WalError::system("set the permissions of", path))?;
        let (header, sequence) = (replay.header, replay.sequence);
        let mut tail = Tail::new(file, path, header, sequence, replay.end);
        tail.ends_with_mark = replay.ends_with_mark;
        // The caller relies on the records, so they must survive a power cut.
        tail.file
            .sync_all()
            .map_err(WalError::system("sync", path))?;
        tail.mark_sync();
        Ok(tail)
    }

    fn new(file: File, path: &Path, header: FileHeader, sequence: u64, bytes: u64) -> Tail {
        Tail {
            file,
            path: path.to_owned(),
            header,
            sequence,
            bytes,
            ends_with_mark: false,
            poisoned: false,
        }
    }

    pub(super) fn append(&mut self, payload: &[u8]) -> Result<(), WalError> {
        self.check()?;
        let (bytes, limit) = (payload.len() as u64, PAYLOAD_BYTES_MAX);
        if bytes > limit {
            return Err(WalError::TooLong { bytes, limit });
        }
        let record = format::record(self.header.generation, self.sequence, payload);
        self.write(&record)?;
        self.ends_with_mark = false;
        Ok(())
    }

    fn write(&mut self, record: &[u8]) -> Result<(), WalError> {
        if let Err(source) = self.file.write_all_at(record, self.bytes) {
            // Part of a record must not stay, because records after it would be unreadable.
            self.poisoned = self.file.set_len(self.bytes).is_err();
            return Err(WalError::write(&self.path, source));
        }
        self.sequence += 1;
        self.bytes += record.len() as u64;
        Ok(())
    }

    pub(super) fn sync(&mut self) -> Result<(), WalError> {
        self.check()?;
        self.file.sync_data().map_err(|source| {
            // The operating system may have dropped bytes that it could not write, and would
            // report success the next time.
            self.poisoned = true;
            WalError::system("sync", &self.path)(source)
        })?;
        self.mark_sync();
        Ok(())
    }

    /// Writes a sync mark if the file needs one. The mark itself is not synced. A lost mark loses
    /// no record, so a failure is ignored unless it poisons the file.
    fn mark_sync(&mut self) {
        if self.header.has_marks() && !self.ends_with_mark {
            let _ = self.write_mark();
        }
    }

    fn write_mark(&mut self) -> Result<(), WalError> {
        let mark = format::sync_mark(self.header.generation, self.sequence, self.bytes);
        self.write(&mark)?;
        self.ends_with_mark = true;
        Ok(())
    }

    /// Rejects all further records, because another file may have replaced this one.
    pub(super) fn poison(&mut self) {
        self.poisoned = true;
    }

    pub(super) fn check(&self) -> Result<(), WalError> {
        if self.poisoned {
            let path = self.path.clone();
            return Err(WalError::Poisoned { path });
        }
        Ok(())
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn generation(&self) -> u64 {
        self.header.generation
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn over(path: &str) -> Tail {
        let path = Path::new(path);
        let file = File::options().write(true).open(path).unwrap();
        Tail::new(file, path, FileHeader::new(1), 0, HEADER_BYTES as u64)
    }

    #[test]
    fn poisoned_when_a_failed_append_cannot_be_undone() {
        // This device never has space and cannot be truncated.
        let mut tail = over("/dev/full");
        let error = tail.append(b"a").unwrap_err();
        assert!(matches!(error, WalError::NoSpace { .. }), "{error}");
        let error = tail.append(b"a").unwrap_err();
        assert!(matches!(error, WalError::Poisoned { .. }), "{error}");
        assert_eq!(tail.bytes(), HEADER_BYTES as u64);
    }

    #[test]
    fn poisoned_when_it_cannot_be_synced() {
        // This device accepts every write and cannot be synced.
        let mut tail = over("/dev/null");
        tail.append(b"a").unwrap();
        let error = tail.sync().unwrap_err();
        assert!(matches!(error, WalError::System { action: "sync", .. }));
        let poisoned = |done: Result<(), WalError>| {
            assert!(matches!(done, Err(WalError::Poisoned { .. })));
        };
        poisoned(tail.sync());
        poisoned(tail.append(b"b"));
        poisoned(tail.sync());
    }

    #[test]
    fn payloads_over_the_limit_are_rejected() {
        let mut tail = over("/dev/null");
        let long = vec![0; PAYLOAD_BYTES_MAX as usize + 1];
        let error = tail.append(&long).unwrap_err();
        assert!(matches!(error, WalError::TooLong { .. }), "{error}");
        tail.append(b"short").unwrap();
    }
}
