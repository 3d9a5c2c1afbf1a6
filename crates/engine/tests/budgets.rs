//! The same session gives the same bits whatever the memory: from the least budget to
//! everything, with and without prefetch, whatever the chunks and workers.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::path::{Path, PathBuf};

use common::{FAMILIES, How, bits, family, golden, ids, open, request, run, stories};
use djinn_engine::{Backend, Blueprint, EngineError, Memory, Request, Settings};
use djinn_memory::{Keep, Overrides, PlanError};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const BUDGETS: u64 = 10;

fn draw(folder: &Path, requests: &[Request], memory: Memory) -> Result<Blueprint, EngineError> {
    let model = open(folder);
    let settings = Settings::for_requests(&model, requests, Settings::ROWS).unwrap();
    Blueprint::draw(&model, &Backend::cpu(), settings, memory)
}

fn with_budget(budget: u64) -> Memory {
    Memory {
        budget,
        ..Memory::default()
    }
}

/// The least budget, as the refusal of none names it, and what holds everything.
fn range(folder: &Path, requests: &[Request]) -> (u64, u64) {
    let least = match draw(folder, requests, with_budget(0)) {
        Err(EngineError::Plan(PlanError::Budget { least, .. })) => least,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("{folder:?} runs in no memory"),
    };
    let all = draw(folder, requests, with_budget(u64::MAX)).unwrap();
    assert!(!all.plan().streams());
    (least, all.footprint().total())
}

/// A prompt, every hook of it, and some tokens.
fn asked(folder: &Path) -> Request {
    let golden = golden(folder);
    let tokens = golden
        .get("input_ids")
        .unwrap_or_else(|| &golden["cat.input_ids"]);
    request(folder, &ids(tokens), &["*"], 5)
}

fn check_every_budget(folder: &Path) {
    let ask = || vec![asked(folder)];
    let expect = bits(folder, &run(folder, ask(), How::default())[0]);
    let (least, all) = range(folder, &ask());
    let mut streamed = 0;
    for step in 0..BUDGETS {
        let budget = least + (all - least) * step / (BUDGETS - 1);
        let blueprint = draw(folder, &ask(), with_budget(budget)).unwrap();
        assert!(
            blueprint.footprint().total() <= budget,
            "{folder:?} in {budget}"
        );
        streamed += u64::from(blueprint.plan().streams());
        assert_eq!(
            blueprint.plan().streams(),
            budget < all,
            "{folder:?} in {budget}"
        );
        for prefetch in [true, false] {
            for chunk in [16 * KIB, 64 * KIB, 64 * MIB] {
                for workers in 1..=4 {
                    let memory = Memory {
                        budget,
                        chunk,
                        workers,
                        prefetch,
                        ..Memory::default()
                    };
                    let how = How {
                        memory,
                        ..How::default()
                    };
                    let found = run(folder, ask(), how).remove(0);
                    assert!(bits(folder, &found) == expect, "{folder:?} with {memory:?}");
                }
            }
        }
    }
    assert_eq!(streamed, BUDGETS - 1, "{folder:?}");
}

macro_rules! every_budget {
    ($($name:ident),*) => {
        $(#[test]
        fn $name() {
            check_every_budget(&family(stringify!($name)));
        })*

        #[test]
        fn every_family_is_here() {
            assert_eq!([$(stringify!($name)),*], FAMILIES);
        }
    };
}

every_budget!(
    falcon180b, falcon7b, gpt2, gptj, llama2, llama3, mistral, mixtral, qwen2, qwen3
);

#[test]
fn bundled() {
    check_every_budget(&stories());
}

/// A family whose head is tied, one with experts, one whose matrices cannot be cut.
fn some() -> Vec<PathBuf> {
    ["llama3", "mixtral", "gpt2"].map(family).to_vec()
}

#[test]
fn whatever_the_user_decides() {
    for folder in some() {
        let ask = || vec![asked(&folder)];
        let expect = bits(&folder, &run(&folder, ask(), How::default())[0]);
        for keep in [Keep::All, Keep::Nothing, Keep::AtMost(300_000)] {
            for ring in [None, Some(400_000), Some(u64::MAX / 2)] {
                let memory = Memory {
                    overrides: Overrides { ring, keep },
                    chunk: 64 * KIB,
                    ..Memory::default()
                };
                let blueprint = draw(&folder, &ask(), memory).unwrap();
                assert_eq!(blueprint.plan().streams(), keep != Keep::All, "{folder:?}");
                let how = How {
                    memory,
                    ..How::default()
                };
                let found = run(&folder, ask(), how).remove(0);
                assert!(
                    bits(&folder, &found) == expect,
                    "{folder:?} with {memory:?}"
                );
            }
        }
    }
}

#[test]
fn many_sessions_whose_prompts_come_in_pieces() {
    for folder in some() {
        let tokens = ids(&golden(&folder)["input_ids"]);
        let asked: Vec<Request> = (1..6)
            .map(|i| {
                request(
                    &folder,
                    &tokens[..3 * i],
                    &["blocks.*.hook_resid_post"],
                    2 + i,
                )
            })
            .collect();
        let (least, all) = range(&folder, &asked);
        let expect: Vec<_> = run(&folder, asked.clone(), How::default())
            .iter()
            .map(|transcript| bits(&folder, transcript))
            .collect();
        // Few rows a pass: most passes end before the head, which is then passed over.
        for (budget, rows) in [(least, 5), ((least + all) / 2, 6), (least, 100)] {
            let how = How {
                memory: with_budget(budget),
                rows,
                ..How::default()
            };
            let found = run(&folder, asked.clone(), how);
            for (found, expect) in found.iter().zip(&expect) {
                assert!(bits(&folder, found) == *expect, "{folder:?} in {budget}");
            }
        }
    }
}

