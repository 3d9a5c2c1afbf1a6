//! Steering vectors in safetensors files: one tensor for each direction, named by its hook.

use std::collections::BTreeMap;

use half::{bf16, f16};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde_json::json;

use crate::block_number::parse_block;
use crate::error::{EntryProblem, VectorsError};
use crate::steering::{Method, Steering};

/// Metadata key with the version of the format.
const MARK: &str = "djinn.steering";
const VERSION: &str = "1";

pub(crate) fn parse(bytes: &[u8]) -> Result<Steering, VectorsError> {
    let (_, head) = SafeTensors::read_metadata(bytes)?;
    let metadata = |key| head.metadata().as_ref()?.get(key).map(String::as_str);
    if let Some(found) = metadata(MARK).filter(|found| *found != VERSION) {
        let problem = EntryProblem::Version {
            found: found.to_owned(),
            supported: VERSION,
        };
        return Err(VectorsError::entry("metadata", MARK, problem));
    }
    let file = SafeTensors::deserialize(bytes)?;
    let directions = file
        .iter()
        .map(|(name, view)| direction(name, &view))
        .collect::<Result<_, _>>()?;
    let method = Method::from(metadata("method").unwrap_or_default());
    Steering::new(metadata("model").unwrap_or_default(), method, directions)
}

fn direction(name: &str, view: &TensorView<'_>) -> Result<(usize, Vec<f32>), VectorsError> {
    let error = |problem| Err(VectorsError::entry("tensor", name, problem));
    let middle = name.strip_prefix("blocks.");
    let middle = middle.and_then(|rest| rest.strip_suffix(".hook_resid_post"));
    let Some(block) = middle.and_then(parse_block) else {
        return error(EntryProblem::NotADirection {
            example: "blocks.3.hook_resid_post",
        });
    };
    if !matches!(view.shape(), [_] | [1, _]) {
        let found = view.shape().iter().map(|&n| n as u64).collect();
        return error(EntryProblem::Shape { found });
    }
    let numbers = match view.dtype() {
        Dtype::F32 => each(view.data(), f32::from_le_bytes),
        Dtype::F16 => each(view.data(), |b| f16::from_le_bytes(b).to_f32()),
        Dtype::BF16 => each(view.data(), |b| bf16::from_le_bytes(b).to_f32()),
        other => {
            return error(EntryProblem::ElementType {
                found: format!("{other:?}"),
                expected: "F32, F16 or BF16",
            });
        }
    };
    Ok((block, numbers))
}

/// Converts little-endian values to f32.
fn each<const N: usize>(bytes: &[u8], read: impl Fn([u8; N]) -> f32) -> Vec<f32> {
    let (chunks, _) = bytes.as_chunks::<N>();
    chunks.iter().map(|&chunk| read(chunk)).collect()
}

