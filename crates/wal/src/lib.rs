//! Files that survive what happens to them: crashes, full disks, changed and missing bytes.
//!
//! [`Spill`] holds pages of KV that left host memory: slots of one size in one file, written
//! and read by several threads at once. It is of no use to anybody after its process has
//! ended, so nothing is synced, and what a killed process left is removed by the next one.
//!
//! [`Log`] remembers what happened, in order: records are appended to a file in a folder of
//! its own and are there again when the folder is opened next. What a crash tore off at the
//! end is dropped; anything else that is wrong is an error. When a log has grown long,
//! [`Log::compact`] puts a shorter one in its place.
//!
//! [`Archive`] is one thing in one file that another machine can read: a header of bytes the
//! writer chooses, and pages of equal size. [`ArchiveWriter`] makes it, and it appears under
//! its name only when it is whole.
//!
//! What holds for all three:
//! - Bytes that come back are the bytes that went in, or there is an error: every run of
//!   bytes has its checksum, and the checksum covers where the run belongs.
//! - A failed write undoes itself. The slot is as if never written, the log ends with its last
//!   whole record, the archive does not appear.
//! - Nothing is replaced or removed before what takes its place is on disk.
//! - A number read from a file is compared with the file's size before memory is taken for it.
//! - Checksums find accidents, not forgeries: they are fast and hold no secret.

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
pub use log::{Log, PAYLOAD_BYTES_MAX};
