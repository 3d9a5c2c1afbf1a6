//! Synthetic weights from a counter-based generator. Any range of any tensor can be generated
//! alone, on any thread and any machine, with the same result.

use std::io;

use djinn_types::{DType, IO_BLOCK};
use half::{bf16, f16};

use super::source::{Extent, Origin, Weights};
use crate::program::{Program, Role, TensorId, TensorSpec};

/// Number of distinct values of a tensor: few enough that their stored form stays in the L1
/// cache.
const LEVELS: usize = 4096;
/// Number of elements that one random word gives. Each element takes 16 bits of the word.
const LANES: usize = 4;

/// Random weights for every tensor of a program.
pub struct SyntheticWeights {
    tensors: Vec<SyntheticTensor>,
    /// Possible values, one set for each distribution and dtype.
    palettes: Vec<Palette>,
}

/// Generator of one tensor.
struct SyntheticTensor {
    key: u64,
    palette: usize,
    /// Offset in a virtual file that holds all tensors.
    offset: u64,
    bytes: u64,
}

impl SyntheticTensor {
    fn end(&self) -> u64 {
        self.offset + self.bytes
    }
}

/// Values of a uniform distribution, as stored.
struct Palette {
    dtype: DType,
    mean: f32,
    reach: f32,
    values: Values,
}

enum Values {
    Half(Box<[u16; LEVELS]>),
    Full(Box<[u32; LEVELS]>),
}

impl SyntheticWeights {
    /// Creates weights for every tensor of `program`.
    pub fn new(program: &Program, seed: u64) -> Self {
        let mut weights = SyntheticWeights {
            tensors: Vec::with_capacity(program.tensors.len()),
            palettes: Vec::new(),
        };
        let mut end: u64 = 0;
        for spec in &program.tensors {
            let palette = weights.palette(spec);
            let source = SyntheticTensor {
                key: mix(hash(&spec.name) ^ mix(seed)),
                palette,
                offset: end.next_multiple_of(IO_BLOCK),
                bytes: spec.bytes(),
            };
            end = source.end();
            weights.tensors.push(source);
        }
        weights
    }

    fn palette(&mut self, spec: &TensorSpec) -> usize {
        let (mean, reach) = distribution(spec);
        let known = self.palettes.iter().position(|palette| {
            palette.dtype == spec.dtype && palette.mean == mean && palette.reach == reach
        });
        known.unwrap_or_else(|| {
            self.palettes.push(Palette::new(spec.dtype, mean, reach));
            self.palettes.len() - 1
        })
    }
}

/// Returns the mean and the largest deviation of a tensor's values. A matrix preserves the
/// magnitude of its input, so activations neither grow nor vanish over many blocks.
fn distribution(spec: &TensorSpec) -> (f32, f32) {
    let uniform = 3f32.sqrt();
    match spec.role {
        Role::Table => (0.0, 0.02 * uniform),
        Role::Matrix => (0.0, uniform / (spec.matrix().1 as f32).sqrt()),
        Role::Scale => (1.0, 0.05),
        Role::Bias => (0.0, 0.02),
    }
}

impl Palette {
    fn new(dtype: DType, mean: f32, reach: f32) -> Self {
        let value = |level: usize| {
            let unit = (2 * level + 1) as f32 / LEVELS as f32 - 1.0;
            mean + reach * unit
        };
        let half = |bits: fn(f32) -> u16| Values::Half(boxed(|level| bits(value(level))));
        let values = match dtype {
            DType::F16 => half(|x| f16::from_f32(x).to_bits()),
            DType::Bf16 => half(|x| bf16::from_f32(x).to_bits()),
            DType::F32 | DType::I32 => Values::Full(boxed(|level| value(level).to_bits())),
        };
        Palette {
            dtype,
            mean,
            reach,
            values,
        }
    }
}

fn boxed<T: Copy + Default>(f: impl Fn(usize) -> T) -> Box<[T; LEVELS]> {
    let mut values = Box::new([T::default(); LEVELS]);
    for (level, value) in values.iter_mut().enumerate() {
        *value = f(level);
    }
    values
}

impl Weights for SyntheticWeights {
    fn origin(&self) -> Origin {
        Origin::Generated
    }

