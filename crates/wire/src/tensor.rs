//! Tensors on the wire: raw bytes with dtype and shape, in pieces where they are large.

use bytes::Bytes;
use half::{bf16, f16};

use crate::v1::{DType, Tensor, TensorPart};

/// Bytes of a piece: what loopback and a fast network move at full rate.
pub const PART_BYTES: usize = 512 << 10;

/// Dimensions of a tensor at most.
const DIMENSIONS: usize = 8;

/// A tensor that is not what it says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TensorError {
    /// A dtype nobody knows.
    #[error("a tensor of dtype {0}, which is none of f32, f16 and bf16")]
    DType(i32),
    /// A shape of more elements, or dimensions, than anything has.
    #[error("a tensor of shape {0:?}, which no memory holds")]
    Shape(Vec<u64>),
    /// Bytes that do not match.
    #[error("a tensor of shape {shape:?} has {expect} bytes, and {found} came")]
    Length {
        /// As it says.
        shape: Vec<u64>,
        /// What that would be.
        expect: usize,
        /// What came.
        found: usize,
    },
    /// A piece that does not follow the one before.
    #[error("a piece of a tensor at byte {found}, where {expect} was next")]
    Order {
        /// What would have been next.
        expect: u64,
        /// What came.
        found: u64,
    },
    /// A tensor larger than whoever reads it takes.
    #[error("a tensor of {bytes} bytes, of which {limit} are taken at most")]
    Large {
        /// Its length.
        bytes: u64,
        /// What is taken.
        limit: u64,
    },
}

/// Bytes of an element.
fn width(dtype: i32) -> Result<usize, TensorError> {
    match DType::try_from(dtype) {
        Ok(DType::DtypeF32) => Ok(4),
        Ok(DType::DtypeF16 | DType::DtypeBf16) => Ok(2),
        _ => Err(TensorError::DType(dtype)),
    }
}

/// Elements of a shape.
pub fn elements(shape: &[u64]) -> Result<usize, TensorError> {
    let error = || TensorError::Shape(shape.iter().take(DIMENSIONS).copied().collect());
    if shape.len() > DIMENSIONS {
        return Err(error());
    }
    let count = shape.iter().try_fold(1u64, |n, &d| n.checked_mul(d));
    // The longest slice there is has this many bytes.
    let count = count.filter(|&n| n <= isize::MAX as u64 / 4);
    count.map(|n| n as usize).ok_or_else(error)
}

/// Bytes of a tensor, as it says.
fn length(dtype: i32, shape: &[u64]) -> Result<usize, TensorError> {
    Ok(width(dtype)? * elements(shape)?)
}

/// Numbers as a tensor of a message, in `f32`.
pub fn tensor(shape: &[usize], data: &[f32]) -> Tensor {
    Tensor {
        dtype: DType::DtypeF32.into(),
        shape: shape.iter().map(|&d| d as u64).collect(),
        data: to_bytes(data),
    }
}