#[test]
fn budgets_that_cannot_work_name_the_least_that_would() {
    let folder = stories();
    let ask = [asked(&folder)];
    let (least, all) = range(&folder, &ask);
    assert!(least * 3 < all, "{least} of {all}");
    let error = draw(&folder, &ask, with_budget(least - 1)).err().unwrap();
    let named = djinn_memory::Size(least).to_string();
    assert!(error.to_string().contains(&named), "{error}");
    let memory = Memory {
        overrides: Overrides {
            keep: Keep::All,
            ring: None,
        },
        ..with_budget(all - 1)
    };
    assert!(draw(&folder, &ask, memory).is_err());
    for workers in [0, 65] {
        let memory = Memory {
            workers,
            ..Memory::default()
        };
        assert!(draw(&folder, &ask, memory).is_err());
    }
}

#[test]
fn a_pass_streams_what_does_not_stay() {
    for folder in [family("llama2"), family("gpt2"), stories()] {
        let ask = || {
            let golden = golden(&folder);
            let tokens = golden
                .get("input_ids")
                .unwrap_or_else(|| &golden["cat.input_ids"]);
            vec![request(&folder, &ids(tokens), &[], 8)]
        };
        let (least, all) = range(&folder, &ask());
        let how = How {
            memory: Memory {
                prefetch: false,
                ..with_budget((least + all) / 2)
            },
            ..How::default()
        };
        let mut engine = common::load(open(&folder), &ask(), how);
        engine.open(ask().remove(0)).unwrap();
        let streamed = engine.blueprint().plan().ring.streamed_bytes();
        let stays = engine.blueprint().plan().resident_bytes;
        let pieces = engine.blueprint().pieces();
        assert_eq!(
            streamed + stays,
            pieces.iter().map(|p| p.bytes).sum::<u64>()
        );
        while !engine.is_idle() {
            engine.step().unwrap();
            let stats = engine.last_pass().unwrap();
            let dims = &engine.model().program.dims;
            // Beside the pieces only rows of tables, at most two of each token.
            let rows = (2 * 4 * stats.rows * dims.d_model) as u64;
            assert!(stats.link_bytes >= streamed, "{folder:?}");
            assert!(stats.link_bytes <= streamed + rows, "{folder:?}");
        }
    }
}

/// A pass of one token through the mixture, in memory for so many experts.
fn mixture(slots: u64) -> (djinn_engine::Engine, u64) {
    let folder = family("mixtral");
    let tokens = ids(&golden(&folder)["input_ids"]);
    let ask = [request(&folder, &tokens[..1], &[], 8)];
    let (least, _) = range(&folder, &ask);
    let pool = draw(&folder, &ask, with_budget(least)).unwrap().plan().pool;
    let nothing_streams = (least..)
        .step_by(4096)
        .find(|&budget| {
            let plan = draw(&folder, &ask, with_budget(budget)).unwrap();
            plan.plan().ring.slots.is_empty()
        })
        .unwrap();
    let budget = nothing_streams + (slots - 1) * pool.bytes;
    let how = How {
        memory: with_budget(budget),
        ..How::default()
    };
    let mut engine = common::load(open(&folder), &ask, how);
    assert_eq!(engine.blueprint().plan().pool_slots as u64, slots);
    let [ask] = ask;
    engine.open(ask).unwrap();
    (engine, pool.bytes)
}

#[test]
fn a_pass_brings_only_the_experts_its_tokens_chose() {
    let (mut engine, expert) = mixture(2);
    let dims = engine.model().program.dims;
    while !engine.is_idle() {
        engine.step().unwrap();
        let stats = engine.last_pass().unwrap();
        // One token goes through two experts of each block; and reads its own row.
        let most = 2 * dims.blocks as u64 * expert + 4 * dims.d_model as u64;
        assert!(stats.link_bytes <= most, "{stats:?}");
    }
}

#[test]
fn experts_in_use_stay_when_they_can() {
    // All that a token's pass needs fits: the same token again needs nothing new.
    let folder = family("mixtral");
    let token = ids(&golden(&folder)["input_ids"])[0];
    let blocks = open(&folder).program.dims.blocks as u64;
    let (mut engine, expert) = mixture(2 * blocks);
    let mut brought = Vec::new();
    for _ in 0..4 {
        while !engine.is_idle() {
            engine.step().unwrap();
        }
        let again = request(&folder, &[token], &[], 1);
        for id in 0..brought.len() as u64 + 1 {
            engine.close(djinn_engine::SessionId(id));
        }
        engine.open(again).unwrap();
        engine.step().unwrap();
        brought.push(engine.last_pass().unwrap().link_bytes);
    }
    // What the first session used most may still be in the way of the first pass or two.
    assert!(brought[3] < expert, "{brought:?} of {expert}");
}
