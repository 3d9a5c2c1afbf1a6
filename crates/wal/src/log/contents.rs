//! Content of a log, with its damage.

use std::path::PathBuf;

/// Content of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogContents {
    /// Valid records in order.
    pub records: Vec<Vec<u8>>,
    /// Damaged ranges in order.
    pub damage: Vec<DamagedRange>,
    /// Number of bytes of an incomplete record at the end.
    pub torn: u64,
    /// Files that opening set aside because of the damage. Inspecting sets no file aside.
    pub set_aside: Vec<PathBuf>,
}

/// Bytes of a log that differ from the bytes that were written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedRange {
    /// Path of the file before it was set aside.
    pub path: PathBuf,
    /// Offset of the first damaged byte, or of the record that contains the damage.
    pub offset: u64,
    /// Number of bytes.
    pub bytes: u64,
    /// Sequence number of the first record that the range contained.
    pub first: u64,
    /// Number of records that the range contained, which are lost. `None` if the number is
    /// unknown; 0 if only the header of the file is damaged. Sync marks count as records.
    pub lost: Option<u64>,
    /// Number of valid records before the range.
    pub before: usize,
}
