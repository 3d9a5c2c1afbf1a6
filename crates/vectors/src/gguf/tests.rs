//! GGUF files that are right, and many that are not.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{parse, to_bytes};
use crate::{Method, Steering};

fn example() -> Steering {
    let directions = BTreeMap::from([(1, vec![1.0, -2.0]), (12, vec![0.5, 0.0])]);
    Steering::new("llama", Method::Mean, directions).unwrap()
}

#[test]
fn the_bytes_are_as_llama_cpp_has_them() {
    let expect: &[&[u8]] = &[
        b"GGUF\x03\0\0\0\x02\0\0\0\0\0\0\0\x04\0\0\0\0\0\0\0",
        b"\x14\0\0\0\0\0\0\0general.architecture\x08\0\0\0",
        b"\x0d\0\0\0\0\0\0\0controlvector",
        b"\x18\0\0\0\0\0\0\0controlvector.model_hint\x08\0\0\0",
        b"\x05\0\0\0\0\0\0\0llama",
        b"\x19\0\0\0\0\0\0\0controlvector.layer_count\x04\0\0\0\x02\0\0\0",
        b"\x0c\0\0\0\0\0\0\0djinn.method\x08\0\0\0\x04\0\0\0\0\0\0\0mean",
        b"\x0b\0\0\0\0\0\0\0direction.1\x01\0\0\0\x02\0\0\0\0\0\0\0",
        b"\0\0\0\0\0\0\0\0\0\0\0\0",
        b"\x0c\0\0\0\0\0\0\0direction.12\x01\0\0\0\x02\0\0\0\0\0\0\0",
        b"\0\0\0\0\x20\0\0\0\0\0\0\0",
    ];
    let mut expect = expect.concat();
    assert_eq!(expect.len(), 290);
    expect.extend([0; 30]);
    expect.extend(b"\0\0\x80\x3f\0\0\0\xc0");
    expect.extend([0; 24]);
    expect.extend(b"\0\0\0\x3f\0\0\0\0");
    expect.extend([0; 24]);
    assert_eq!(to_bytes(&example()).unwrap(), expect);
}

#[test]
fn block_0_has_no_place() {
    let directions = BTreeMap::from([(0, vec![1.0]), (1, vec![1.0])]);
    let steering = Steering::new("", Method::Mean, directions).unwrap();
    let error = to_bytes(&steering).unwrap_err().to_string();
    assert!(error.contains("block 0: has no place in GGUF"), "{error}");
}

/// A tensor's name, shape, type and offset.
type Tensor<'a> = (&'a str, &'a [u64], u32, u64);
const GOOD: Tensor<'_> = ("direction.7", &[2], 0, 0);

/// A file with these pairs, and one tensor of two numbers that is described so.
fn file(pairs: &[Vec<u8>], tensor: Tensor<'_>, alignment: usize) -> Vec<u8> {
    let (name, shape, kind, offset) = tensor;
    let mut out = b"GGUF\x02\0\0\0\x01\0\0\0\0\0\0\0".to_vec();
    out.extend((pairs.len() as u64).to_le_bytes());
    out.extend(pairs.concat());
    out.extend((name.len() as u64).to_le_bytes());
    out.extend(name.as_bytes());
    out.extend((shape.len() as u32).to_le_bytes());
    out.extend(shape.iter().flat_map(|n| n.to_le_bytes()));
    out.extend(kind.to_le_bytes());
    out.extend(offset.to_le_bytes());
    out.resize(out.len().next_multiple_of(alignment), 0xee);
    out.extend(b"\0\0\x80\x3f\0\0\0\xc0");
    out.resize(out.len().next_multiple_of(alignment), 0xee);
    out
}

fn pair(key: &str, kind: u8, value: &[u8]) -> Vec<u8> {
    let length = [key.len() as u8, 0, 0, 0, 0, 0, 0, 0];
    [&length, key.as_bytes(), &[kind, 0, 0, 0], value].concat()
}

/// The value of an array: what its elements are, how many, and they.
fn array(kind: u8, values: &[&[u8]]) -> Vec<u8> {
    let mut out = vec![kind, 0, 0, 0, values.len() as u8, 0, 0, 0, 0, 0, 0, 0];
    out.extend(values.concat());
    out
}

#[test]
fn files_of_others_are_read() {
    let expect = Method::from("");
    let expect = Steering::new("", expect, BTreeMap::from([(7, vec![1.0, -2.0])])).unwrap();
    let check = |pairs: &[Vec<u8>], tensor, alignment| {
        let read = parse(&file(pairs, tensor, alignment)).unwrap();
        assert_eq!(read, expect, "{pairs:?}");
    };
    check(&[], ("direction.7", &[2, 1, 1, 1], 0, 0), 32);
    for alignment in [1, 8, 128] {
        let pair = pair("general.alignment", 4, &[alignment, 0, 0, 0]);
        check(&[pair], GOOD, alignment.into());
    }
    let text = &b"\x03\0\0\0\0\0\0\0abc"[..];
    let texts = array(8, &[text, text]);
    let [one, two, four, eight] = [1, 2, 4, 8].map(|bytes| &[0xaa; 8][..bytes]);
    let first = [one, one, two, two, four, four, four, one];
    let values = first.into_iter().chain([text, &texts, eight, eight, eight]);
    for (kind, value) in (0..13).zip(values) {
        let row = array(kind, &[value, value, value]);
        let rows = pair("b", 9, &array(9, &[&row, &row]));
        check(&[pair("a", kind, value), rows], GOOD, 32);
    }
}

