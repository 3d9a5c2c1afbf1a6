//! A session gives the same bits for every chunk size, every batch, any number of threads and every
//! instruction set.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::path::{Path, PathBuf};

use common::{
    FAMILIES, How, KV_DTYPES, bits, family, golden, ids, request, request_edited, run, stories,
    with_kv,
};
use djinn_device::cpu::Isa;
use djinn_engine::{Request, Sampling};

/// Returns every model with a prompt.
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
    bits(&transcript)
}

#[test]
fn bits_do_not_depend_on_the_chunk() {
    for (folder, tokens) in models() {
        let expect = alone(&folder, request(&folder, &tokens, &["*"], 8));
        for rows in [1, 7, 16, tokens.len()] {
            let how = How {
                rows,
                ..How::default()
            };
            let request = request(&folder, &tokens, &["*"], 8);
            let found = run(&folder, vec![request], how).remove(0);
            assert!(bits(&found) == expect, "{folder:?} in chunks of {rows}");
        }
    }
}

/// On devices where the phases agree, pages of generated tokens serve prompts with these tokens.
#[test]
fn generated_rows_have_the_bits_of_prompt_rows_where_the_phases_agree() {
    if !How::default().backend().phases_agree() {
        return;
    }
    let alone = |folder: &Path, request: Request, how: How| {
        let transcript = run(folder, vec![request], how).remove(0);
        bits(&transcript)
    };
    for (folder, tokens) in models() {
        for (how, prompt) in KV_DTYPES.map(with_kv).into_iter().zip([1, 9, tokens.len()]) {
            let answered = request(&folder, &tokens[..prompt], &["*"], 24);
            let (answer, expect) = alone(&folder, answered, how);
            let whole: Vec<u32> = tokens[..prompt].iter().chain(&answer).copied().collect();
            // The last generated token has not run.
            let asked = request(&folder, &whole[..whole.len() - 1], &["*"], 1);
            let (next, found) = alone(&folder, asked, how);
            assert!(found == expect, "{folder:?} after {prompt} tokens");
            assert_eq!(next, answer[answer.len() - 1..]);
        }
    }
}

/// Creates sixteen requests that differ in prompt, length, captures and edits.
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
fn bits_do_not_depend_on_the_batch() {
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
                    bits(found) == expect,
                    "{folder:?} session {i} of {rows} rows"
                );
            }
        }
    }
}

#[test]
fn bits_do_not_depend_on_threads_and_instruction_set() {
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
                assert!(bits(&found) == expect, "{folder:?} {isa} {threads} threads");
            }
        }
    }
}

#[test]
fn a_neutral_edit_changes_no_bit() {
    for (folder, tokens) in models() {
        let expect = alone(&folder, request(&folder, &tokens, &["*"], 4));
        let edits = ["*:scale=1"];
        let found = alone(&folder, request_edited(&folder, &tokens, &["*"], 4, &edits));
        assert!(found == expect, "{folder:?}");
    }
}

/// Creates requests with different sampling parameters.
fn sampled(tokens: &[u32]) -> Vec<Request> {
    (0..6)
        .map(|i| Request {
            tokens: tokens[..3 + i].to_vec(),
            max_tokens: 12,
            sampling: Sampling {
                temperature: 0.7 + 0.1 * i as f32,
                top_k: [0, 5][i % 2],
                top_p: 0.95,
                repetition_penalty: 1.1,
                presence_penalty: 0.2,
                seed: i as u64,
                logprobs: Some(2),
                ..Sampling::default()
            },
            ..Request::default()
        })
        .collect()
}

#[test]
fn sampled_tokens_do_not_depend_on_the_batch() {
    let folder = stories();
    let tokens = ids(&golden(&folder)["cat.input_ids"]);
    let together = run(&folder, sampled(&tokens), How::default());
    for (request, found) in sampled(&tokens).into_iter().zip(&together) {
        let expect = run(&folder, vec![request], How::default()).remove(0);
        assert_eq!(found.generated, expect.generated);
        assert_eq!(found.logprobs, expect.logprobs);
    }
    assert_ne!(together[0].generated, together[1].generated);
}

#[test]
fn the_device_samples_the_same_tokens_as_the_host() {
    let sampling = |temperature, top_k, top_p, min_p, seed| Sampling {
        temperature,
        top_k,
        top_p,
        min_p,
        seed,
        ..Sampling::default()
    };
    let samplings = [
        Sampling::default(),
        sampling(1.0, 0, 1.0, 0.0, 1),
        sampling(1.0, 0, 1.0, 0.0, 2),
        sampling(0.7, 5, 1.0, 0.0, 3),
        sampling(1.4, 0, 0.8, 0.0, 4),
        sampling(0.9, 0, 1.0, 0.3, 5),
        sampling(2.0, 50, 0.9, 0.01, 6),
    ];
    for (folder, tokens) in models() {
        let ask = |i: usize, logprobs: Option<usize>| Request {
            sampling: Sampling {
                logprobs,
                ..samplings[i].clone()
            },
            ..request(&folder, &tokens[i % 3..], &[], 8)
        };
        let all = || 0..samplings.len();
        let together = run(
            &folder,
            all().map(|i| ask(i, None)).collect(),
            How::default(),
        );
        // With `logprobs` the host reads the logits and samples.
        let read = all().map(|i| ask(i, Some(0))).collect();
        let read = run(&folder, read, How::default());
        for i in all() {
            let alone = run(&folder, vec![ask(i, None)], How::default()).remove(0);
            assert_eq!(together[i].generated, alone.generated, "{folder:?} {i}");
            assert_eq!(together[i].generated, read[i].generated, "{folder:?} {i}");
        }
        // Different seeds draw different tokens.
        assert_ne!(together[1].generated, together[2].generated, "{folder:?}");
    }
}

#[test]
fn opening_and_closing_sessions_changes_no_bit() {
    let folder = stories();
    let tokens = ids(&golden(&folder)["cat.input_ids"]);
    let expect = run(
        &folder,
        vec![request(&folder, &tokens, &["logits"], 20)],
        How::default(),
    );
    let expect = bits(&expect[0]);

    let model = common::open(&folder);
    let ask = || request(&folder, &tokens, &["logits"], 20);
    let how = How {
        rows: 8,
        ..How::default()
    };
    let mut engine = common::load(model, &[ask(), ask(), ask()], how);
    let mut open = Vec::new();
    for round in 0..9 {
        let full = open.len() == 3;
        assert_eq!(engine.open(ask()).map(|id| open.push(id)).is_err(), full);
        for _ in 0..3 {
            engine.step().unwrap();
        }
        engine.check_integrity();
        if round % 4 == 3 {
            // Closed in the middle; the next session reuses its pages.
            let transcript = engine.close(open.remove(0)).unwrap();
            assert_eq!(transcript.prompt, tokens);
        }
    }
    while !engine.is_idle() {
        engine.step().unwrap();
    }
    for id in open {
        let transcript = engine.close(id).unwrap();
        assert!(bits(&transcript) == expect, "{id:?}");
    }
    engine.check_integrity();
}