/// Numbers as they travel.
fn to_bytes(data: &[f32]) -> Bytes {
    let mut bytes = Vec::with_capacity(4 * data.len());
    for number in data {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    bytes.into()
}

/// The shape and the numbers of a tensor that came.
pub fn numbers(tensor: &Tensor) -> Result<(Vec<usize>, Vec<f32>), TensorError> {
    let expect = length(tensor.dtype, &tensor.shape)?;
    if tensor.data.len() != expect {
        return Err(TensorError::Length {
            shape: tensor.shape.clone(),
            expect,
            found: tensor.data.len(),
        });
    }
    let shape = tensor.shape.iter().map(|&d| d as usize).collect();
    let pairs = || tensor.data.as_chunks::<2>().0.iter();
    let data = match DType::try_from(tensor.dtype) {
        Ok(DType::DtypeF16) => pairs().map(|&b| f16::from_le_bytes(b).to_f32()).collect(),
        Ok(DType::DtypeBf16) => pairs().map(|&b| bf16::from_le_bytes(b).to_f32()).collect(),
        _ => {
            let fours = tensor.data.as_chunks::<4>().0.iter();
            fours.map(|&b| f32::from_le_bytes(b)).collect()
        }
    };
    Ok((shape, data))
}

/// A tensor in pieces, each a view of the same bytes.
pub fn parts(
    name: &str,
    shape: &[usize],
    data: &[f32],
) -> impl Iterator<Item = TensorPart> + use<> {
    let bytes = to_bytes(data);
    let mut first = Some((
        name.to_owned(),
        shape.iter().map(|&d| d as u64).collect::<Vec<_>>(),
    ));
    let mut at = 0;
    let mut done = false;
    std::iter::from_fn(move || {
        if done {
            return None;
        }
        let end = (at + PART_BYTES).min(bytes.len());
        let (name, shape) = first.take().unwrap_or_default();
        let part = TensorPart {
            name,
            dtype: DType::DtypeF32.into(),
            shape,
            offset: at as u64,
            data: bytes.slice(at..end),
            last: end == bytes.len(),
        };
        (at, done) = (end, part.last);
        Some(part)
    })
}

/// Puts pieces together.
#[derive(Debug, Default)]
pub struct Assembler {
    name: String,
    tensor: Option<(Tensor, Vec<u8>)>,
}

impl Assembler {
    /// Takes the next piece; gives the tensor and its name with the last. One that is larger than
    /// `limit` bytes is refused before memory is taken for it.
    pub fn push(
        &mut self,
        part: TensorPart,
        limit: u64,
    ) -> Result<Option<(String, Tensor)>, TensorError> {
        let (tensor, data) = match &mut self.tensor {
            Some(begun) => begun,
            None => {
                let bytes = length(part.dtype, &part.shape)?;
                if bytes as u64 > limit {
                    let bytes = bytes as u64;
                    return Err(TensorError::Large { bytes, limit });
                }
                self.name = part.name;
                let tensor = Tensor {
                    dtype: part.dtype,
                    shape: part.shape,
                    data: Bytes::new(),
                };
                self.tensor.insert((tensor, Vec::with_capacity(bytes)))
            }
        };
        if part.offset != data.len() as u64 {
            return Err(TensorError::Order {
                expect: data.len() as u64,
                found: part.offset,
            });
        }
        let expect = length(tensor.dtype, &tensor.shape)?;
        let found = data.len() + part.data.len();
        if found > expect || part.last && found < expect {
            return Err(TensorError::Length {
                shape: tensor.shape.clone(),
                expect,
                found,
            });
        }
        data.extend_from_slice(&part.data);
        if !part.last {
            return Ok(None);
        }
        let (mut tensor, data) = self.tensor.take().expect("begun above");
        tensor.data = data.into();
        Ok(Some((std::mem::take(&mut self.name), tensor)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_tensor_that_lies_is_refused() {
        let good = tensor(&[2, 3], &[0.5; 6]);
        assert_eq!(numbers(&good), Ok((vec![2, 3], vec![0.5; 6])));
        let check = |tensor: Tensor, expect: &str| {
            let told = numbers(&tensor).expect_err(expect).to_string();
            assert!(told.contains(expect), "{told}");
        };
        let with = |dtype: i32, shape: &[u64]| Tensor {
            dtype,
            shape: shape.to_vec(),
            data: good.data.clone(),
        };
        check(with(1, &[2, 4]), "has 32 bytes, and 24 came");
        check(with(1, &[u64::MAX, 2]), "which no memory holds");
        check(with(1, &[1 << 62]), "which no memory holds");
        check(with(1, &[1; 9]), "which no memory holds");
        check(with(0, &[6]), "none of f32, f16 and bf16");
        check(with(99, &[6]), "none of f32, f16 and bf16");
        check(with(2, &[6]), "has 12 bytes");
    }

    #[test]
    fn halves_are_read() {
        let halves: Vec<u8> = [f16::from_f32(1.5), f16::from_f32(-2.0)]
            .iter()
            .flat_map(|x| x.to_le_bytes())
            .collect();
        let with = |dtype: DType, data: Vec<u8>| Tensor {
            dtype: dtype.into(),
            shape: vec![2],
            data: data.into(),
        };
        assert_eq!(
            numbers(&with(DType::DtypeF16, halves)),
            Ok((vec![2], vec![1.5, -2.0]))
        );
        let brains: Vec<u8> = [bf16::from_f32(1.5), bf16::from_f32(-2.0)]
            .iter()
            .flat_map(|x| x.to_le_bytes())
            .collect();
        assert_eq!(
            numbers(&with(DType::DtypeBf16, brains)),
            Ok((vec![2], vec![1.5, -2.0]))
        );
    }

    #[test]
    fn a_large_tensor_is_refused_before_memory_is_taken() {
        let part = TensorPart {
            dtype: 1,
            shape: vec![1 << 40],
            ..TensorPart::default()
        };
        let refused = Assembler::default().push(part, 1 << 20);
        assert!(matches!(refused, Err(TensorError::Large { .. })));
    }

    proptest! {
        #[test]
        fn pieces_come_together(count in 0usize..400_000) {
            let data: Vec<f32> = (0..count).map(|i| i as f32).collect();
            let mut assembler = Assembler::default();
            let mut whole = None;
            for part in parts("x", &[count], &data) {
                prop_assert!(whole.is_none());
                whole = assembler.push(part, u64::MAX).expect("a piece in its place");
            }
            let (name, tensor) = whole.expect("the last piece");
            prop_assert_eq!(name, "x");
            prop_assert_eq!(numbers(&tensor), Ok((vec![count], data)));
        }

        #[test]
        fn no_piece_breaks_it(
            offsets in prop::collection::vec((0u64..64, 0usize..64, any::<bool>()), 1..8),
            shape in prop::collection::vec(0u64..9, 0..4),
            dtype in -1i32..5,
        ) {
            let mut assembler = Assembler::default();
            for (offset, len, last) in offsets {
                let part = TensorPart {
                    name: String::new(), dtype, shape: shape.clone(), offset,
                    data: vec![0; len].into(), last,
                };
                if let Ok(Some((_, tensor))) = assembler.push(part, 1 << 20) {
                    prop_assert!(numbers(&tensor).is_ok());
                }
            }
        }
    }
}
