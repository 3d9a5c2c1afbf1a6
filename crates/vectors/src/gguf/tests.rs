//! Tests of valid and invalid GGUF files.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{
    BlockProblem, EntryProblem, GgufProblem, Method, Steering, VectorsError, parse, to_bytes,
};

fn example() -> Steering {
    let directions = BTreeMap::from([(1, vec![1.0, -2.0]), (12, vec![0.5, 0.0])]);
    Steering::new("llama", Method::Mean, directions).unwrap()
}

#[test]
fn the_content_matches_llama_cpp() {
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
fn block_0_cannot_be_stored() {
    let directions = BTreeMap::from([(0, vec![1.0]), (1, vec![1.0])]);
    let steering = Steering::new("", Method::Mean, directions).unwrap();
    let error = to_bytes(&steering).unwrap_err();
    let VectorsError::Block { block, problem } = error else {
        panic!("{error}");
    };
    assert_eq!((block, problem), (0, BlockProblem::NotInGguf));
}

/// Name, shape, type and offset of a tensor.
type TensorFields<'a> = (&'a str, &'a [u64], u32, u64);
const GOOD: TensorFields<'_> = ("direction.7", &[2], 0, 0);

/// Returns a file with metadata pairs and one tensor of two values with the given description.
fn file(pairs: &[Vec<u8>], tensor: TensorFields<'_>, alignment: usize) -> Vec<u8> {
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

/// Returns the bytes of an array: type of its elements, their number, and the elements.
fn array(kind: u8, values: &[&[u8]]) -> Vec<u8> {
    let mut out = vec![kind, 0, 0, 0, values.len() as u8, 0, 0, 0, 0, 0, 0, 0];
    out.extend(values.concat());
    out
}

#[test]
fn files_of_other_programs_are_read() {
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

/// Returns the problem with the bytes of a file.
fn gguf_problem(bytes: &[u8]) -> GgufProblem {
    match parse(bytes).unwrap_err() {
        VectorsError::Gguf { problem, .. } => problem,
        other => panic!("{other}"),
    }
}

/// Returns the problem with a tensor or metadata entry of a file.
fn entry_problem(bytes: &[u8]) -> EntryProblem {
    match parse(bytes).unwrap_err() {
        VectorsError::Entry { problem, .. } => problem,
        other => panic!("{other}"),
    }
}

/// Returns the problem with the direction of a block.
fn block_problem(bytes: &[u8]) -> (usize, BlockProblem) {
    match parse(bytes).unwrap_err() {
        VectorsError::Block { block, problem } => (block, problem),
        other => panic!("{other}"),
    }
}

#[test]
fn invalid_metadata_is_refused() {
    let with = |key: &str, kind: u8, value: &[u8]| file(&[pair(key, kind, value)], GOOD, 32);
    let (architecture, alignment) = ("general.architecture", "general.alignment");
    assert_eq!(
        entry_problem(&with(architecture, 8, b"\x05\0\0\0\0\0\0\0llama")),
        EntryProblem::Architecture {
            found: "llama".to_owned(),
            expected: "controlvector",
        }
    );
    assert_eq!(
        entry_problem(&with(architecture, 0, &[0])),
        EntryProblem::NotText
    );
    for (kind, value) in [(10, &[0; 8][..]), (4, &[0; 4]), (4, &[24, 0, 0, 0])] {
        let problem = entry_problem(&with(alignment, kind, value));
        assert_eq!(problem, EntryProblem::Alignment);
    }
    assert_eq!(
        gguf_problem(&with("x", 13, &[])),
        GgufProblem::UnknownType { found: 13 }
    );
    let deep = [9, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0].repeat(5);
    assert_eq!(gguf_problem(&with("x", 9, &deep)), GgufProblem::TooDeep);
    let long = b"\x0c\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff";
    for (kind, value) in [(8, &[0xff; 8][..]), (9, long)] {
        let problem = gguf_problem(&with("x", kind, value));
        assert!(
            matches!(
                problem,
                GgufProblem::Truncated {
                    needed: u64::MAX,
                    ..
                }
            ),
            "{problem}"
        );
    }
    assert_eq!(
        gguf_problem(&with("x", 8, b"\x01\0\0\0\0\0\0\0\xff")),
        GgufProblem::NotUtf8
    );
}

#[test]
fn invalid_tensors_are_refused() {
    for name in ["direction.0", "direction.01", "direction.1.x", "blk.1", ""] {
        let problem = entry_problem(&file(&[], (name, &[2], 0, 0), 32));
        assert!(
            matches!(problem, EntryProblem::NotADirection { .. }),
            "{problem}"
        );
    }
    let with = |shape: &[u64], kind, offset| {
        let tensor = ("direction.1", shape, kind, offset);
        file(&[], tensor, 32)
    };
    for shape in [&[][..], &[2, 1, 1, 1, 1]] {
        let expect = EntryProblem::Dimensions {
            found: shape.len() as u32,
            limit: 4,
        };
        assert_eq!(entry_problem(&with(shape, 0, 0)), expect);
    }
    assert_eq!(
        entry_problem(&with(&[1, 2], 0, 0)),
        EntryProblem::Shape { found: vec![1, 2] }
    );
    let problem = entry_problem(&with(&[2], 1, 0));
    assert!(
        matches!(problem, EntryProblem::ElementType { .. }),
        "{problem}"
    );
    assert_eq!(
        entry_problem(&with(&[2], 0, 32)),
        EntryProblem::Offset {
            found: 32,
            expected: 0,
        }
    );
    assert_eq!(block_problem(&with(&[0], 0, 0)), (1, BlockProblem::Empty));
    for width in [9, u64::MAX / 4, u64::MAX] {
        let problem = gguf_problem(&with(&[width], 0, 0));
        assert!(
            matches!(problem, GgufProblem::Truncated { .. }),
            "{problem}"
        );
    }
}

#[test]
fn inconsistent_files_are_refused() {
    let directions = BTreeMap::from([(11, vec![1.0, 2.0]), (12, vec![3.0, 4.0])]);
    let steering = Steering::new("", Method::Mean, directions).unwrap();
    let good = to_bytes(&steering).unwrap();
    let mut windows = good.windows(12);
    let second = windows.position(|w| w == b"direction.12").unwrap();
    let changed = |at: usize, instead: &[u8]| {
        let mut changed = good.clone();
        changed[at..at + instead.len()].copy_from_slice(instead);
        changed
    };
    for (instead, found) in [(&[1][..], 1), (&[4], 4), (&[0, 0, 0, 3], 0x300_0000)] {
        assert_eq!(
            gguf_problem(&changed(4, instead)),
            GgufProblem::Version { found }
        );
    }
    let none = parse(&changed(8, &[0; 8])).unwrap_err();
    assert!(matches!(none, VectorsError::NoDirections), "{none}");
    for at in [8, 16] {
        let problem = gguf_problem(&changed(at, &[0xff; 8]));
        assert!(
            matches!(problem, GgufProblem::Truncated { .. }),
            "{problem}"
        );
    }
    assert_eq!(
        block_problem(&changed(second + 11, b"1")),
        (11, BlockProblem::Duplicate)
    );
    let width = BlockProblem::Width {
        found: 1,
        expected: 2,
    };
    assert_eq!(block_problem(&changed(second + 16, &[1])), (12, width));
    let (_, problem) = block_problem(&changed(good.len() - 32, &[0xff; 4]));
    assert!(
        matches!(problem, BlockProblem::NotFinite { .. }),
        "{problem}"
    );
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
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = parse(&[b"GGUF\x03\0\0\0", &bytes[..]].concat());
    }

    #[test]
    fn changed_bytes_never_panic(
        at in any::<prop::sample::Index>(),
        instead in prop::collection::vec(prop_oneof![Just(0), Just(0xff), any::<u8>()], 1..9),
    ) {
        let mut bytes = to_bytes(&example()).unwrap();
        let at = at.index(bytes.len() - instead.len());
        bytes[at..at + instead.len()].copy_from_slice(&instead);
        // An accepted change gives a valid vector.
        if let Ok(read) = parse(&bytes) {
            prop_assert_eq!(parse(&to_bytes(&read).unwrap()).unwrap(), read);
        }
    }
}
