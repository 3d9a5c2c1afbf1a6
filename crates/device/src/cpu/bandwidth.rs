//! Measurement of the memory bandwidth.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use super::CpuDevice;
use super::lanes::{Kernel, LANES, Simd};
use super::slab::Slab;
use crate::Result;

/// Bytes a thread reads at a time.
const PIECE: usize = 1 << 20;

impl CpuDevice {
    /// Measures the rate, in bytes per second, at which all threads together read a buffer of
    /// `bytes`: the median of several passes. The buffer should be much larger than the caches; a
    /// smaller buffer measures the caches. Every byte is written first, so that no two pages map
    /// to the same zero page.
    pub fn read_bandwidth(&self, bytes: u64) -> Result<f64> {
        let pieces = (bytes as usize).div_ceil(PIECE).max(1);
        let buffer = Slab::new((pieces * PIECE) as u64)?;
        self.pool.run(pieces, &|_, piece| {
            // SAFETY: each piece lies in the buffer and belongs to one thread.
            unsafe { std::ptr::write_bytes(buffer.at((piece * PIECE) as u64), 1, PIECE) };
        });
        let sink = AtomicU32::new(0);
        let mut times = [0.0; 9];
        for time in &mut times {
            let start = Instant::now();
            self.pool.run(pieces, &|_, piece| {
                let piece = buffer.at((piece * PIECE) as u64).cast_const().cast();
                self.engine.run(Read { piece, sink: &sink });
            });
            *time = start.elapsed().as_secs_f64();
        }
        std::hint::black_box(sink.into_inner());
        times.sort_by(f64::total_cmp);
        Ok((pieces * PIECE) as f64 / times[times.len() / 2])
    }
}

struct Read<'a> {
    piece: *const f32,
    /// Receives the sums, so that the compiler keeps the reads.
    sink: &'a AtomicU32,
}

impl Kernel for Read<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // Eight streams read faster than one, as for the weight rows of a product.
        let stretch = PIECE / 8 / size_of::<f32>();
        let mut acc = [s.splat(0.0); 8];
        for i in (0..stretch).step_by(LANES) {
            for (stream, acc) in acc.iter_mut().enumerate() {
                let p = self.piece.wrapping_add(stream * stretch + i);
                // SAFETY: inside the piece, which is initialised.
                *acc = s.max(*acc, unsafe { s.load(p) });
            }
        }
        let most = acc.into_iter().fold(acc[0], |a, b| s.max(a, b));
        let most = s.greatest(most);
        self.sink.fetch_xor(most.to_bits(), Ordering::Relaxed);
    }
}
