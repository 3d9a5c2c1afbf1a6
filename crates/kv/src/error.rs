//! Errors of the KV cache.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use djinn_device::DeviceError;

use crate::frames::OutOfPages;

/// Result of an operation on the KV cache.
pub(crate) type Result<T> = std::result::Result<T, KvError>;

/// Failure of an operation on the KV cache.
#[derive(Debug, thiserror::Error)]
pub enum KvError {
    /// The device failed to copy a page, or to order copies.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A tier has too few free frames.
    #[error(transparent)]
    OutOfPages(#[from] OutOfPages),
    /// The spill file could not be created, written or read.
    #[error(transparent)]
    Spill(#[from] SpillError),
    /// The threads that read and write the spill file did not start.
    #[error(
        "cannot start {count} threads for the spill file: {source}; raise the limit on threads, or remove --spill"
    )]
    Threads {
        /// Number of threads requested.
        count: usize,
        /// Error of the operating system.
        source: io::Error,
    },
}

/// Failure of a spill file: a write failed, or the bytes read are not the bytes written.
#[derive(Debug, thiserror::Error)]
pub enum SpillError {
    /// The disk, the quota or the file size limit is used up.
    #[error(
        "no space left for the spill file in {path}: {source}; free some space, or use another \
         folder for --spill",
        path = path.display()
    )]
    NoSpace {
        /// Folder of the spill file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A write failed for a reason other than space.
    #[error("cannot write to the spill file in {path}: {source}; use another folder for --spill", path = path.display())]
    Write {
        /// Folder of the spill file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A read failed.
    #[error("cannot read the spill file in {path}: {source}; check the disk, or use another folder for --spill", path = path.display())]
    Read {
        /// Folder of the spill file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The operating system refused to create, list or lock a file or folder.
    #[error("cannot {action} {path} for spilled pages: {source}; use another folder for --spill", path = path.display())]
    System {
        /// Action that failed: `create`, `unlink`, `list the folder`.
        action: &'static str,
        /// Path of the file or folder.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The file is shorter than the bytes written to it.
    #[error(
        "the spill file in {path} was truncated by another process: it has {bytes} bytes, but at \
         least {expected} were written",
        path = path.display()
    )]
    Truncated {
        /// Folder of the spill file.
        path: PathBuf,
        /// Size of the file.
        bytes: u64,
        /// Smallest size that holds the slot being read.
        expected: u64,
    },
    /// The slot is empty: it was never written, or its last write failed.
    #[error("slot {slot} of the spill file in {path} is empty", path = path.display())]
    SlotEmpty {
        /// Folder of the spill file.
        path: PathBuf,
        /// Number of the slot.
        slot: u32,
    },
    /// The bytes of the slot differ from the bytes written.
    #[error(
        "slot {slot} of the spill file in {path} is corrupt: another process changed the file, or \
         the disk is failing; check the disk, or use another folder for --spill",
        path = path.display()
    )]
    SlotCorrupt {
        /// Folder of the spill file.
        path: PathBuf,
        /// Number of the slot.
        slot: u32,
    },
}

impl SpillError {
    /// Classifies a failed write: no space, or another reason.
    pub(crate) fn write(path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        match is_no_space(&source) {
            true => SpillError::NoSpace { path, source },
            false => SpillError::Write { path, source },
        }
    }

    /// Wraps the error of a failed read.
    pub(crate) fn read(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| SpillError::Read {
            path: path.to_owned(),
            source,
        }
    }

    /// Wraps the error of another failed action. A full disk can make any action fail.
    pub(crate) fn system(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| {
            let path = path.to_owned();
            match is_no_space(&source) {
                true => SpillError::NoSpace { path, source },
                false => SpillError::System {
                    action,
                    path,
                    source,
                },
            }
        }
    }
}

fn is_no_space(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge
    )
}