/// Returns the content of a file. This function does not use the `safetensors` crate, because the
/// crate writes metadata in random order.
pub(crate) fn to_bytes(steering: &Steering) -> Vec<u8> {
    let (model, method) = (steering.model(), steering.method().to_string());
    let metadata = json!({ MARK: VERSION, "method": method, "model": model });
    let mut head = BTreeMap::from([("__metadata__".to_owned(), metadata)]);
    let mut data = Vec::new();
    for (block, direction) in steering.directions() {
        let begin = data.len();
        data.extend(direction.iter().flat_map(|x| x.to_le_bytes()));
        let offsets = [begin, data.len()];
        let info = json!({ "data_offsets": offsets, "dtype": "F32", "shape": [direction.len()] });
        head.insert(format!("blocks.{block}.hook_resid_post"), info);
    }
    let mut head = json!(head).to_string().into_bytes();
    // Spaces at the end of the header align the values.
    head.resize(head.len().next_multiple_of(8), b' ');
    [&(head.len() as u64).to_le_bytes()[..], &head, &data].concat()
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap};

    use proptest::prelude::*;
    use safetensors::{Dtype, tensor::TensorView};

    use super::{EntryProblem, Method, Steering, VectorsError, parse, to_bytes};

    const NAME: &str = "blocks.3.hook_resid_post";

    fn file(name: &str, dtype: Dtype, shape: &[usize], data: &[u8], mark: Option<&str>) -> Vec<u8> {
        let view = TensorView::new(dtype, shape.to_vec(), data).unwrap();
        let mark = mark.map(|mark| HashMap::from([("djinn.steering".into(), mark.into())]));
        safetensors::serialize([(name, view)], mark).unwrap()
    }

    fn example() -> Vec<u8> {
        let directions = BTreeMap::from([(0, vec![1.0]), (12, vec![-2.0])]);
        to_bytes(&Steering::new("a \"b\"", Method::Mean, directions).unwrap())
    }

    #[test]
    fn the_content_is_pinned() {
        let head = concat!(
            r#"{"__metadata__":{"djinn.steering":"1","method":"mean","model":"a \"b\""},"#,
            r#""blocks.0.hook_resid_post":{"data_offsets":[0,4],"dtype":"F32","shape":[1]},"#,
            r#""blocks.12.hook_resid_post":{"data_offsets":[4,8],"dtype":"F32","shape":[1]}}"#,
            "      ",
        );
        let data = b"\0\0\x80\x3f\0\0\0\xc0";
        assert_eq!(head.len(), 232);
        assert_eq!(
            example(),
            [b"\xe8\0\0\0\0\0\0\0", head.as_bytes(), data].concat()
        );
    }

    #[test]
    fn half_precision_and_single_rows_are_read() {
        let check = |dtype, shape: &[usize], data: &[u8]| {
            let steering = parse(&file(NAME, dtype, shape, data, None)).unwrap();
            assert_eq!(steering.directions()[&3], [1.0, -2.0]);
            assert_eq!(steering.method(), &Method::from(""));
        };
        check(Dtype::F16, &[2], b"\0\x3c\0\xc0");
        check(Dtype::BF16, &[1, 2], b"\x80\x3f\0\xc0");
        check(Dtype::F32, &[1, 2], b"\0\0\x80\x3f\0\0\0\xc0");
    }

    #[test]
    fn invalid_tensors_are_refused() {
        let error = |name: &str, dtype: Dtype, shape: &[usize], mark: Option<&str>| {
            // A float with all bits set is not a number in any type.
            let data = vec![0xff; shape.iter().product::<usize>() * dtype.bitsize() / 8];
            parse(&file(name, dtype, shape, &data, mark)).unwrap_err()
        };
        let entry = |error: VectorsError| match error {
            VectorsError::Entry { problem, .. } => problem,
            other => panic!("{other}"),
        };
        let (pre, odd) = ("blocks.3.hook_resid_pre", "blocks.03.hook_resid_post");
        for (name, mark) in [(pre, None), (pre, Some("1")), (odd, Some("1"))] {
            let problem = entry(error(name, Dtype::F32, &[2], mark));
            assert!(
                matches!(problem, EntryProblem::NotADirection { .. }),
                "{problem}"
            );
        }
        for shape in [&[2, 2][..], &[]] {
            let found = shape.iter().map(|&n| n as u64).collect();
            let problem = entry(error(NAME, Dtype::F32, shape, Some("1")));
            assert_eq!(problem, EntryProblem::Shape { found });
        }
        let problem = entry(error(NAME, Dtype::F64, &[2], Some("1")));
        assert!(
            matches!(problem, EntryProblem::ElementType { .. }),
            "{problem}"
        );
        let problem = entry(error(NAME, Dtype::F32, &[2], Some("2")));
        assert!(matches!(problem, EntryProblem::Version { .. }), "{problem}");
        let empty = error(NAME, Dtype::F32, &[0], Some("1"));
        assert!(matches!(empty, VectorsError::Block { block: 3, .. }));
        let not_finite = error(NAME, Dtype::BF16, &[2], Some("1"));
        assert!(matches!(not_finite, VectorsError::Block { block: 3, .. }));
    }

    #[test]
    fn every_truncation_is_an_error() {
        let bytes = example();
        parse(&bytes).unwrap();
        for length in 0..bytes.len() {
            parse(&bytes[..length]).unwrap_err();
        }
    }

    proptest! {
        #[test]
        fn changed_bytes_never_panic(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let mut bytes = example();
            *at.get_mut(&mut bytes) = byte;
            let _ = parse(&bytes);
        }
    }
}
