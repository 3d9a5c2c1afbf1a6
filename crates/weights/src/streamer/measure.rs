//! Measurement of the rate at which the model's files can be read with the settings of the link.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use djinn_device::host::Buffer;
use djinn_model::Weights;
use djinn_types::IO_BLOCK;

use crate::{LinkSettings, MemorySettings};

/// Result of a link measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkRate {
    /// Bytes read.
    pub bytes: u64,
    /// Seconds from the first read to the end of the last read.
    pub seconds: f64,
}

impl LinkRate {
    /// Bytes per second.
    pub fn bytes_per_s(&self) -> f64 {
        self.bytes as f64 / self.seconds.max(1e-9)
    }
}

/// Reads a model's files in chunks with `workers` threads for about `time`, and starts over at
/// the end of the files. `start` is the position of the first read, as a share of all bytes. A
/// chunk is at most as long as a file.
pub fn measure_link(
    weights: &dyn Weights,
    chunk: u64,
    workers: usize,
    time: Duration,
    start: f64,
) -> io::Result<LinkRate> {
    let workers = workers.clamp(1, MemorySettings::WORKERS_MAX);
    let files = weights.files();
    let longest = files.iter().copied().max().unwrap_or(0);
    let chunk = chunk.min(longest).next_multiple_of(IO_BLOCK).max(IO_BLOCK);
    let chunks: Vec<(usize, u64)> = files
        .iter()
        .enumerate()
        .flat_map(|(file, &bytes)| {
            let starts = (0..bytes).step_by(chunk as usize);
            starts.map(move |start| (file, start))
        })
        .collect();
    if chunks.is_empty() {
        return Err(io::Error::other(
            "the model has no weight files, so the link cannot be measured",
        ));
    }
    let first = (chunks.len() as f64 * start) as u64;
    // The memory has the slab's page size and a ring's size, because page size and CPU caches
    // change the result.
    let turns = (LinkSettings::MEASURED_BYTES / chunk / workers as u64).max(1);
    let mut memory = Buffer::new(workers * (turns * chunk) as usize)?;
    memory.bytes().fill(0);
    let (next, bytes) = (AtomicU64::new(first), AtomicU64::new(0));
    let failure = Mutex::new(None);
    let clock = Instant::now();
    let read = |memory: &mut [u8]| -> io::Result<()> {
        let mut turn = 0;
        while clock.elapsed() < time {
            let buffer = &mut memory[turn * chunk as usize..][..chunk as usize];
            turn = (turn + 1) % turns as usize;
            let number = next.fetch_add(1, Ordering::Relaxed) as usize;
            let (file, offset) = chunks[number % chunks.len()];
            weights.read(file, offset, buffer)?;
            bytes.fetch_add(chunk.min(files[file] - offset), Ordering::Relaxed);
        }
        Ok(())
    };
    let fail = |error: io::Error| {
        let mut failure = failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert(error);
    };
    std::thread::scope(|scope| {
        for memory in memory.bytes().chunks_exact_mut((turns * chunk) as usize) {
            let reader = || read(memory).unwrap_or_else(fail);
            if let Err(error) = std::thread::Builder::new().spawn_scoped(scope, reader) {
                fail(error);
            }
        }
    });
    let seconds = clock.elapsed().as_secs_f64();
    match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(LinkRate {
            bytes: bytes.into_inner(),
            seconds,
        }),
    }
}