    fn files(&self) -> Vec<u64> {
        vec![self.tensors.last().map_or(0, SyntheticTensor::end)]
    }

    fn extent(&self, tensor: TensorId) -> Extent {
        let source = &self.tensors[tensor.0];
        Extent {
            file: 0,
            offset: source.offset,
            bytes: source.bytes,
        }
    }

    fn read(&self, _: usize, offset: u64, dst: &mut [u8]) -> io::Result<()> {
        let end = offset.saturating_add(dst.len() as u64);
        let first = self.tensors.partition_point(|t| t.end() <= offset);
        // Bytes between tensors are padding and keep their value.
        for source in self.tensors[first..].iter().take_while(|t| t.offset < end) {
            let (from, to) = (offset.max(source.offset), end.min(source.end()));
            let part = &mut dst[(from - offset) as usize..(to - offset) as usize];
            self.draw(source, from - source.offset, part);
        }
        Ok(())
    }
}

impl SyntheticWeights {
    /// Generates bytes of a tensor, starting at `offset`.
    fn draw(&self, source: &SyntheticTensor, offset: u64, dst: &mut [u8]) {
        match &self.palettes[source.palette].values {
            Values::Half(values) => fill::<8>(source.key, offset, dst, |word| {
                pack(word, |level| values[level].to_le_bytes())
            }),
            Values::Full(values) => fill::<16>(source.key, offset, dst, |word| {
                pack(word, |level| values[level].to_le_bytes())
            }),
        }
    }
}

/// Returns the stored form of the elements of one random word.
fn pack<const B: usize, const N: usize>(word: u64, value: impl Fn(usize) -> [u8; B]) -> [u8; N] {
    let mut bytes = [0; N];
    for (lane, out) in bytes.chunks_exact_mut(B).enumerate() {
        let level = (word >> (lane * 64 / LANES)) as usize % LEVELS;
        out.copy_from_slice(&value(level));
    }
    bytes
}

/// Fills `dst` with bytes of a tensor, starting at `offset`. One random word gives `N` bytes.
fn fill<const N: usize>(key: u64, offset: u64, dst: &mut [u8], pack: impl Fn(u64) -> [u8; N]) {
    let mut index = offset / N as u64;
    let skip = (offset % N as u64) as usize;
    let mut rest = dst;
    if skip > 0 {
        let first = pack(word(key, index));
        let (head, tail) = rest.split_at_mut(rest.len().min(N - skip));
        head.copy_from_slice(&first[skip..skip + head.len()]);
        rest = tail;
        index += 1;
    }
    let (whole, last) = rest.as_chunks_mut::<N>();
    for chunk in whole {
        *chunk = pack(word(key, index));
        index += 1;
    }
    let bytes = pack(word(key, index));
    last.copy_from_slice(&bytes[..last.len()]);
}

