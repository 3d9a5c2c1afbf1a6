//! Weights on a disk whose reads can fail.

use std::{
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use djinn_model::{Extent, Model, Origin, Weights, program::TensorId};

use super::open;

/// Weights on a simulated disk whose reads can fail.
pub struct FaultyDisk {
    real: Arc<dyn Weights>,
    /// Number of reads until one fails; `HEALTHY` if none fails, `GONE` if all do.
    pub reads_left: AtomicU64,
}

pub const HEALTHY: u64 = u64::MAX;
pub const GONE: u64 = 0;

impl Weights for FaultyDisk {
    fn origin(&self) -> Origin {
        self.real.origin()
    }
    fn files(&self) -> Vec<u64> {
        self.real.files()
    }
    fn extent(&self, tensor: TensorId) -> Extent {
        self.real.extent(tensor)
    }
    fn read(&self, file: usize, offset: u64, dst: &mut [u8]) -> io::Result<()> {
        let fails = match self.reads_left.load(Ordering::SeqCst) {
            HEALTHY => false,
            GONE => true,
            _ => self.reads_left.fetch_sub(1, Ordering::SeqCst) == 1,
        };
        if fails {
            // Garbage, which the engine must not use as weights.
            dst.fill(0xFF);
            let what = format!("file {file}: reading at offset {offset}: I/O error");
            return Err(io::Error::other(what));
        }
        self.real.read(file, offset, dst)
    }
}

/// Opens a model whose weights are on a faulty disk.
pub fn on_faulty_disk(folder: &Path) -> (Model, Arc<FaultyDisk>) {
    let mut model = open(folder);
    let disk = Arc::new(FaultyDisk {
        real: Arc::clone(&model.weights),
        reads_left: AtomicU64::new(HEALTHY),
    });
    model.weights = Arc::clone(&disk) as Arc<dyn Weights>;
    (model, disk)
}
