//! Identities between captured activations, which hold without a reference implementation.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::{collections::BTreeMap, path::Path};

use common::{
    FAMILIES, How, bits, family, golden, ids, open, request, request_edited, run, tensors, with_kv,
};
use djinn_engine::{Tensor, write_tensors};
use djinn_types::KvDtype;

fn everything(folder: &Path, length: usize) -> BTreeMap<String, Tensor> {
    let tokens = ids(&golden(folder)["input_ids"]);
    let ask = request(folder, &tokens[..length], &["*"], 3);
    let transcript = run(folder, vec![ask], with_kv(KvDtype::F32)).remove(0);
    tensors(&transcript)
}

/// Asserts that two sums of a few dozen numbers in different orders are close.
fn close(found: &[f32], expect: &[f32], what: &str) {
    assert_eq!(found.len(), expect.len(), "{what}");
    for (found, expect) in found.iter().zip(expect) {
        let off = (found - expect).abs();
        assert!(
            off <= 1e-5 + 1e-5 * expect.abs(),
            "{what}: {found} and {expect}"
        );
    }
}

#[test]
fn attention_and_mlp_outputs_sum_to_the_residual() {
    for name in FAMILIES {
        let folder = family(name);
        let all = everything(&folder, 17);
        for block in 0..open(&folder).program.dims.blocks {
            let at = |hook: &str| &all[&format!("blocks.{block}.{hook}")].data;
            let sum: Vec<f32> = at("hook_resid_pre")
                .iter()
                .zip(at("hook_attn_out"))
                .zip(at("hook_mlp_out"))
                .map(|((resid, attn), mlp)| resid + attn + mlp)
                .collect();
            close(
                &sum,
                at("hook_resid_post"),
                &format!("{name} block {block}"),
            );
            let next = format!("blocks.{}.hook_resid_pre", block + 1);
            if let Some(next) = all.get(&next) {
                assert!(next.data == *at("hook_resid_post"), "{name} {block}");
            }
        }
    }
}

#[test]
fn attention_patterns_weight_the_values() {
    for name in FAMILIES {
        let folder = family(name);
        let dims = open(&folder).program.dims;
        let all = everything(&folder, 17);
        for block in 0..dims.blocks {
            let at = |hook: &str| &all[&format!("blocks.{block}.attn.{hook}")];
            let (pattern, v, z) = (at("hook_pattern"), at("hook_v"), at("hook_z"));
            let (queries, keys) = (pattern.shape[1], pattern.shape[2]);
            let shared = dims.heads / dims.kv_heads;
            for head in 0..dims.heads {
                for query in 0..queries {
                    let weights = &pattern.data[(head * queries + query) * keys..][..keys];
                    let mixed: Vec<f32> = (0..dims.d_head)
                        .map(|i| {
                            let value = |key: usize| {
                                v.data[(key * dims.kv_heads + head / shared) * dims.d_head + i]
                            };
                            (0..keys).map(|key| weights[key] * value(key)).sum()
                        })
                        .collect();
                    let z = &z.data[(query * dims.heads + head) * dims.d_head..][..dims.d_head];
                    close(
                        &mixed,
                        z,
                        &format!("{name} block {block} head {head} query {query}"),
                    );
                    let sum: f32 = weights.iter().sum();
                    close(&[sum], &[1.0], "a pattern sums to one");
                }
            }
        }
    }
}

/// The head computes logits from the last residual: a session whose last residual is replaced by
/// that of another session gets the other session's logits.
#[test]
fn replacing_the_last_residual_replaces_the_logits() {
    for name in FAMILIES {
        let folder = family(name);
        let tokens = ids(&golden(&folder)["input_ids"]);
        let last = format!(
            "blocks.{}.hook_resid_post",
            open(&folder).program.dims.blocks - 1
        );
        let one = request(&folder, &tokens[..9], &["logits", &last], 1);
        let other = run(&folder, vec![one], How::default()).remove(0);
        let other = tensors(&other);
        let mut reversed = tokens[..9].to_vec();
        reversed.reverse();
        let folder_of = tempfile::tempdir().unwrap();
        let path = folder_of.path().join("resid.safetensors");
        write_tensors(
            &path,
            &BTreeMap::from([("x".to_owned(), other[&last].clone())]),
            &BTreeMap::new(),
        )
        .unwrap();
        let replace = format!("{last}:replace={}", path.display());
        let ask = request_edited(&folder, &reversed, &["logits"], 1, &[&replace]);
        let found = run(&folder, vec![ask], How::default()).remove(0);
        assert!(
            tensors(&found)["logits"].data == other["logits"].data,
            "{name}"
        );
    }
}

#[test]
fn neutral_edits_at_every_hook_change_no_bit() {
    for name in FAMILIES {
        let folder = family(name);
        let tokens = ids(&golden(&folder)["input_ids"])[..9].to_vec();
        let plain = request(&folder, &tokens, &["*"], 3);
        let alone = run(&folder, vec![plain], How::default()).remove(0);
        let expect = bits(&alone);
        let captured = tensors(&alone);
        let folder_of = tempfile::tempdir().unwrap();
        let path = folder_of.path().join("captured.safetensors");
        let mut file = captured.clone();
        file.retain(|hook, _| !hook.contains("pattern"));
        write_tensors(&path, &file, &BTreeMap::new()).unwrap();
        for (hook, tensor) in &file {
            let rows = tensor.data.len() / tensor.shape[0];
            let zeros = vec!["0"; rows].join(",");
            for change in [
                "scale=1".to_owned(),
                format!("add=[{zeros}]"),
                format!("replace={}#{hook}", path.display()),
            ] {
                let edit = format!("{hook}:{change}");
                let ask = request_edited(&folder, &tokens, &["*"], 3, &[&edit]);
                let found = run(&folder, vec![ask], How::default()).remove(0);
                assert!(bits(&found) == expect, "{name} {hook}");
            }
        }
    }
}

#[test]
fn the_lens_after_the_last_block_gives_the_logits() {
    for name in FAMILIES {
        let folder = family(name);
        let tokens = ids(&golden(&folder)["input_ids"]);
        let blocks = open(&folder).program.dims.blocks;
        let read = |captures: &[&str], rows: usize| {
            let one = request(&folder, &tokens[..9], captures, 0);
            let how = How {
                rows,
                ..How::default()
            };
            tensors(&run(&folder, vec![one.clone(), one], how).remove(0))
        };
        let found = read(&["blocks.*.hook_resid_post|lens4"], 64);
        assert_eq!(found.len(), blocks, "{name}");
        let last = format!("blocks.{}.hook_resid_post", blocks - 1);
        let logits = read(&["logits|likeliest4"], 64);
        assert_eq!(found[&last].shape, [9, 2, 4], "{name}");
        assert!(found[&last].data == logits["logits"].data, "{name}");
        // The result does not depend on how the rows are divided into passes.
        let few = read(&["blocks.*.hook_resid_post|lens4"], 5);
        assert!(
            found.iter().all(|(hook, seen)| few[hook].data == seen.data),
            "{name}"
        );
    }
}
