//! Products of few rows in which each output is one chain of sums.
//!
//! A tensor core adds sixteen products to a sum at a time. An algorithm of the library that neither
//! splits the inputs nor reorders them adds them in order of the inputs, and so do these kernels. Both
//! then give the same bits, and the number of rows may choose between them. This is checked with random
//! numbers for every algorithm of the library before its chain kernel is used.

use cudarc::driver::result;
use djinn_types::{DType, Order};

use super::CudaDevice;
use super::args::{PartArg, ProductsArg};
use super::blas::{Blas, Operands, Product};
use super::driver::DriverContext;
use super::kernels::LaunchSize;
use super::launch::launch;
use super::memory::DeviceMemory;
use crate::Result;

/// Largest number of rows.
pub(super) const CHAIN_ROWS: usize = 64;
/// Inputs that a tensor core adds at a time.
const GROUP: usize = 16;
/// Bytes of a row of inputs or weights in a stage, as in the CUDA sources.
const STAGE_ROW: usize = 256;
/// Outputs that a warp multiplies at a time.
const EIGHT: usize = 8;
/// Least and largest number of stages of the pipeline.
const STAGES: (usize, usize) = (2, 8);
/// Bytes of shared memory that each block takes in addition.
const BLOCK_OTHER: usize = 1 << 10;
/// Threads of a block that copy, as in the CUDA sources.
const COPIERS: usize = 128;
/// Largest number of warps of the only block on a multiprocessor whose outputs are few.
const ALONE_WARPS: usize = 8;

/// Shape of a launch. All shapes give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChainShape {
    /// Rows of a block.
    rows: usize,
    /// Outputs of a warp.
    outputs: usize,
    /// Warps of a block that multiply.
    warps: usize,
    blocks: usize,
    /// Stages of the pipeline.
    pub(super) stages: usize,
}

/// Kernel for some number of rows, as in the CUDA sources.
struct ChainKernel {
    rows: usize,
    /// Outputs of a warp.
    outputs: usize,
    /// Largest number of warps of a block that multiply.
    warps_max: usize,
    /// Blocks that a multiprocessor has registers for.
    blocks: usize,
}

const KERNELS: [ChainKernel; 3] = [
    ChainKernel {
        rows: 16,
        outputs: EIGHT,
        warps_max: 14,
        blocks: 2,
    },
    ChainKernel {
        rows: 32,
        outputs: EIGHT,
        warps_max: 14,
        blocks: 1,
    },
    // With many rows, a warp reads all inputs from shared memory for each eight outputs.
    ChainKernel {
        rows: CHAIN_ROWS,
        outputs: 2 * EIGHT,
        warps_max: 8,
        blocks: 1,
    },
];

impl ChainShape {
    /// Shape for products on a card with this number of multiprocessors, whose blocks have at most
    /// `shared` bytes of shared memory.
    pub(super) fn of(arg: &ProductsArg, shared: usize, multiprocessors: usize) -> Self {
        let parts = &arg.part[..arg.parts as usize];
        let eights = parts.iter().map(|p| (p.outputs as usize).div_ceil(EIGHT));
        Self::for_outputs(arg.rows as usize, eights.sum(), shared, multiprocessors)
    }