fn refused(bytes: &[u8], expect: &str) {
    let error = parse(bytes).unwrap_err().to_string();
    assert!(error.contains(expect), "{error}, not {expect}");
}

#[test]
fn bad_metadata_is_refused() {
    let deep = [9, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0].repeat(5);
    let long = b"\x0c\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff";
    let llama = b"\x05\0\0\0\0\0\0\0llama";
    let (kind, size) = ("general.architecture", "general.alignment");
    for (key, kind, value, expect) in [
        (kind, 8, &llama[..], "is 'llama', not a control"),
        (kind, 0, &[0], "is not text"),
        (size, 10, &[0; 8], "is not a power of two"),
        (size, 4, &[0; 4], "is not a power of two"),
        (size, 4, &[24, 0, 0, 0], "is not a power of two"),
        ("x", 13, &[], "metadata of unknown type 13"),
        ("x", 9, &deep, "nested too deeply"),
        ("x", 8, &[0xff; 8], "18446744073709551615 bytes"),
        ("x", 9, long, "18446744073709551615 bytes"),
        ("x", 8, b"\x01\0\0\0\0\0\0\0\xff", "not UTF-8"),
    ] {
        refused(&file(&[pair(key, kind, value)], GOOD, 32), expect);
    }
}

#[test]
fn bad_tensors_are_refused() {
    for name in ["direction.0", "direction.01", "direction.1.x", "blk.1", ""] {
        refused(&file(&[], (name, &[2], 0, 0), 32), "is no direction");
    }
    for (shape, kind, offset, expect) in [
        (&[][..], 0, 0, "has 0 dimensions"),
        (&[2, 1, 1, 1, 1], 0, 0, "has 5 dimensions"),
        (&[1, 2], 0, 0, "has 2 rows"),
        (&[2], 1, 0, "is of type 1"),
        (&[2], 0, 32, "lies at 32, and those before it end"),
        (&[0], 0, 0, "without numbers"),
        (&[9], 0, 0, "byte 96: cut short: 36 bytes"),
        (&[u64::MAX / 4], 0, 0, "cut short"),
        (&[u64::MAX], 0, 0, "cut short"),
    ] {
        let tensor = ("direction.1", shape, kind, offset);
        refused(&file(&[], tensor, 32), expect);
    }
}

#[test]
fn what_does_not_fit_together_is_refused() {
    let directions = BTreeMap::from([(11, vec![1.0, 2.0]), (12, vec![3.0, 4.0])]);
    let steering = Steering::new("", Method::Mean, directions).unwrap();
    let good = to_bytes(&steering).unwrap();
    let mut windows = good.windows(12);
    let second = windows.position(|w| w == b"direction.12").unwrap();
    for (at, instead, expect) in [
        (4, &[1][..], "version 0x1: Djinn reads 2 and 3"),
        (4, &[4], "version 0x4"),
        (4, &[0, 0, 0, 3], "version 0x3000000"),
        (8, &[0; 8], "no directions"),
        (8, &[0xff; 8], "cut short"),
        (16, &[0xff; 8], "cut short"),
        (second + 11, b"1", "block 11: has two directions"),
        (second + 16, &[1], "block 12: has 1 numbers"),
        (good.len() - 32, &[0xff; 4], "a number that is NaN"),
    ] {
        let mut changed = good.clone();
        changed[at..at + instead.len()].copy_from_slice(instead);
        refused(&changed, expect);
    }
}

#[test]
fn every_truncation_is_an_error() {
    let bytes = to_bytes(&example()).unwrap();
    assert_eq!(parse(&bytes).unwrap(), example());
    for length in 0..bytes.len() {
        parse(&bytes[..length]).unwrap_err();
    }
}

proptest! {
    #[test]
    fn random_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = parse(&[b"GGUF\x03\0\0\0", &bytes[..]].concat());
    }

    #[test]
    fn changed_bytes_do_no_harm(
        at in any::<prop::sample::Index>(),
        instead in prop::collection::vec(prop_oneof![Just(0), Just(0xff), any::<u8>()], 1..9),
    ) {
        let mut bytes = to_bytes(&example()).unwrap();
        let at = at.index(bytes.len() - instead.len());
        bytes[at..at + instead.len()].copy_from_slice(&instead);
        // Where it does not matter or makes another vector, that one is sound.
        if let Ok(read) = parse(&bytes) {
            prop_assert_eq!(parse(&to_bytes(&read).unwrap()).unwrap(), read);
        }
    }
}
