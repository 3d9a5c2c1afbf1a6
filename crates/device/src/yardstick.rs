//! The `gemm` crate, as a yardstick for our products.

use std::time::{Duration, Instant};

/// One f32 product `[m, k] · [k, n]` of the `gemm` crate, to be timed.
pub struct Gemm {
    m: usize,
    n: usize,
    k: usize,
    a: Vec<f32>,
    b: Vec<f32>,
    c: Vec<f32>,
    parallelism: gemm::Parallelism,
}

impl Gemm {
    /// Allocates the operands of a product of these sizes for this many threads.
    pub fn new(m: usize, n: usize, k: usize, threads: usize) -> Self {
        let numbers = |count: usize| (0..count).map(|i| (i % 251) as f32 * 0.01 - 1.0).collect();
        Gemm {
            m,
            n,
            k,
            a: numbers(m * k),
            b: numbers(k * n),
            c: vec![0.0; m * n],
            parallelism: match threads {
                1 => gemm::Parallelism::None,
                threads => gemm::Parallelism::Rayon(threads),
            },
        }
    }

    /// Runs the product once, and returns its time.
    pub fn run(&mut self) -> Duration {
        let started = Instant::now();
        // The weights are stored as `[n, k]`, as in a checkpoint; the strides transpose them.
        // SAFETY: the buffers hold m·k, n·k and m·n numbers, which the strides address.
        unsafe {
            gemm::gemm(
                self.m,
                self.n,
                self.k,
                self.c.as_mut_ptr(),
                1,
                self.n as isize,
                false,
                self.a.as_ptr(),
                1,
                self.k as isize,
                self.b.as_ptr(),
                self.k as isize,
                1,
                0.0,
                1.0,
                false,
                false,
                false,
                self.parallelism,
            );
        }
        started.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::Gemm;

    #[test]
    fn multiplies() {
        let mut product = Gemm::new(3, 5, 7, 1);
        product.run();
        for row in 0..3 {
            for col in 0..5 {
                let sum: f32 = (0..7)
                    .map(|k| product.a[row * 7 + k] * product.b[col * 7 + k])
                    .sum();
                assert!((product.c[row * 5 + col] - sum).abs() < 1e-4);
            }
        }
    }
}
