//! Tensors in messages: raw bytes with dtype and shape, split into parts if they are large.

use bytes::Bytes;
use half::{bf16, f16};

use crate::v1::{DType, Tensor, TensorPart};

/// Bytes of a part: large enough for the full rate of loopback and fast networks.
pub const PART_BYTES: usize = 512 << 10;

/// Largest number of dimensions of a tensor.
const DIMENSIONS_MAX: usize = 8;

/// Error of an inconsistent tensor in a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TensorError {
    /// The dtype is unknown.
    #[error("Unknown tensor dtype {0}: expected f32 (1), f16 (2) or bf16 (3)")]
    DType(i32),
    /// The shape has too many dimensions or elements.
    #[error(
        "Tensor shape {0:?} is too large: at most {DIMENSIONS_MAX} dimensions, and 2^61 elements"
    )]
    Shape(Vec<u64>),
    /// The number of bytes does not match dtype and shape.
    #[error("A tensor of shape {shape:?} needs {expect} bytes, but the message has {found}")]
    Length {
        /// Shape of the tensor.
        shape: Vec<u64>,
        /// Number of bytes that dtype and shape require.
        expect: usize,
        /// Number of bytes received.
        found: usize,
    },
    /// A part does not follow the previous one.
    #[error("A part of a tensor starts at byte {found}, but byte {expect} was expected")]
    Order {
        /// Expected offset in bytes.
        expect: u64,
        /// Received offset in bytes.
        found: u64,
    },
    /// The tensor exceeds the receiver's limit.
    #[error("A tensor of {bytes} bytes exceeds the limit of {limit} bytes; send a part of it")]
    Large {
        /// Size of the tensor in bytes.
        bytes: u64,
        /// Limit of the receiver in bytes.
        limit: u64,
    },
}

/// Bytes per element.
fn width(dtype: i32) -> Result<usize, TensorError> {
    match DType::try_from(dtype) {
        Ok(DType::DtypeF32) => Ok(4),
        Ok(DType::DtypeF16 | DType::DtypeBf16) => Ok(2),
        _ => Err(TensorError::DType(dtype)),
    }
}

/// Number of elements of a shape.
pub fn elements(shape: &[u64]) -> Result<usize, TensorError> {
    let error = || TensorError::Shape(shape.iter().take(DIMENSIONS_MAX).copied().collect());
    if shape.len() > DIMENSIONS_MAX {
        return Err(error());
    }
    let count = shape.iter().try_fold(1u64, |n, &d| n.checked_mul(d));
    // A slice has at most `isize::MAX` bytes.
    let count = count.filter(|&n| n <= isize::MAX as u64 / 4);
    count.map(|n| n as usize).ok_or_else(error)
}

/// Bytes that a tensor of this dtype and shape has.
fn length(dtype: i32, shape: &[u64]) -> Result<usize, TensorError> {
    Ok(width(dtype)? * elements(shape)?)
}

/// Creates a tensor message of `f32` elements.
pub fn tensor(shape: &[usize], data: &[f32]) -> Tensor {
    Tensor {
        dtype: DType::DtypeF32.into(),
        shape: shape.iter().map(|&d| d as u64).collect(),
        data: to_bytes(data),
    }
}

/// Encodes numbers as little-endian bytes.
fn to_bytes(data: &[f32]) -> Bytes {
    let mut bytes = Vec::with_capacity(4 * data.len());
    for number in data {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    bytes.into()
}

/// Decodes a tensor message to its shape and numbers.
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

/// Splits a tensor into parts. All parts share one buffer.
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

/// Joins the parts of tensors.
#[derive(Debug, Default)]
pub struct Assembler {
    name: String,
    tensor: Option<(Tensor, Vec<u8>)>,
}

impl Assembler {
    /// Adds the next part. Returns the name and the tensor after the last part. Rejects a tensor above
    /// `limit` bytes before it allocates memory.
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
        let (mut tensor, data) = self.tensor.take().expect("the first part was added above");
        tensor.data = data.into();
        Ok(Some((std::mem::take(&mut self.name), tensor)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_inconsistent_tensor_is_rejected() {
        let good = tensor(&[2, 3], &[0.5; 6]);
        assert_eq!(numbers(&good), Ok((vec![2, 3], vec![0.5; 6])));
        let check = |tensor: Tensor, expect: TensorError| {
            assert_eq!(numbers(&tensor), Err(expect));
        };
        let length = |shape: &[u64], expect: usize| TensorError::Length {
            shape: shape.to_vec(),
            expect,
            found: 24,
        };
        let shape = |shape: &[u64]| TensorError::Shape(shape.to_vec());
        let with = |dtype: i32, shape: &[u64]| Tensor {
            dtype,
            shape: shape.to_vec(),
            data: good.data.clone(),
        };
        check(with(1, &[2, 4]), length(&[2, 4], 32));
        check(with(1, &[u64::MAX, 2]), shape(&[u64::MAX, 2]));
        check(with(1, &[1 << 62]), shape(&[1 << 62]));
        check(with(1, &[1; 9]), shape(&[1; 8]));
        check(with(0, &[6]), TensorError::DType(0));
        check(with(99, &[6]), TensorError::DType(99));
        check(with(2, &[6]), length(&[6], 12));
    }

    #[test]
    fn f16_and_bf16_are_decoded() {
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
    fn a_large_tensor_is_rejected_before_allocation() {
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
        fn parts_join_to_the_same_tensor(count in 0usize..400_000) {
            let data: Vec<f32> = (0..count).map(|i| i as f32).collect();
            let mut assembler = Assembler::default();
            let mut whole = None;
            for part in parts("x", &[count], &data) {
                prop_assert!(whole.is_none());
                whole = assembler.push(part, u64::MAX).expect("a valid part");
            }
            let (name, tensor) = whole.expect("the last part completes the tensor");
            prop_assert_eq!(name, "x");
            prop_assert_eq!(numbers(&tensor), Ok((vec![count], data)));
        }

        #[test]
        fn arbitrary_parts_never_panic(
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
