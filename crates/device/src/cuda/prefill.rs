//! Launches of prefill attention: the number of rows chooses between two kernels with the same bits.

use super::kernels::LaunchSize;

/// Threads of a block, as in the CUDA sources.
const THREADS: usize = 128;
/// Tokens of a tile of keys or values, as in the CUDA sources.
const TILE_KEYS: usize = 64;
/// Rows of a block, as in the CUDA sources.
const ROWS: usize = 64;
/// Rows of a block that shares few rows between its warps, as in the CUDA sources.
const FEW_ROWS: usize = 16;
/// Largest number of rows of a launch that counts as few.
const FEW_ROWS_MAX: usize = 64;
/// Threads and keys of a step of a block of few rows, as in the CUDA sources.
const FEW_THREADS: usize = 256;
const FEW_KEYS: usize = 2 * TILE_KEYS;
/// Least and largest number of steps whose keys and values a block of few rows holds.
const STAGES: (usize, usize) = (3, 4);
/// Bytes that the warps of a block of few rows exchange, as in the CUDA sources.
const EXCHANGE: usize = 14_784;
/// Bytes of shared memory that each block takes in addition.
const BLOCK_OTHER: usize = 1 << 10;

/// Launch of prefill attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PrefillShape {
    pub(super) size: LaunchSize,
    /// Steps that a block of the kernel for few rows holds; `None` for the kernel for many rows.
    pub(super) stages: Option<usize>,
}

impl PrefillShape {
    /// Launch for heads, rows and elements of a head, on a card whose blocks have at most `shared` bytes
    /// of shared memory.
    pub(super) fn of(shape: [usize; 3], shared: usize, multiprocessors: usize) -> Self {
        let [heads, rows, width] = shape;
        Self::few(shape, shared, multiprocessors).unwrap_or(PrefillShape {
            size: LaunchSize {
                blocks: [heads, rows.div_ceil(ROWS), 1],
                threads: THREADS,
                shared: 2 * key_bytes(TILE_KEYS, width),
            },
            stages: None,
        })
    }

    /// Launch of the kernel for few rows, if they are few and shared memory has room for them.
    fn few(
        [heads, rows, width]: [usize; 3],
        shared: usize,
        multiprocessors: usize,
    ) -> Option<Self> {
        let blocks = [heads, rows.div_ceil(FEW_ROWS), 1];
        let step = key_bytes(FEW_KEYS, width);
        // Two blocks share a multiprocessor if each holds enough steps then.
        let stages_of = |sharing: usize| {
            let room = (shared / sharing).saturating_sub(EXCHANGE + (sharing - 1) * BLOCK_OTHER);
            (room / step).min(STAGES.1)
        };
        let is_crowded = blocks[0] * blocks[1] > multiprocessors;
        let stages = match stages_of(2) {
            stages if is_crowded && stages >= STAGES.0 => stages,
            _ => stages_of(1),
        };
        (rows <= FEW_ROWS_MAX && stages >= STAGES.0).then_some(PrefillShape {
            size: LaunchSize {
                blocks,
                threads: FEW_THREADS,
                shared: stages * step + EXCHANGE,
            },
            stages: Some(stages),
        })
    }
}

/// Bytes of some keys and their values.
fn key_bytes(keys: usize, width: usize) -> usize {
    2 * keys * width * 2
}

#[cfg(test)]
mod tests {
    use super::PrefillShape;

    const H200: (usize, usize) = (226 << 10, 132);

    #[test]
    fn few_rows_fill_the_shared_memory_of_a_card() {
        let stages = |shape: [usize; 3]| PrefillShape::of(shape, H200.0, H200.1).stages;
        assert_eq!(stages([40, 16, 128]), Some(3));
        assert_eq!(stages([40, 16, 64]), Some(4));
        assert_eq!(
            stages([40, 64, 64]),
            Some(3),
            "two blocks on a multiprocessor"
        );
        assert_eq!(stages([40, 65, 128]), None, "many rows");
    }

    #[test]
    fn a_card_with_little_shared_memory_uses_the_kernel_for_many_rows() {
        let stages = |shape: [usize; 3]| PrefillShape::of(shape, 162 << 10, 108).stages;
        assert_eq!(stages([40, 16, 128]), None);
        assert_eq!(stages([40, 16, 64]), Some(4));
    }

    #[test]
    fn a_launch_fits_the_card() {
        for heads in [1, 12, 64, 128] {
            for rows in [1, 16, 17, 64, 65, 2048] {
                for width in [64, 128] {
                    let size = PrefillShape::of([heads, rows, width], H200.0, H200.1).size;
                    assert!(size.shared <= H200.0, "{size:?}");
                }
            }
        }
    }
}
