//! Durable files: a write-ahead log, archives and atomic writes.
//!
//! [`Log`] is an append-only log in a folder of its own. Opening the folder again reads the
//! records back in order. Opening drops a record that a crash cut off at the end. Other damage
//! costs the damaged records alone: opening reports the damage and keeps the damaged file.
//! [`Log::compact`] replaces a long log by a shorter one.
//!
//! [`Archive`] is a portable file: a header of bytes that the writer chooses, and pages of equal
//! size. [`ArchiveWriter`] creates an archive, which appears under its name when it is complete.
//!
//! [`write_atomically`] replaces a file by new content in one step.
//!
//! Log and archive give the same guarantees:
//! - Bytes read are the bytes written: every run of bytes has a checksum, which also covers the
//!   position of the run. An archive fails at a damaged page; a log reports a damaged record.
//! - A failed write has no effect. The log ends with its last complete record, and the archive
//!   does not appear.
//! - Nothing is replaced or removed before its replacement is on disk.
//! - Only the owner of the process has access to the files and folders, whatever the umask.
//! - A length read from a file is checked against the file's size before memory is allocated.
//! - Checksums detect accidents, not forgeries: they are fast and use no secret.

#![forbid(unsafe_code)]

mod archive;
mod atomic_file;
mod checksum;
mod disk;
mod error;
mod log;

pub use archive::{Archive, ArchiveWriter};
pub use atomic_file::write_atomically;
pub use error::WalError;
pub use log::{DamagedRange, Log, LogContents, PAYLOAD_BYTES_MAX};
