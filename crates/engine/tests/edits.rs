//! Edits do what they say, at every position asked for and nowhere else, whatever the
//! chunking.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::{collections::BTreeMap, path::Path};

use common::{How, bits, family, golden, ids, request, request_edited, run, tensors};
use djinn_engine::{Tensor, write_tensors};

const HOOK: &str = "blocks.1.hook_resid_post";
const WIDTH: usize = 64;

/// What is at the hook after these edits, by position, and again in chunks of 7.
fn edited(folder: &Path, tokens: &[u32], edits: &[&str], generate: usize) -> Vec<Vec<f32>> {
    let ask = || vec![request_edited(folder, tokens, &[HOOK], generate, edits)];
    let whole = run(folder, ask(), How::default()).remove(0);
    let chunked = How {
        rows: 7,
        ..How::default()
    };
    let chunked = run(folder, ask(), chunked).remove(0);
    assert!(bits(&whole) == bits(&chunked), "{edits:?}");
    let captured = tensors(&whole).remove(HOOK).unwrap();
    captured
        .data
        .chunks_exact(WIDTH)
        .map(<[f32]>::to_vec)
        .collect()
}

struct Fixture {
    folder: std::path::PathBuf,
    tokens: Vec<u32>,
    /// What is there without edits.
    plain: Vec<Vec<f32>>,
    /// A file with a vector `u` and a matrix `three` of three rows.
    file: String,
    operands: BTreeMap<String, Tensor>,
    _temporary: tempfile::TempDir,
}

fn fixture() -> Fixture {
    let folder = family("llama3");
    let tokens: Vec<u32> = ids(&golden(&folder)["input_ids"])[..20].to_vec();
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path().join("operands.safetensors");
    let wave = |rows: usize| Tensor {
        shape: vec![rows, WIDTH],
        data: (0..rows * WIDTH).map(|i| ((i * i) as f32).sin()).collect(),
    };
    let operands = BTreeMap::from([("u".to_owned(), wave(1)), ("three".to_owned(), wave(3))]);
    write_tensors(&path, &operands, &BTreeMap::new()).unwrap();
    Fixture {
        plain: edited(&folder, &tokens, &[], 0),
        file: path.to_str().unwrap().to_owned(),
        folder,
        tokens,
        operands,
        _temporary: temporary,
    }
}

/// Checks one edit of the prompt against a function of position and row.
fn check(f: &Fixture, edit: &str, expect: impl Fn(usize, &[f32]) -> Vec<f32>) {
    let edit = format!("{HOOK}:{edit}");
    let found = edited(&f.folder, &f.tokens, &[&edit], 0);
    for (p, (found, plain)) in found.iter().zip(&f.plain).enumerate() {
        for (x, y) in found.iter().zip(expect(p, plain)) {
            assert!(
                (x - y).abs() <= 1e-5 * (1.0 + y.abs()),
                "{edit} at {p}: {x}, not {y}"
            );
        }
    }
}

#[test]
fn each_change_at_the_positions_asked_for() {
    let f = fixture();
    let u = &f.operands["u"].data;
    let three = &f.operands["three"].data;
    let file = &f.file;
    let times = |row: &[f32], factor: f32| row.iter().map(|x| x * factor).collect::<Vec<_>>();
    check(&f, "scale=0.5", |_, row| times(row, 0.5));
    check(&f, "zero@3,-1", |p, row| {
        times(row, if p == 3 || p == 19 { 0.0 } else { 1.0 })
    });
    let plus = |row: &[f32], v: &[f32], factor: f32| -> Vec<f32> {
        row.iter().zip(v).map(|(x, v)| x + factor * v).collect()
    };
    check(&f, &format!("add={file}#u*-2@5..9"), |p, row| {
        plus(row, u, if (5..9).contains(&p) { -2.0 } else { 0.0 })
    });
    // Rows go to the selected positions in order, across chunks.
    check(
        &f,
        &format!("replace={file}#three@12,2,6"),
        |p, row| match [2, 6, 12].iter().position(|&q| q == p) {
            Some(i) => three[i * WIDTH..(i + 1) * WIDTH].to_vec(),
            None => row.to_vec(),
        },
    );
    check(&f, &format!("project-out={file}#u"), |_, row| {
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f32>();
        plus(row, u, -dot(row, u) / dot(u, u))
    });
    check(&f, &format!("add-matched={file}#u*0.5@4"), |p, row| {
        let length = |a: &[f32]| a.iter().map(|x| x * x).sum::<f32>().sqrt();
        let share = 0.5 * length(row) / length(u);
        plus(row, u, if p == 4 { share } else { 0.0 })
    });
    check(&f, "clamp=-0.1..0.2", |_, row| {
        row.iter().map(|x| x.clamp(-0.1, 0.2)).collect()
    });
}

