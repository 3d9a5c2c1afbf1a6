//! The same session gives the same bits: whatever the chunking, the neighbours, the
//! threads and the instruction set.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::path::{Path, PathBuf};

use common::{FAMILIES, How, bits, family, golden, ids, request, request_edited, run, stories};
use djinn_device::cpu::Isa;
use djinn_engine::Request;

/// Every model, with a prompt of its own.
fn models() -> Vec<(PathBuf, Vec<u32>)> {
    let families = FAMILIES.map(|name| {
        let folder = family(name);
        let tokens = ids(&golden(&folder)["input_ids"]);
        (folder, tokens)
    });
    let tokens = ids(&golden(&stories())["cat.input_ids"]);
    families.into_iter().chain([(stories(), tokens)]).collect()
}

fn alone(folder: &Path, request: Request) -> common::Bits {
    let transcript = run(folder, vec![request], How::default()).remove(0);
    bits(folder, &transcript)
}

#[test]
fn whatever_the_chunk() {
    for (folder, tokens) in models() {
        let expect = alone(&folder, request(&folder, &tokens, &["*"], 8));
        for rows in [1, 7, 16, tokens.len()] {
            let how = How {
                rows,
                ..How::default()
            };
            let request = request(&folder, &tokens, &["*"], 8);
            let found = run(&folder, vec![request], how).remove(0);
            assert!(
                bits(&folder, &found) == expect,
                "{folder:?} in chunks of {rows}"
            );
        }
    }
}

/// Sixteen requests that differ in prompt, length and what they do at hooks.
fn unlike(folder: &Path, tokens: &[u32]) -> Vec<Request> {
    (0..16)
        .map(|i| {
            let mut prompt: Vec<u32> = tokens
                .iter()
                .cycle()
                .skip(i)
                .take(1 + 5 * i)
                .copied()
                .collect();
            prompt.rotate_left(i / 2);
            let edit = ["blocks.1.hook_resid_post:scale=0.7@prompt"];
            let edits: &[&str] = if i % 3 == 0 { &edit } else { &[] };
            let captures: &[&str] = match i % 4 {
                0 => &["*"],
                1 => &["logits"],
                2 => &["blocks.*.hook_resid_post", "blocks.1.attn.hook_pattern"],
                _ => &[],
            };
            request_edited(folder, &prompt, captures, 3 + i % 5, edits)
        })
        .collect()
}

#[test]
fn whoever_else_is_in_the_batch() {
    for (folder, tokens) in models() {
        let requests = unlike(&folder, &tokens);
        for rows in [24, 512] {
            let how = How {
                rows,
                ..How::default()
            };
            let together = run(&folder, requests.clone(), how);
            for (i, (request, found)) in requests.iter().zip(&together).enumerate() {
                let expect = alone(&folder, request.clone());
                assert!(
                    bits(&folder, found) == expect,
                    "{folder:?} session {i} of {rows} rows"
                );
            }
        }
    }
}

#[test]
fn whatever_the_threads_and_instructions() {
    let most = djinn_device::host::cores();
    let isas = [Isa::Avx512, Isa::Avx2, Isa::Scalar];
    for (folder, tokens) in models() {
        let expect = alone(&folder, request(&folder, &tokens, &["*"], 4));
        for isa in isas.into_iter().filter(|isa| isa.is_available()) {
            for threads in [1, most] {
                let how = How {
                    threads: Some(threads),
                    isa: Some(isa),
                    ..How::default()
                };
                let request = request(&folder, &tokens, &["*"], 4);
                let found = run(&folder, vec![request], how).remove(0);
                assert!(
                    bits(&folder, &found) == expect,
                    "{folder:?} {isa} {threads} threads"
                );
            }
        }
    }
}

#[test]
fn an_edit_that_changes_nothing_changes_no_bit() {
    for (folder, tokens) in models() {
        let expect = alone(&folder, request(&folder, &tokens, &["*"], 4));
        let edits = ["*:scale=1"];
        let found = alone(&folder, request_edited(&folder, &tokens, &["*"], 4, &edits));
        assert!(found == expect, "{folder:?}");
    }
}
