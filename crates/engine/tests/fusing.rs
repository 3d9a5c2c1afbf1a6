//! Fused operations: a pass uses them unless a session observes a value inside, and the results
//! are the same either way.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::collections::BTreeMap;
use std::path::Path;

use common::{FAMILIES, family, golden, ids, open, request};
use djinn_device::testing::LateBackend;
use djinn_engine::{Blueprint, Engine, Request, Settings, Transcript};
use djinn_weights::{Keep, MemorySettings, Overrides};

/// Runs one request; returns its transcript and the number of calls of each device operation.
fn run(folder: &Path, request: Request, keep: Keep) -> (Transcript, BTreeMap<&'static str, usize>) {
    let model = open(folder);
    let backend = LateBackend::new(0, 0);
    let requests = [request.clone()];
    let settings = Settings::for_requests(&model, &requests, Settings::ROWS).unwrap();
    let memory = MemorySettings {
        overrides: Overrides {
            keep,
            ..Overrides::default()
        },
        ..MemorySettings::default()
    };
    let blueprint = Blueprint::draw(&model, &backend, settings, memory).unwrap();
    let mut engine = Engine::load(model, &backend, blueprint, &mut |_| {}).unwrap();
    backend.take_ops();
    let id = engine.open(request).unwrap();
    while !engine.is_idle() {
        engine.step().unwrap();
    }
    let mut counts = BTreeMap::new();
    for op in backend.take_ops() {
        *counts.entry(op).or_default() += 1;
    }
    (engine.close(id).unwrap(), counts)
}

fn count(counts: &BTreeMap<&'static str, usize>, op: &str) -> usize {
    counts.get(op).copied().unwrap_or(0)
}

/// A prompt and four more tokens: a pass over the prompt, and three over one token each.
const TOKENS: usize = 4;
const PASSES: usize = TOKENS;

#[test]
fn passes_use_fused_operations() {
    for name in FAMILIES {
        let folder = family(name);
        let tokens = ids(&golden(&folder)["input_ids"]);
        let blocks = open(&folder).program.dims.blocks;
        let (_, counts) = run(&folder, request(&folder, &tokens, &[], TOKENS), Keep::All);
        let is_gated = !["falcon180b", "falcon7b", "gpt2", "gptj", "mixtral"].contains(&name);
        let gated = if is_gated { PASSES * blocks } else { 0 };
        if name != "mixtral" {
            assert_eq!(count(&counts, "linear_gated"), gated, "{name}");
        }
        let rotates = name != "gpt2";
        let attends = if rotates { PASSES * blocks } else { 0 };
        assert_eq!(count(&counts, "rope_append_attend"), attends, "{name}");
        assert_eq!(count(&counts, "rope"), 0, "{name}");
        // Families with attention and MLP in parallel have one sum with a norm a block.
        let is_parallel = ["falcon180b", "falcon7b", "gptj"].contains(&name);
        let sums = if is_parallel {
            blocks - 1
        } else {
            2 * blocks - 1
        };
        assert_eq!(count(&counts, "add_norm"), PASSES * sums, "{name}");
    }
}

#[test]
fn observed_hooks_prevent_fusing() {
    let folder = family("llama2");
    let tokens = ids(&golden(&folder)["input_ids"]);
    let blocks = open(&folder).program.dims.blocks;
    let counts = |hook: &str| {
        let request = request(&folder, &tokens, &[hook], 1);
        run(&folder, request, Keep::All).1
    };
    let pre = counts("blocks.0.mlp.hook_pre");
    assert_eq!(count(&pre, "linear_gated"), blocks - 1);
    assert_eq!(count(&pre, "gate"), 1);
    let mid = counts("blocks.1.hook_resid_mid");
    assert_eq!(count(&mid, "add_norm"), 2 * blocks - 2);
    // The residual at the end of a block lies between its sum and the norm of the next block.
    let post = counts("blocks.0.hook_resid_post");
    assert_eq!(count(&post, "add_norm"), 2 * blocks - 2);
    let pattern = counts("blocks.0.attn.hook_pattern");
    assert_eq!(count(&pattern, "rope_append_attend"), blocks - 1);
    assert_eq!(count(&pattern, "rope"), 2);
    // A hook outside of fused runs changes nothing.
    let z = counts("blocks.0.attn.hook_z");
    assert_eq!(count(&z, "add_norm"), 2 * blocks - 1);
    assert_eq!(count(&z, "linear_gated"), blocks);
}

#[test]
fn streamed_weights_are_not_fused() {
    let folder = family("llama2");
    let tokens = ids(&golden(&folder)["input_ids"]);
    let blocks = open(&folder).program.dims.blocks;
    let request = || request(&folder, &tokens, &[], TOKENS);
    let (resident, _) = run(&folder, request(), Keep::All);
    let (streamed, counts) = run(&folder, request(), Keep::Nothing);
    assert_eq!(count(&counts, "linear_gated"), 0);
    assert_eq!(
        count(&counts, "add_norm"),
        PASSES * (2 * blocks - 1),
        "sums and norms need no streamed weights"
    );
    assert_eq!(resident.generated, streamed.generated);
}

#[test]
fn fused_and_plain_operations_give_the_same_bits() {
    for name in FAMILIES {
        let folder = family(name);
        let tokens = ids(&golden(&folder)["input_ids"]);
        let run = |hooks: &[&str]| {
            let request = request(&folder, &tokens, hooks, TOKENS);
            run(&folder, request, Keep::All).0
        };
        // A capture of every hook prevents all fusing.
        let (fused, plain) = (run(&["logits"]), run(&["*"]));
        assert_eq!(fused.generated, plain.generated, "{name}");
        let logits = |transcript: &Transcript| {
            let tensors = common::tensors(transcript);
            let bits = tensors["logits"].data.iter().map(|x| x.to_bits());
            bits.collect::<Vec<u32>>()
        };
        assert_eq!(logits(&fused), logits(&plain), "{name}");
    }
}
