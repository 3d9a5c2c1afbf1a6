//! Every family against the results of transformers: activations, logits, greedy tokens, and
//! logits under an edit.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::path::Path;

use common::{
    FAMILIES, card, family, golden, golden_note, ids, largest_difference, request, request_edited,
    run, tensors, with_kv,
};
use djinn_engine::Tensor;
use djinn_types::KvDtype;

const ABSOLUTE: f32 = 2e-3;
const RELATIVE: f32 = 1e-3;
/// Tolerance for 16-bit weights on a GPU, which rounds inputs to the type of the weights, relative
/// to the largest value of the tensor.
const ROUNDED: f32 = 5e-3;

/// Asserts closeness and returns the largest difference.
fn assert_close(name: &str, found: &Tensor, expect: &Tensor) -> f32 {
    assert_within(name, found, expect, ABSOLUTE)
}

fn assert_within(name: &str, found: &Tensor, expect: &Tensor, absolute: f32) -> f32 {
    assert_eq!(found.shape, expect.shape, "{name}: shape");
    let mut largest = 0f32;
    for (i, (&x, &y)) in found.data.iter().zip(&expect.data).enumerate() {
        let off = (x - y).abs();
        assert!(
            off <= absolute + RELATIVE * y.abs(),
            "{name}[{i}]: {x}, expected {y}"
        );
        largest = largest.max(off);
    }
    largest
}

/// Largest difference that rounding keys and values to a type of 16 bits may make, relative to the
/// largest value of the tensor. If rounding selects another expert at one position, all later
/// positions see it.
fn kv_rounding(kv_dtype: KvDtype, is_routed: bool) -> f32 {
    let rounding = match kv_dtype {
        KvDtype::Bf16 => 1.6e-2,
        _ => 2e-3,
    };
    if is_routed { 4.0 * rounding } else { rounding }
}

#[test]
fn captures_and_logits_with_16_bit_keys_are_close_to_transformers() {
    for name in FAMILIES {
        let folder = family(name);
        let golden = golden(&folder);
        let tokens = ids(&golden["input_ids"]);
        for kv_dtype in [KvDtype::F16, KvDtype::Bf16] {
            let mut request = request(&folder, &tokens, &["*"], 0);
            request.probe = prompt_probe(&folder);
            let transcript = run(&folder, vec![request], with_kv(kv_dtype)).remove(0);
            let found = tensors(&transcript);
            let mut compared = 0;
            for (hook, expect) in &golden {
                if hook.starts_with("blocks.") || hook == "logits" {
                    let largest = expect.data.iter().fold(0f32, |most, x| most.max(x.abs()));
                    let routed = name == "mixtral";
                    let off = largest_difference(&found[hook], &expect.data, routed) / largest;
                    assert!(
                        off <= kv_rounding(kv_dtype, routed),
                        "{name} {kv_dtype} {hook}: {off}"
                    );
                    compared += 1;
                }
            }
            assert_eq!(compared, 4 * 4 + 1, "{name}: golden tensors");
        }
    }
}

#[test]
fn captures_logits_and_greedy_tokens_match_transformers() {
    for name in FAMILIES {
        let folder = family(name);
        let golden = golden(&folder);
        let tokens = ids(&golden["input_ids"]);
        let expect = ids(&golden["greedy_ids"]);
        let mut request = request(&folder, &tokens, &["*"], expect.len());
        request.probe = prompt_probe(&folder);
        let transcript = run(&folder, vec![request], with_kv(KvDtype::F32)).remove(0);
        let found = tensors(&transcript);
        let mut compared = 0;
        let mut largest = 0f32;
        for (hook, expect) in &golden {
            if hook.starts_with("blocks.") || hook == "logits" {
                let off = assert_close(&format!("{name} {hook}"), &found[hook], expect);
                largest = largest.max(off);
                compared += 1;
            }
        }
        assert_eq!(compared, 4 * 4 + 1, "{name}: golden tensors");
        // The difference is far below the narrowest margin between two tokens, so greedy tokens
        // must agree.
        let margin: f32 = golden_note(&folder, "min_greedy_margin").parse().unwrap();
        assert!(
            2.0 * largest < margin,
            "{name}: off by {largest}, margin {margin}"
        );
        assert_eq!(transcript.generated, expect, "{name}: greedy tokens");
    }
}

fn prompt_probe(folder: &Path) -> djinn_engine::Probe {
    let program = common::open(folder).program;
    djinn_engine::Probe::new(&program, &["*"], djinn_engine::Positions::Prompt, &[]).unwrap()
}

#[test]
fn steered_logits_match_transformers() {
    for name in FAMILIES {
        let folder = family(name);
        let golden = golden(&folder);
        let note = golden_note(&folder, "steered");
        let expect = r#"{"hook": "blocks.2.hook_resid_post", "op": "scale", "factor": 0.9}"#;
        assert_eq!(note, expect, "{name}");
        let tokens = ids(&golden["input_ids"]);
        let edit = "blocks.2.hook_resid_post:scale=0.9";
        let request = request_edited(&folder, &tokens, &["logits"], 0, &[edit]);
        let transcript = run(&folder, vec![request], with_kv(KvDtype::F32)).remove(0);
        let found = tensors(&transcript);
        assert_close(name, &found["logits"], &golden["steered.logits"]);
    }
}

#[test]
fn the_bundled_model_matches_transformers() {
    let folder = common::stories();
    let golden = golden(&folder);
    for prompt in ["cat", "rain", "robot"] {
        let tokens = ids(&golden[&format!("{prompt}.input_ids")]);
        let expect = ids(&golden[&format!("{prompt}.greedy_ids")]);
        let patterns = ["blocks.*.hook_resid_pre", "logits"];
        let mut asked = request(&folder, &tokens, &patterns, expect.len());
        let program = common::open(&folder).program;
        asked.probe =
            djinn_engine::Probe::new(&program, &patterns, djinn_engine::Positions::Prompt, &[])
                .unwrap();
        let transcript = run(&folder, vec![asked], with_kv(KvDtype::F32)).remove(0);
        for (hook, found) in tensors(&transcript) {
            let name = format!("{prompt}.{hook}");
            let expect = &golden[&name];
            let largest = expect.data.iter().fold(0f32, |most, x| most.max(x.abs()));
            let absolute = match card() {
                Some(_) => ROUNDED * largest,
                None => ABSOLUTE,
            };
            assert_within(&name, &found, expect, absolute);
        }
        assert_eq!(transcript.generated, expect, "{prompt}: greedy tokens");
    }
}
