//! Vectors as safetensors: one tensor a direction, named by its hook.

use std::collections::BTreeMap;

use half::{bf16, f16};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde_json::json;

use crate::files::number;
use crate::{Method, Steering, VectorsError};

/// The key that says a file is one of these, and of which version.
const MARK: &str = "djinn.steering";
const VERSION: &str = "1";

pub(crate) fn parse(bytes: &[u8]) -> Result<Steering, VectorsError> {
    let (_, head) = SafeTensors::read_metadata(bytes)?;
    let said = |key| head.metadata().as_ref()?.get(key).map(String::as_str);
    if let Some(found) = said(MARK).filter(|found| *found != VERSION) {
        let reason = format!("is {found}, and this djinn reads {VERSION}: update it");
        return Err(VectorsError::entry("metadata", MARK, reason));
    }
    let file = SafeTensors::deserialize(bytes)?;
    let directions = file
        .iter()
        .map(|(name, view)| direction(name, &view))
        .collect::<Result<_, _>>()?;
    let method = Method::from(said("method").unwrap_or_default());
    Steering::new(said("model").unwrap_or_default(), method, directions)
}

fn direction(name: &str, view: &TensorView<'_>) -> Result<(usize, Vec<f32>), VectorsError> {
    let error = |reason: String| Err(VectorsError::entry("tensor", name, reason));
    let middle = name.strip_prefix("blocks.");
    let middle = middle.and_then(|rest| rest.strip_suffix(".hook_resid_post"));
    let Some(block) = middle.and_then(number) else {
        return error("is no direction: name it like blocks.3.hook_resid_post".to_owned());
    };
    if !matches!(view.shape(), [_] | [1, _]) {
        return error(format!("has shape {:?}, not of one row", view.shape()));
    }
    let numbers = match view.dtype() {
        Dtype::F32 => each(view.data(), f32::from_le_bytes),
        Dtype::F16 => each(view.data(), |b| f16::from_le_bytes(b).to_f32()),
        Dtype::BF16 => each(view.data(), |b| bf16::from_le_bytes(b).to_f32()),
        other => return error(format!("is of {other:?}, not of F32, F16 or BF16")),
    };
    Ok((block, numbers))
}

fn each<const N: usize>(bytes: &[u8], read: impl Fn([u8; N]) -> f32) -> Vec<f32> {
    let (chunks, _) = bytes.as_chunks::<N>();
    chunks.iter().map(|&chunk| read(chunk)).collect()
}

/// By hand, for the library would write the metadata in another order every time.
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
    // Spaces at its end keep the numbers aligned.
    head.resize(head.len().next_multiple_of(8), b' ');
    [&(head.len() as u64).to_le_bytes()[..], &head, &data].concat()
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap};

    use proptest::prelude::*;
    use safetensors::{Dtype, tensor::TensorView};

    use super::{parse, to_bytes};
    use crate::{Method, Steering};

    const NAME: &str = "blocks.3.hook_resid_post";

    type Mark = Option<&'static str>;

    fn file(name: &str, dtype: Dtype, shape: &[usize], data: &[u8], mark: Mark) -> Vec<u8> {
        let view = TensorView::new(dtype, shape.to_vec(), data).unwrap();
        let mark = mark.map(|mark| HashMap::from([("djinn.steering".into(), mark.into())]));
        safetensors::serialize([(name, view)], mark).unwrap()
    }

    fn example() -> Vec<u8> {
        let directions = BTreeMap::from([(0, vec![1.0]), (12, vec![-2.0])]);
        to_bytes(&Steering::new("a \"b\"", Method::Mean, directions).unwrap())
    }

    #[test]
    fn the_bytes_are_as_expected() {
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
    fn short_numbers_and_single_rows_are_read() {
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
    fn what_is_no_direction_is_refused() {
        let (pre, odd) = ("blocks.3.hook_resid_pre", "blocks.03.hook_resid_post");
        for (name, dtype, shape, mark, expect) in [
            (pre, Dtype::F32, &[2][..], None, "is no direction"),
            (pre, Dtype::F32, &[2], Some("1"), "is no direction"),
            (odd, Dtype::F32, &[2], Some("1"), "is no direction"),
            (NAME, Dtype::F32, &[2, 2], Some("1"), "has shape [2, 2]"),
            (NAME, Dtype::F32, &[], Some("1"), "has shape []"),
            (NAME, Dtype::F32, &[0], Some("1"), "without numbers"),
            (NAME, Dtype::F64, &[2], Some("1"), "is of F64"),
            (NAME, Dtype::BF16, &[2], Some("1"), "number that is NaN"),
            (NAME, Dtype::F32, &[2], Some("2"), "this djinn reads 1"),
        ] {
            // All ones: not a number in any type of floats.
            let data = vec![0xff; shape.iter().product::<usize>() * dtype.bitsize() / 8];
            let error = parse(&file(name, dtype, shape, &data, mark)).unwrap_err();
            assert!(error.to_string().contains(expect), "{error}");
        }
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
        fn a_changed_byte_does_no_harm(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let mut bytes = example();
            *at.get_mut(&mut bytes) = byte;
            let _ = parse(&bytes);
        }
    }
}
