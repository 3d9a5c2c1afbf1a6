//! Weights of a checkpoint, read from its files.

use std::{fs, io, time::SystemTime};

use super::slow_file::SlowFile;
use super::source::{Extent, Origin, Weights};
use crate::program::TensorId;

/// Weights stored in safetensors files.
pub struct FileWeights {
    files: Vec<SlowFile>,
    /// Extent of each tensor, by [`TensorId`].
    extents: Vec<Extent>,
}

impl FileWeights {
    pub(crate) fn new(files: Vec<SlowFile>, extents: Vec<Extent>) -> Self {
        FileWeights { files, extents }
    }
}

impl Weights for FileWeights {
    fn origin(&self) -> Origin {
        if self.files.iter().all(SlowFile::is_direct) {
            Origin::Direct
        } else {
            Origin::Cached
        }
    }

    fn files(&self) -> Vec<u64> {
        self.files.iter().map(SlowFile::bytes).collect()
    }

    fn stamps(&self) -> Vec<SystemTime> {
        let changed = |file: &SlowFile| fs::metadata(file.path())?.modified();
        // A time that is unknown equals no other, so that the file never counts as unchanged.
        let known = |file| changed(file).unwrap_or_else(|_| SystemTime::now());
        self.files.iter().map(known).collect()
    }

    fn extent(&self, tensor: TensorId) -> Extent {
        self.extents[tensor.0]
    }

    fn read(&self, file: usize, offset: u64, dst: &mut [u8]) -> io::Result<()> {
        self.files[file].read(offset, dst)
    }

    fn read_to_keep(&self, file: usize, offset: u64, dst: &mut [u8]) -> io::Result<()> {
        self.files[file].read_cached(offset, dst)
    }
}