/// Returns random word `index` of a tensor by SplitMix64, a generator that can start at any
/// index.
fn word(key: u64, index: u64) -> u64 {
    mix(key.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Returns the FNV-1a hash of a name.
fn hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};
    use proptest::prelude::*;

    use super::{SyntheticWeights, Weights};
    use crate::program::{Program, Role, TensorId};
    use crate::shapes::Shape;

    fn shape(reference: &str) -> (Program, SyntheticWeights) {
        Shape::parse(reference).unwrap().build().unwrap()
    }

    fn tensor(program: &Program, weights: &SyntheticWeights, id: usize) -> Vec<u8> {
        let mut bytes = vec![0; program.tensors[id].bytes() as usize];
        weights.read_tensor(TensorId(id), 0, &mut bytes).unwrap();
        bytes
    }

    /// Returns the values of a tensor of a small shape as f32.
    fn values(dtype: &str, name: &str) -> Vec<f32> {
        let (program, weights) = shape(&format!("gpt2?layers=1&dtype={dtype}"));
        let id = program
            .tensors
            .iter()
            .position(|t| t.name.ends_with(name))
            .unwrap();
        let bytes = tensor(&program, &weights, id);
        match dtype {
            "f32" => bytes
                .as_chunks()
                .0
                .iter()
                .map(|&b| f32::from_le_bytes(b))
                .collect(),
            "f16" => bytes
                .as_chunks()
                .0
                .iter()
                .map(|&b| f16::from_le_bytes(b).into())
                .collect(),
            _ => bytes
                .as_chunks()
                .0
                .iter()
                .map(|&b| bf16::from_le_bytes(b).into())
                .collect(),
        }
    }

    #[test]
    fn values_have_the_intended_mean_and_deviation() {
        let check = |name: &str, mean: f32, deviation: f32| {
            let values = values("f32", name);
            let n = values.len() as f32;
            let found = values.iter().sum::<f32>() / n;
            let square = values.iter().map(|v| (v - found).powi(2)).sum::<f32>() / n;
            assert!((found - mean).abs() < 0.01, "{name}: mean {found}");
            let off = (square.sqrt() - deviation).abs() / deviation;
            assert!(off < 0.1, "{name}: deviation {}", square.sqrt());
        };
        check("wte.weight", 0.0, 0.02);
        check("c_fc.weight", 0.0, 1.0 / 3072f32.sqrt());
        check("ln_1.weight", 1.0, 0.05 / 3f32.sqrt());
        check("ln_1.bias", 0.0, 0.02 / 3f32.sqrt());
    }

    #[test]
    fn all_dtypes_hold_the_same_values() {
        let full = values("f32", "c_proj.weight");
        for (dtype, precision) in [("f16", 1e-3), ("bf16", 8e-3)] {
            for (a, b) in full.iter().zip(values(dtype, "c_proj.weight")) {
                assert!(
                    (a - b).abs() <= precision * a.abs().max(1e-2),
                    "{dtype}: {a} and {b}"
                );
            }
        }
    }

    #[test]
    fn seeds_and_names_change_the_values() {
        let (program, weights) = shape("gpt2?layers=2");
        let (_, again) = shape("gpt2?layers=2");
        let (_, other) = shape("gpt2?layers=2&seed=1");
        let matrices: Vec<usize> = (0..program.tensors.len())
            .filter(|&id| program.tensors[id].role == Role::Matrix)
            .collect();
        let first = tensor(&program, &weights, matrices[0]);
        assert_eq!(first, tensor(&program, &again, matrices[0]));
        assert_ne!(first, tensor(&program, &other, matrices[0]));
        assert_ne!(first, tensor(&program, &weights, matrices[4]));
    }

    /// Checks that the values never change, because benchmark results are compared over time.
    #[test]
    fn generated_values_are_pinned() {
        let (_, weights) = shape("llama-2-7b?layers=1");
        let mut bytes = [0; 16];
        weights
            .read_tensor(TensorId(2), 1 << 20, &mut bytes)
            .unwrap();
        let expect = [
            77, 129, 147, 34, 132, 30, 2, 38, 45, 158, 139, 158, 190, 38, 234, 153,
        ];
        assert_eq!(bytes, expect);
    }

    #[test]
    fn reads_beyond_a_tensor_fail() {
        let (program, weights) = shape("gpt2?layers=1");
        let bytes = program.tensors[0].bytes();
        assert!(weights.read_tensor(TensorId(0), bytes, &mut []).is_ok());
        assert!(weights.read_tensor(TensorId(0), bytes, &mut [0]).is_err());
        assert!(
            weights
                .read_tensor(TensorId(0), u64::MAX, &mut [0, 0])
                .is_err()
        );
    }

    proptest! {
        #[test]
        fn chunked_reads_give_the_same_bytes(
            dtype in prop::sample::select(vec!["f32", "f16", "bf16"]),
            cuts in prop::collection::vec(0usize..3072, 0..12),
        ) {
            let (program, weights) = shape(&format!("gpt2?layers=1&dtype={dtype}"));
            let id = program.tensors.iter().position(|t| t.name.ends_with("ln_1.bias")).unwrap();
            let whole = tensor(&program, &weights, id);
            let mut cuts: Vec<usize> = cuts.into_iter().filter(|&c| c < whole.len()).collect();
            cuts.extend([0, whole.len()]);
            cuts.sort_unstable();
            let mut pieces = Vec::new();
            for pair in cuts.windows(2) {
                let mut piece = vec![0; pair[1] - pair[0]];
                weights.read_tensor(TensorId(id), pair[0] as u64, &mut piece).unwrap();
                pieces.extend(piece);
            }
            prop_assert_eq!(pieces, whole);
        }
    }
}
