//! Buffered reads of a log file at any offset.

use std::fs::File;
use std::path::Path;

use crate::{WalError, disk};

/// Number of bytes that one read of the file fetches.
const WINDOW_BYTES: usize = 1 << 18;

/// Part of a file that is in memory. Reads that move forward in small steps seldom reach the file.
pub(super) struct Window<'f> {
    file: &'f File,
    path: &'f Path,
    /// Size of the file when it was opened.
    size: u64,
    /// Offset of the first byte in memory.
    start: u64,
    bytes: Vec<u8>,
}

impl<'f> Window<'f> {
    /// Opens a window on a file. Bytes that are appended later are not visible.
    pub(super) fn new(file: &'f File, path: &'f Path) -> Result<Window<'f>, WalError> {
        Ok(Window {
            file,
            path,
            size: disk::size(file, path)?,
            start: 0,
            bytes: Vec::new(),
        })
    }

    /// Size of the file.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Reads the bytes at `offset`. The caller makes sure that the file has them.
    pub(super) fn read(&mut self, offset: u64, to: &mut [u8]) -> Result<(), WalError> {
        if to.len() > WINDOW_BYTES {
            return disk::read_at(self.file, self.path, to, offset);
        }
        if self.find(offset, to.len()).is_none() {
            let left = self.size.saturating_sub(offset);
            let length = left.min(WINDOW_BYTES as u64) as usize;
            self.start = offset;
            self.bytes.resize(length.max(to.len()), 0);
            disk::read_at(self.file, self.path, &mut self.bytes, offset)?;
        }
        let at = self.find(offset, to.len()).expect("the window was filled");
        to.copy_from_slice(&self.bytes[at..at + to.len()]);
        Ok(())
    }

    /// Returns the index of the bytes in the window, if all of them are in it.
    fn find(&self, offset: u64, length: usize) -> Option<usize> {
        let at = usize::try_from(offset.checked_sub(self.start)?).ok()?;
        (at.checked_add(length)? <= self.bytes.len()).then_some(at)
    }
}
