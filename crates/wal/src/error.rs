//! Errors of logs and archives.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Failure to write a log or an archive, or to read back what was written.
#[derive(Debug, thiserror::Error)]
pub enum WalError {
    /// The disk, the quota or the file size limit is used up.
    #[error(
        "no space left for {path}: {source}; free some space, or use a folder on another disk",
        path = path.display()
    )]
    NoSpace {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A write failed for a reason other than space.
    #[error("cannot write to {path}: {source}; check the disk and the permissions of the folder", path = path.display())]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A read failed.
    #[error("cannot read {path}: {source}; check the disk and the permissions of the file", path = path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The operating system refused another action on a file or folder.
    #[error("cannot {action} {path}: {source}", path = path.display())]
    System {
        /// Action that failed: `open`, `lock`, `rename`.
        action: &'static str,
        /// Path of the file or folder.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// Another process, or another part of this process, has the folder open.
    #[error(
        "another process uses the folder {folder}: stop that process, or use another folder",
        folder = folder.display()
    )]
    InUse {
        /// Path of the folder.
        folder: PathBuf,
    },
    /// The file is shorter than the bytes written to it.
    #[error(
        "{path} is truncated: it has {bytes} bytes, but at least {expected} were written; restore it from a backup",
        path = path.display()
    )]
    CutShort {
        /// Path of the file.
        path: PathBuf,
        /// Size of the file in bytes.
        bytes: u64,
        /// Smallest size that the content requires.
        expected: u64,
    },

    /// The record exceeds the limit for one record.
    #[error("a log record of {bytes} bytes exceeds the limit of {limit} bytes for one record")]
    TooLong {
        /// Size of the record in bytes.
        bytes: u64,
        /// Largest size of a record in bytes.
        limit: u64,
    },
    /// An earlier failure left the state on disk unknown, so the log accepts no more records.
    #[error(
        "{path} accepts no more records: after an earlier failure the state on disk is unknown; \
         restart the process to continue from what is on disk",
        path = path.display()
    )]
    Poisoned {
        /// Path of the log's file.
        path: PathBuf,
    },

    /// The file has another format.
    #[error("{path} is not a {format}; check the path", path = path.display())]
    WrongFormat {
        /// Path of the file.
        path: PathBuf,
        /// Expected format: `djinn archive`.
        format: &'static str,
    },
    /// The file has a version of the format that this program does not know.
    #[error(
        "{path} was written by a newer djinn: it has format version {found}, but this djinn reads \
         versions up to {known}; update djinn",
        path = path.display()
    )]
    Newer {
        /// Path of the file.
        path: PathBuf,
        /// Version of the file.
        found: u32,
        /// Newest version that this program reads.
        known: u32,
    },
    /// The header differs from the one written. The header describes the rest of the file.
    #[error("the header of {path} is damaged: restore the file from a backup", path = path.display())]
    HeaderDamaged {
        /// Path of the file.
        path: PathBuf,
    },
    /// The archive has extra bytes after its end.
    #[error(
        "{path} is damaged: it has {bytes} bytes, but {expected} were written; copy the file again",
        path = path.display()
    )]
    TooLarge {
        /// Path of the archive.
        path: PathBuf,
        /// Size of the archive in bytes.
        bytes: u64,
        /// Size according to the header.
        expected: u64,
    },
    /// The contents of an archive's page differ from the page that was written.
    #[error("page {page} of {path} is damaged: copy the file again", path = path.display())]
    PageDamaged {
        /// Path of the archive.
        path: PathBuf,
        /// Number of the damaged page.
        page: usize,
    },
    /// The archive has fewer pages than requested.
    #[error("{path} has no page {page}; it has {pages} pages, numbered from 0", path = path.display())]
    NoSuchPage {
        /// Path of the archive.
        path: PathBuf,
        /// Number of the requested page.
        page: usize,
        /// Number of pages of the archive.
        pages: usize,
    },
    /// The buffer does not have the size of the archive's pages.
    #[error(
        "a page of {path} has {page_bytes} bytes, but the buffer has {given}",
        path = path.display()
    )]
    PageSize {
        /// Path of the archive.
        path: PathBuf,
        /// Size of a page in bytes.
        page_bytes: u64,
        /// Size of the buffer in bytes.
        given: u64,
    },
    /// A file already exists at the path of a new archive.
    #[error("{path} exists: remove it, or use another name", path = path.display())]
    Exists {
        /// Path of the existing file.
        path: PathBuf,
    },
}

impl WalError {
    /// Classifies a failed write: no space, or another reason.
    pub(crate) fn write(path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        match source.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
                WalError::NoSpace { path, source }
            }
            _ => WalError::Write { path, source },
        }
    }

    /// Wraps the error of a failed read.
    pub(crate) fn read(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| WalError::Read {
            path: path.to_owned(),
            source,
        }
    }

    /// Wraps the error of another failed action. A full disk can make any action fail.
    pub(crate) fn system(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| match WalError::write(path, source) {
            WalError::Write { path, source } => WalError::System {
                action,
                path,
                source,
            },
            no_space => no_space,
        }
    }
}
