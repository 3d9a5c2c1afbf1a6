//! What can go wrong with a file.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// A file that could not be written, or not be read back as it was written.
#[derive(Debug, thiserror::Error)]
pub enum WalError {
    /// The disk, the quota or the limit on a file's size is used up.
    #[error(
        "no space left for {path}: {source}; free some, or use a folder on another disk",
        path = path.display()
    )]
    NoSpace {
        /// What was written to.
        path: PathBuf,
        /// As the system put it.
        source: io::Error,
    },
    /// Bytes did not go to a file, for another reason than space.
    #[error("cannot write to {path}: {source}", path = path.display())]
    Write {
        /// What was written to.
        path: PathBuf,
        /// As the system put it.
        source: io::Error,
    },
    /// Bytes did not come from a file.
    #[error("cannot read {path}: {source}", path = path.display())]
    Read {
        /// What was read.
        path: PathBuf,
        /// As the system put it.
        source: io::Error,
    },
    /// Something else about a file or a folder that the system would not do.
    #[error("cannot {doing} {path}: {source}", path = path.display())]
    System {
        /// What was asked of it: `open`, `lock`, `rename`.
        doing: &'static str,
        /// With which file or folder.
        path: PathBuf,
        /// As the system put it.
        source: io::Error,
    },
    /// A folder that another process, or another part of this one, has open.
    #[error(
        "another process uses the folder {folder}: end it, or use another folder",
        folder = folder.display()
    )]
    InUse {
        /// Which folder.
        folder: PathBuf,
    },
    /// A file with fewer bytes than were written to it.
    #[error(
        "{path} is cut short: it has {bytes} of at least {expected} bytes that were written",
        path = path.display()
    )]
    CutShort {
        /// Which file.
        path: PathBuf,
        /// It has.
        bytes: u64,
        /// It should have, as far as could be told.
        expected: u64,
    },

    /// Larger than a record of a log may be.
    #[error("a record of {bytes} bytes is too long for a log: {limit} is the most")]
    TooLong {
        /// The record's.
        bytes: u64,
        /// The most.
        limit: u64,
    },
    /// A log that is used after a failure which leaves unknown what is on disk.
    #[error(
        "{path} takes no more records: after an earlier failure it is unknown what is on disk; \
         start again to go on from what is",
        path = path.display()
    )]
    Poisoned {
        /// The log's file.
        path: PathBuf,
    },
    /// A bad record in a log, with good ones behind it: no crash does that.
    #[error(
        "{path} is damaged at byte {offset}, and the record at byte {next} is whole again: \
         nothing was changed; restore the file from a copy, or move it away to start without it",
        path = path.display()
    )]
    RecordDamaged {
        /// The log's file.
        path: PathBuf,
        /// Where the bad record begins.
        offset: u64,
        /// Where a later, good one begins.
        next: u64,
    },

    /// A file that is something else altogether.
    #[error("{path} is not {what}", path = path.display())]
    NotOne {
        /// Which file.
        path: PathBuf,
        /// What it should be.
        what: &'static str,
    },
    /// A file of a version of the format that does not exist yet.
    #[error(
        "{path} was written by a newer djinn: its format is {found}, and {known} is the newest \
         this one reads; update djinn",
        path = path.display()
    )]
    Newer {
        /// Which file.
        path: PathBuf,
        /// The version it says.
        found: u32,
        /// The newest one known.
        known: u32,
    },
    /// A file whose first bytes, which say how to read the others, are not as written.
    #[error("{path} is damaged in its header: restore it from a copy", path = path.display())]
    HeaderDamaged {
        /// Which file.
        path: PathBuf,
    },
    /// An archive with something behind its end.
    #[error(
        "{path} is damaged: {bytes} bytes, {expected} were written; copy it again",
        path = path.display()
    )]
    TooLarge {
        /// Which file.
        path: PathBuf,
        /// It has.
        bytes: u64,
        /// It should have.
        expected: u64,
    },
    /// A page of an archive that is not as written.
    #[error("{path} is damaged at page {page}: copy it again", path = path.display())]
    PageDamaged {
        /// Which file.
        path: PathBuf,
        /// Which page.
        page: usize,
    },
    /// A page that an archive does not have.
    #[error("{path} has no page {page}: it has {pages}", path = path.display())]
    NoSuchPage {
        /// Which file.
        path: PathBuf,
        /// Asked for.
        page: usize,
        /// How many there are.
        pages: usize,
    },
    /// A page of another size than the archive's.
    #[error(
        "the pages of {path} are of {page_bytes} bytes, not of {given}",
        path = path.display()
    )]
    PageSize {
        /// Which file.
        path: PathBuf,
        /// The archive's.
        page_bytes: u64,
        /// Given, or asked for.
        given: u64,
    },
    /// A file in the place where an archive should go.
    #[error("{path} exists: remove it, or use another name", path = path.display())]
    Exists {
        /// Which file.
        path: PathBuf,
    },
}

impl WalError {
    /// A failed write: of no space, or of something else.
    pub(crate) fn write(path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        match source.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
                WalError::NoSpace { path, source }
            }
            _ => WalError::Write { path, source },
        }
    }

    /// What to make of a failed read.
    pub(crate) fn read(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| WalError::Read {
            path: path.to_owned(),
            source,
        }
    }

    /// What to make of something else that failed. A full disk can fail anything.
    pub(crate) fn system(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| match WalError::write(path, source) {
            WalError::Write { path, source } => WalError::System {
                doing,
                path,
                source,
            },
            no_space => no_space,
        }
    }
}