    /// Divides the outputs evenly over the multiprocessors: as few blocks for each as their warps
    /// allow, and as many stages as their shared memory has room for.
    fn for_outputs(rows: usize, eights: usize, shared: usize, multiprocessors: usize) -> Self {
        let kernel = KERNELS.iter().find(|kernel| rows <= kernel.rows);
        let &ChainKernel {
            rows,
            outputs,
            warps_max,
            blocks,
        } = kernel.expect("a chain has few rows");
        let tiles = (eights * EIGHT).div_ceil(outputs);
        let warps_of = |each: usize| tiles.div_ceil(multiprocessors * each).max(1);
        let stage_of = |warps: usize| STAGE_ROW * (rows + warps * outputs);
        let stages_of = |warps: usize, sharing: usize| {
            (shared / sharing).saturating_sub((sharing - 1) * BLOCK_OTHER) / stage_of(warps)
        };
        let is_alone = warps_of(1) <= ALONE_WARPS;
        let rounds = (1..).map(|round| round * blocks);
        let each = std::iter::once(1)
            .filter(|_| is_alone)
            .chain(rounds)
            .find(|&each| {
                warps_of(each) <= warps_max
                    && stages_of(warps_of(each), each.min(blocks)) >= STAGES.0
            });
        let each = each.expect("enough blocks have few warps");
        let warps = warps_of(each);
        ChainShape {
            rows,
            outputs,
            warps,
            blocks: tiles.div_ceil(warps),
            stages: stages_of(warps, each.min(blocks)).min(STAGES.1),
        }
    }

    pub(super) fn name(&self, dtype: DType) -> String {
        format!("product_chain_{dtype}_{}_{}", self.rows, self.outputs)
    }

    pub(super) fn size(&self) -> LaunchSize {
        LaunchSize {
            blocks: [self.blocks, 1, 1],
            threads: 32 * self.warps + COPIERS,
            shared: self.stages * STAGE_ROW * (self.rows + self.warps * self.outputs),
        }
    }
}

/// Rows and outputs of the check.
const CHECKED_ROWS: usize = 64;
const CHECKED_OUTPUTS: usize = 64;

impl CudaDevice {
    /// Shape of a launch on this card.
    pub(super) fn chain_shape(&self, arg: &ProductsArg) -> ChainShape {
        let shared = self.card.kernels().shared_max;
        ChainShape::of(arg, shared, self.card.multiprocessors())
    }

    /// Checks whether the chain kernel gives the bits of the library's algorithm for a product, unless
    /// that is known.
    pub(super) fn check_chain(&self, blas: &Blas, product: Product) {
        if blas.checked_chain(product).is_none() {
            let fits = product.order == Order::OutIn && product.inputs.is_multiple_of(GROUP);
            // Without memory for the check the library computes all products. A failure of the card
            // appears again in the next operation.
            let is_chain = fits && self.is_same_chain(blas, product).unwrap_or(false);
            blas.set_chain(product, is_chain);
        }
    }

    /// Multiplies random numbers by the library and by the chain kernel, and compares the bits.
    fn is_same_chain(&self, blas: &Blas, product: Product) -> Result<bool> {
        let (inputs, dtype) = (product.inputs, product.dtype);
        let product = Product {
            rows: CHECKED_ROWS,
            outputs: CHECKED_OUTPUTS,
            x_stride: inputs,
            weight_stride: inputs,
            out_stride: CHECKED_OUTPUTS,
            ..product
        };
        let numbers = random_halves((CHECKED_ROWS + CHECKED_OUTPUTS) * inputs, dtype);
        let (read, written) = (2 * numbers.len() as u64, 4 * CHECKED_ROWS * CHECKED_OUTPUTS);
        let memory = DeviceMemory::new(&self.card, read + 2 * written as u64)?;
        let weights = memory.address() + 2 * (CHECKED_ROWS * inputs) as u64;
        let by_library = memory.address() + read;
        let by_chain = by_library + written as u64;
        let at = Operands {
            x: memory.address(),
            weights,
            out: by_library,
        };
        let mut arg = ProductsArg {
            x: memory.address(),
            x_stride: inputs as i64,
            rows: CHECKED_ROWS as i32,
            inputs: inputs as i32,
            parts: 1,
            part: [PartArg::default(); ProductsArg::PARTS],
        };
        arg.part[0] = PartArg {
            weights,
            out: by_chain,
            weight_stride: inputs as i64,
            out_stride: CHECKED_OUTPUTS as i64,
            outputs: CHECKED_OUTPUTS as i32,
            ..PartArg::default()
        };
        let (state, stream) = (&mut *self.state(), self.compute.stream);
        state.forget();
        self.card.enter()?;
        // SAFETY: the first bytes of the memory; the driver reads the numbers before it returns.
        unsafe { result::memcpy_htod_async(memory.address(), &numbers, stream) }
            .context("uploading to the card")?;
        // SAFETY: addresses in memory that lives until the stream has been waited for.
        unsafe { blas.run(product, at, stream.cast()) }?;
        let shape = self.chain_shape(&arg);
        launch!(self, state, &shape.name(dtype), shape.size(); arg, shape.stages as i32)?;
        state.interrupt();
        let mut found = [vec![0u8; written], vec![0u8; written]];
        for (found, at) in found.iter_mut().zip([by_library, by_chain]) {
            // SAFETY: `written` bytes of the memory; both sides live until the stream has been
            // waited for.
            unsafe { result::memcpy_dtoh_async(found, at, stream) }
                .context("downloading from the card")?;
        }
        self.compute.wait()?;
        Ok(found[0] == found[1])
    }
}