#[test]
fn parts_of_the_width_and_heads() {
    let f = fixture();
    let of = |text: &str| edited(&f.folder, &f.tokens, &[text], 0);
    let zeroed = of(&format!("{HOOK}[3..5,60]:zero@7"));
    let added = of(&format!("{HOOK}[3..5,60]:add=[1,2,3]@7"));
    for (p, plain) in f.plain.iter().enumerate() {
        let (mut zero, mut plus) = (plain.clone(), plain.clone());
        for (i, at) in [3, 4, 60].into_iter().enumerate() {
            if p == 7 {
                zero[at] = 0.0;
                plus[at] += (i + 1) as f32;
            }
        }
        assert_eq!((&zeroed[p], &added[p]), (&zero, &plus), "position {p}");
    }
    // A head's values gone is its pattern gone.
    let head = |text: &str| {
        let ask = request_edited(&f.folder, &f.tokens, &["logits"], 0, &[text]);
        let transcript = run(&f.folder, vec![ask], How::default()).remove(0);
        bits(&transcript)
    };
    let by_z = head("blocks.1.attn.hook_z[2]:zero");
    assert!(by_z == head("blocks.1.attn.hook_pattern[2]:zero"));
    assert!(by_z != head("blocks.1.attn.hook_z[1]:zero"));
}

#[test]
fn generated_positions_only() {
    let f = fixture();
    let edit = format!("{HOOK}:zero@generated");
    let found = edited(&f.folder, &f.tokens, &[&edit], 4);
    assert_eq!(found.len(), 20 + 3, "the last token is never run");
    assert_eq!(found[..20], f.plain[..]);
    assert!(found[20..].iter().flatten().all(|&x| x == 0.0));
}

#[test]
fn edits_apply_in_order() {
    let f = fixture();
    let (zero, add) = (format!("{HOOK}:zero"), format!("{HOOK}:add={}#u", f.file));
    let found = edited(&f.folder, &f.tokens, &[&zero, &add], 0);
    assert!(found.iter().all(|row| row == &f.operands["u"].data));
    let found = edited(&f.folder, &f.tokens, &[&add, &zero], 0);
    assert!(found.iter().flatten().all(|&x| x == 0.0));
}

#[test]
fn replacing_by_what_was_captured_changes_no_bit() {
    let f = fixture();
    let hooks = [
        "hook_embed",
        "blocks.2.attn.hook_k",
        "blocks.0.mlp.hook_post",
        "logits",
    ];
    let plain = || request(&f.folder, &f.tokens, &["*"], 0);
    let transcript = run(&f.folder, vec![plain()], How::default()).remove(0);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("all.safetensors");
    write_tensors(&path, &tensors(&transcript), &BTreeMap::new()).unwrap();
    let edits = hooks.map(|hook| format!("{hook}:replace={}", path.display()));
    let edits: Vec<&str> = edits.iter().map(String::as_str).collect();
    let asked = request_edited(&f.folder, &f.tokens, &["*"], 0, &edits);
    let found = run(&f.folder, vec![asked], How::default()).remove(0);
    assert!(bits(&found) == bits(&transcript));
}

#[test]
fn parts_and_reductions_are_of_what_is_there() {
    let f = fixture();
    let (hook, z) = (HOOK, "blocks.1.attn.hook_z");
    let read = |captures: &[&str], rows: usize| {
        let ask = request(&f.folder, &f.tokens, captures, 3);
        let how = How {
            rows,
            ..How::default()
        };
        tensors(&run(&f.folder, vec![ask], how).remove(0))
    };
    let whole = read(&["*"], 64);
    let of = |text: &str, hook: &str| {
        let found = read(&[text], 64).remove(hook).unwrap();
        // Whatever the passes.
        assert!(read(&[text], 7)[hook].data == found.data, "{text}");
        found
    };
    let part = of(&format!("{hook}[1,5..8]@2,-1"), hook);
    let rows: Vec<f32> = [2, 19]
        .iter()
        .flat_map(|p| [1, 5, 6, 7].map(|i| f.plain[*p][i]))
        .collect();
    assert_eq!((part.shape, part.data), (vec![2, 4], rows));
    let heads = of(&format!("{z}[1]"), z);
    let (d_head, all) = (whole[z].shape[2], &whole[z]);
    assert_eq!(heads.shape, [22, 1, d_head]);
    let second: Vec<f32> = all
        .data
        .chunks_exact(all.shape[1] * d_head)
        .flat_map(|row| row[d_head..2 * d_head].to_vec())
        .collect();
    assert_eq!(heads.data, second);
    let norms = of(&format!("{hook}@prompt|norm"), hook);
    assert_eq!(norms.shape, [20]);
    let mean = of(&format!("{hook}@prompt|mean"), hook);
    assert_eq!(mean.shape, [WIDTH]);
    for (p, row) in f.plain.iter().enumerate() {
        let length = row
            .iter()
            .map(|x| f64::from(*x).powi(2))
            .sum::<f64>()
            .sqrt();
        assert!((f64::from(norms.data[p]) - length).abs() < 1e-5);
    }
    for i in 0..WIDTH {
        let sum: f64 = f.plain.iter().map(|row| f64::from(row[i])).sum();
        assert!((f64::from(mean.data[i]) - sum / 20.0).abs() < 1e-6);
    }
    let pattern = of(
        "blocks.0.attn.hook_pattern[0,2]@-1",
        "blocks.0.attn.hook_pattern",
    );
    assert_eq!(pattern.shape, [2, 1, 20]);
}