/// Random numbers of a type of two bytes, with magnitudes from 2⁻¹⁰ to 2⁴: sums of them differ with
/// the order of summation.
fn random_halves(count: usize, dtype: DType) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        // xorshift64
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let number = |bits: u64| {
        let magnitude = (bits % 14) as i32 - 10;
        let fraction = 1.0 + ((bits >> 8) & 0xffff) as f32 / 65536.0;
        let sign = if bits >> 63 == 0 { 1.0 } else { -1.0 };
        let x = sign * fraction * 2f32.powi(magnitude);
        match dtype {
            DType::F16 => half::f16::from_f32(x).to_le_bytes(),
            _ => half::bf16::from_f32(x).to_le_bytes(),
        }
    };
    (0..count).flat_map(|_| number(next())).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{CHAIN_ROWS, ChainShape, KERNELS};

    /// Shared memory of a block and number of multiprocessors of an H200.
    const H200: (usize, usize) = (226 << 10, 132);

    #[test]
    fn the_outputs_of_a_13b_model_use_every_multiprocessor_evenly() {
        let shape = |outputs: usize| ChainShape::for_outputs(16, outputs / 8, H200.0, H200.1);
        for (outputs, least) in [5120, 13824, 15360, 27648, 32000]
            .into_iter()
            .zip([0.95, 0.9, 0.9, 0.9, 0.9])
        {
            let blocks = shape(outputs).blocks;
            let rounds = blocks.div_ceil(132);
            assert!(
                blocks as f64 >= least * (rounds * 132) as f64,
                "{outputs}: {blocks}"
            );
        }
    }

    #[test]
    fn cards_with_less_shared_memory_have_fewer_stages() {
        let stages = |shared| ChainShape::for_outputs(16, 640, shared, 132).stages;
        assert_eq!(stages(226 << 10), 8);
        assert_eq!(stages(98 << 10), 7);
    }

    proptest! {
        #[test]
        fn a_launch_covers_all_outputs_and_fits_the_card(
            rows in 1..=CHAIN_ROWS, eights in 1usize..40_000, multiprocessors in 1usize..300,
            shared in (90usize << 10)..=226 << 10,
        ) {
            let shape = ChainShape::for_outputs(rows, eights, shared, multiprocessors);
            let kernel = KERNELS.iter().find(|kernel| kernel.rows == shape.rows);
            prop_assert!(shape.rows >= rows);
            prop_assert!(shape.blocks * shape.warps * shape.outputs >= 8 * eights);
            prop_assert!((shape.blocks - 1) * shape.warps * shape.outputs < 8 * eights);
            prop_assert!(shape.warps <= kernel.unwrap().warps_max);
            prop_assert!(shape.stages >= 2);
            prop_assert!(shape.size().shared <= shared);
        }
    }
}
