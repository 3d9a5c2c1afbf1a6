//! A session gives the same bits in any amount of memory: from the minimum to the whole model, with
//! and without prefetch, for every chunk size and number of workers, from files and from host
//! memory.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::path::{Path, PathBuf};

use common::{FAMILIES, How, bits, card, family, golden, ids, load, open, request, run, stories};
use djinn_engine::{
    Blueprint, EngineError, Positions, Probe, Request, Sampling, Settings, Transcript,
};
use djinn_model::Model;
use djinn_types::Tier;
use djinn_weights::{Keep, MemorySettings, Overrides, PlanError, TimelineLane, WeightsError};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const BUDGETS: u64 = 10;

fn draw(
    folder: &Path,
    requests: &[Request],
    memory: MemorySettings,
) -> Result<Blueprint, EngineError> {
    let model = open(folder);
    let settings = Settings::for_requests(&model, requests, Settings::ROWS).unwrap();
    Blueprint::draw(&model, &*How::default().backend(), settings, memory)
}

fn with_budget(budget: u64) -> MemorySettings {
    MemorySettings {
        budget,
        ..MemorySettings::default()
    }
}

fn from_host(budget: u64) -> MemorySettings {
    MemorySettings {
        tier: Some(Tier::Host),
        ..with_budget(budget)
    }
}

/// Returns the minimum budget, and the budget that holds the whole model.
fn range(folder: &Path, requests: &[Request]) -> (u64, u64) {
    range_of(folder, requests, with_budget)
}

fn range_of(folder: &Path, requests: &[Request], memory: fn(u64) -> MemorySettings) -> (u64, u64) {
    let least = match draw(folder, requests, memory(0)) {
        Err(EngineError::Plan(PlanError::Budget { least, .. })) => least,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("{folder:?}: a budget of 0 was accepted"),
    };
    let all = draw(folder, requests, memory(u64::MAX)).unwrap();
    assert!(!all.plan().streams());
    (least, all.footprint().total())
}

/// Creates a request that captures every hook and generates some tokens.
fn asked(folder: &Path) -> Request {
    let golden = golden(folder);
    let tokens = golden
        .get("input_ids")
        .unwrap_or_else(|| &golden["cat.input_ids"]);
    request(folder, &ids(tokens), &["*"], 5)
}

/// Checks budgets from the minimum to the whole model, each with these chunk sizes and numbers of
/// workers.
fn check_every_budget(folder: &Path, memory: fn(u64) -> MemorySettings, links: &[(u64, usize)]) {
    let ask = || vec![asked(folder)];
    let expect = bits(&run(folder, ask(), How::default())[0]);
    let (least, all) = range_of(folder, &ask(), memory);
    let mut streamed = 0;
    for step in 0..BUDGETS {
        let budget = least + (all - least) * step / (BUDGETS - 1);
        let blueprint = draw(folder, &ask(), memory(budget)).unwrap();
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
            for &(chunk, workers) in links {
                let memory = MemorySettings {
                    chunk: Some(chunk),
                    workers: Some(workers),
                    prefetch,
                    ..memory(budget)
                };
                let how = How {
                    memory,
                    ..How::default()
                };
                let found = run(folder, ask(), how).remove(0);
                assert!(bits(&found) == expect, "{folder:?} with {memory:?}");
            }
        }
    }
    assert_eq!(streamed, BUDGETS - 1, "{folder:?}");
}

/// Checks every budget with weights that stream from files in chunks of these sizes.
fn check_files(folder: &Path, chunks: &[u64]) {
    let links: Vec<_> = chunks
        .iter()
        .flat_map(|&chunk| [1, 2, 3, 4].map(|workers| (chunk, workers)))
        .collect();
    check_every_budget(folder, with_budget, &links);
}

/// Checks every budget with weights that stream from host memory.
fn check_host(folder: &Path) {
    let links = [(16 * KIB, 1), (20 * KIB, 3), (64 * MIB, 2)];
    check_every_budget(folder, from_host, &links);
}

macro_rules! every_budget {
    ($($name:ident),*) => {
        $(#[test]
        fn $name() {
            let folder = family(stringify!($name));
            check_files(&folder, &[16 * KIB, 64 * KIB, 64 * MIB]);
            check_host(&folder);
        })*

        #[test]
        fn every_family_is_tested() {
            assert_eq!([$(stringify!($name)),*], FAMILIES);
        }
    };
}

every_budget!(
    falcon180b, falcon7b, gpt2, gptj, llama2, llama3, mistral, mixtral, qwen2, qwen3
);

#[test]
fn bundled_from_files_in_small_chunks() {
    check_files(&stories(), &[16 * KIB]);
}

#[test]
fn bundled_from_files_in_large_chunks() {
    check_files(&stories(), &[64 * KIB, 64 * MIB]);
}

#[test]
fn bundled_from_host_memory() {
    check_host(&stories());
}

/// Returns a family with a tied head, one with experts, and one whose matrices cannot be cut.
fn some_families() -> Vec<PathBuf> {
    ["llama3", "mixtral", "gpt2"].map(family).to_vec()
}

#[test]
fn bits_do_not_depend_on_plan_overrides() {
    for folder in some_families() {
        let ask = || vec![asked(&folder)];
        let expect = bits(&run(&folder, ask(), How::default())[0]);
        let rings = [None, Some(400_000), Some(u64::MAX / 2)];
        let decided = [Keep::All, Keep::Nothing, Keep::AtMost(300_000)]
            .into_iter()
            .flat_map(|keep| rings.map(|ring| Overrides { ring, keep }));
        for overrides in decided {
            for tier in [Tier::Files, Tier::Host] {
                let keep = overrides.keep;
                let memory = MemorySettings {
                    overrides,
                    tier: Some(tier),
                    chunk: Some(64 * KIB),
                    ..MemorySettings::default()
                };
                let blueprint = draw(&folder, &ask(), memory).unwrap();
                assert_eq!(blueprint.plan().streams(), keep != Keep::All, "{folder:?}");
                let how = How {
                    memory,
                    ..How::default()
                };
                let found = run(&folder, ask(), how).remove(0);
                assert!(bits(&found) == expect, "{folder:?} with {memory:?}");
            }
        }
    }
}

/// Creates three requests without captures that end at different passes, so that a GPU replays
/// graphs. One request reports log-probabilities.
fn without_captures(folder: &Path) -> Vec<Request> {
    let golden = golden(folder);
    let tokens = golden
        .get("input_ids")
        .unwrap_or_else(|| &golden["cat.input_ids"]);
    let tokens = ids(tokens);
    let samplings = [
        Sampling::default(),
        Sampling {
            logprobs: Some(3),
            ..Sampling::default()
        },
        Sampling {
            temperature: 0.9,
            top_p: 0.95,
            seed: 11,
            ..Sampling::default()
        },
    ];
    let ask = |(i, sampling): (usize, Sampling)| Request {
        sampling,
        ..request(folder, &tokens[i..], &[], 6 + 5 * i)
    };
    samplings.into_iter().enumerate().map(ask).collect()
}

#[test]
fn replayed_tokens_do_not_depend_on_the_budget() {
    type TokensAndLogprobs = Vec<(Vec<u32>, Vec<u32>)>;
    let results = |folder: &Path, how: How| -> TokensAndLogprobs {
        let of = |transcript: &Transcript| {
            let logprobs = transcript.logprobs.iter().flatten();
            let bits = logprobs.flat_map(|l| [l.token, l.logprob.to_bits()]);
            (transcript.generated.clone(), bits.collect())
        };
        let transcripts = run(folder, without_captures(folder), how);
        transcripts.iter().map(of).collect()
    };
    for folder in FAMILIES.map(family).into_iter().chain([stories()]) {
        let expect = results(&folder, How::default());
        assert!(expect[1].1.len() > 8, "{folder:?}");
        for memory in [with_budget, from_host] {
            for step in 0..BUDGETS {
                // The driver of a card keeps a little more memory after some loads, so the range moves.
                let (least, all) = range_of(&folder, &without_captures(&folder), memory);
                let budget = least + (all - least) * step / (BUDGETS - 1);
                let how = How {
                    memory: memory(budget),
                    ..How::default()
                };
                assert!(results(&folder, how) == expect, "{folder:?} in {budget}");
            }
        }
    }
}

#[test]
fn chunked_prompts_do_not_depend_on_the_budget() {
    for folder in some_families() {
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
        let expect: Vec<_> = run(&folder, asked.clone(), How::default())
            .iter()
            .map(bits)
            .collect();
        // With few rows most passes skip the head.
        for memory in [with_budget, from_host] {
            let (least, all) = range_of(&folder, &asked, memory);
            for (budget, rows) in [(least, 5), ((least + all) / 2, 6), (least, 100)] {
                let how = How {
                    memory: memory(budget),
                    rows,
                    ..How::default()
                };
                let found = run(&folder, asked.clone(), how);
                for (found, expect) in found.iter().zip(&expect) {
                    assert!(bits(found) == *expect, "{folder:?} in {budget}");
                }
            }
        }
    }
}

#[test]
fn too_small_budgets_report_the_minimum() {
    let folder = stories();
    let ask = [asked(&folder)];
    let (least, all) = range(&folder, &ask);
    // On a GPU the context takes more memory than this model.
    assert!(least * 3 < all || card().is_some(), "{least} of {all}");
    let error = draw(&folder, &ask, with_budget(least - 1)).err().unwrap();
    let is_expected = matches!(
        error,
        EngineError::Plan(PlanError::Budget { budget, least: found, .. })
            if (budget, found) == (least - 1, least)
    );
    assert!(is_expected, "{error}");
    let memory = MemorySettings {
        overrides: Overrides {
            keep: Keep::All,
            ring: None,
        },
        ..with_budget(all - 1)
    };
    let error = draw(&folder, &ask, memory).err().unwrap();
    let is_expected = matches!(error, EngineError::Plan(PlanError::NotAll { .. }));
    assert!(is_expected, "{error}");
    for workers in [0, 65] {
        let memory = MemorySettings {
            workers: Some(workers),
            ..MemorySettings::default()
        };
        let error = draw(&folder, &ask, memory).err().unwrap();
        let is_expected = matches!(
            error,
            EngineError::Weights(WeightsError::WorkerCount { asked, .. }) if asked == workers
        );
        assert!(is_expected, "{error}");
    }
}

#[test]
fn a_pass_streams_the_pieces_that_are_not_resident() {
    let folders = [family("llama2"), family("gpt2"), stories()];
    let cases = [
        (with_budget as fn(u64) -> MemorySettings, false),
        (from_host, false),
        (from_host, true),
    ];
    for (folder, (memory, prefetch)) in folders
        .iter()
        .flat_map(|folder| cases.map(|case| (folder, case)))
    {
        let ask = || {
            let golden = golden(folder);
            let tokens = golden
                .get("input_ids")
                .unwrap_or_else(|| &golden["cat.input_ids"]);
            vec![request(folder, &ids(tokens), &[], 8)]
        };
        let (least, all) = range_of(folder, &ask(), memory);
        let how = How {
            memory: MemorySettings {
                prefetch,
                ..memory((least + all) / 2)
            },
            ..How::default()
        };
        let mut engine = load(open(folder), &ask(), how);
        engine.open(ask().remove(0)).unwrap();
        let streamed = engine.blueprint().plan().ring.streamed_bytes();
        let stays = engine.blueprint().plan().resident_bytes;
        let pieces = engine.blueprint().weights().planned_pieces();
        assert_eq!(
            streamed + stays,
            pieces.iter().map(|p| p.placement.bytes).sum::<u64>()
        );
        while !engine.is_idle() {
            engine.step().unwrap();
            let stats = engine.last_pass().unwrap();
            let dims = &engine.model().program.dims;
            // Besides the pieces a pass reads rows of tables, at most two for each token.
            let rows = (2 * 4 * stats.rows * dims.d_model) as u64;
            assert!(stats.link_bytes >= streamed, "{folder:?}");
            assert!(stats.link_bytes <= streamed + rows, "{folder:?}");
            assert!(stats.link_s > 0.0 && stats.stall_s > 0.0, "{stats:?}");
            assert!(stats.stall_s <= stats.seconds, "{stats:?}");
        }
    }
}

#[test]
fn weights_that_stream_from_host_memory_must_fit_there() {
    let folder = family("llama2");
    let ask = [asked(&folder)];
    let (least, all) = range_of(&folder, &ask, from_host);
    let needed = draw(&folder, &ask, from_host(least)).unwrap().host_bytes();
    let model_bytes = open(&folder).program.weight_bytes();
    assert!(needed > model_bytes / 2, "{needed} of {model_bytes}");
    let within = |budget: u64, host_budget: u64| {
        let memory = MemorySettings {
            host_budget,
            ..from_host(budget)
        };
        draw(&folder, &ask, memory).map(|_| ())
    };
    within(least, needed).unwrap();
    let error = within(least, needed - 1).unwrap_err();
    let is_expected = matches!(error, EngineError::HostBudget { needed: n, .. } if n == needed);
    assert!(is_expected, "{error}");
    // With more memory fewer bytes stream, and resident bytes need no host copy.
    let half = draw(&folder, &ask, from_host((least + all) / 2)).unwrap();
    assert!(half.plan().ring.streamed_bytes() < model_bytes);
    let whole = draw(&folder, &ask, from_host(all)).unwrap();
    assert_eq!(whole.weights().load_bytes(), whole.footprint().resident);
    if card().is_none() {
        let files = draw(&folder, &ask, with_budget(all)).unwrap();
        assert_eq!(files.host_bytes(), 0);
    }
}

#[test]
fn the_timeline_of_the_host_tier_is_ordered() {
    let folder = family("llama2");
    let ask = [asked(&folder)];
    let (least, _) = range_of(&folder, &ask, from_host);
    let how = How {
        memory: from_host(least),
        ..How::default()
    };
    let mut engine = load(open(&folder), &ask, how);
    engine.record();
    let [ask] = ask;
    engine.open(ask).unwrap();
    engine.step().unwrap();
    let events = engine.timeline().events;
    let streamed: u64 = events.iter().map(|event| event.bytes).sum();
    assert_eq!(streamed, engine.blueprint().plan().ring.streamed_bytes());
    for lane in [
        TimelineLane::Compute,
        TimelineLane::Wait,
        TimelineLane::Link(0),
    ] {
        let lane: Vec<_> = events.iter().filter(|event| event.lane == lane).collect();
        assert!(!lane.is_empty());
        for pair in lane.windows(2) {
            let end = pair[0].start_s + pair[0].seconds;
            assert!(end <= pair[1].start_s + 1e-6, "{pair:?}");
        }
    }
}

/// Loads the model with experts in memory for `slots` experts, and opens a session of one token.
fn mixture(slots: u64, memory: fn(u64) -> MemorySettings) -> (djinn_engine::Engine, u64) {
    let folder = family("mixtral");
    let tokens = ids(&golden(&folder)["input_ids"]);
    let ask = [request(&folder, &tokens[..1], &[], 8)];
    let (least, _) = range_of(&folder, &ask, memory);
    let pool = draw(&folder, &ask, memory(least)).unwrap().plan().pool;
    let nothing_streams = (least..)
        .step_by(4096)
        .find(|&budget| {
            let plan = draw(&folder, &ask, memory(budget)).unwrap();
            plan.plan().ring.slots.is_empty()
        })
        .unwrap();
    let budget = nothing_streams + (slots - 1) * pool.bytes;
    let how = How {
        memory: memory(budget),
        ..How::default()
    };
    let mut engine = load(open(&folder), &ask, how);
    assert_eq!(engine.blueprint().plan().pool_slots as u64, slots);
    let [ask] = ask;
    engine.open(ask).unwrap();
    (engine, pool.bytes)
}

#[test]
fn a_pass_loads_only_the_selected_experts() {
    for memory in [with_budget, from_host] {
        let (mut engine, expert) = mixture(2, memory);
        let dims = engine.model().program.dims;
        while !engine.is_idle() {
            engine.step().unwrap();
            let stats = engine.last_pass().unwrap();
            // One token uses two experts of each block and one row of the embedding.
            let most = 2 * dims.blocks as u64 * expert + 4 * dims.d_model as u64;
            assert!(stats.link_bytes <= most, "{stats:?}");
        }
    }
}

#[test]
fn experts_in_use_stay_in_memory() {
    // All experts of a token fit in memory: the same token again loads nothing.
    let folder = family("mixtral");
    let token = ids(&golden(&folder)["input_ids"])[0];
    let blocks = open(&folder).program.dims.blocks as u64;
    for memory in [with_budget, from_host] {
        let (mut engine, expert) = mixture(2 * blocks, memory);
        let mut loaded = Vec::new();
        for _ in 0..4 {
            while !engine.is_idle() {
                engine.step().unwrap();
            }
            let again = request(&folder, &[token], &[], 1);
            for session in engine.list(None) {
                engine.close(session.id);
            }
            engine.open(again).unwrap();
            engine.step().unwrap();
            loaded.push(engine.last_pass().unwrap().link_bytes);
        }
        // Experts that the first session used often may stay for the first passes.
        assert!(loaded[3] < expert, "{loaded:?} of {expert}");
    }
}

/// On a GPU this model takes seconds to load and mostly streams, so bytes loaded first must stay
/// intact until the end.
#[test]
fn a_synthetic_model_gives_the_same_bits_in_any_memory() {
    let (shape, budget) = match card() {
        Some(_) => ("shape:llama-2-13b?dtype=f16", 16_000 * MIB),
        None => ("shape:gpt2?layers=2&dtype=f16", 80 * MIB),
    };
    let run = |budget: u64| {
        let model = Model::open(shape).unwrap();
        let tokens: Vec<u32> = (0..40).map(|i| i * 37 % 5000).collect();
        let ask = Request {
            tokens,
            max_tokens: 4,
            probe: Probe::new(&model.program, &["logits"], Positions::All, &[]).unwrap(),
            ..Request::default()
        };
        let how = How {
            memory: with_budget(budget),
            ..How::default()
        };
        let mut engine = load(model, std::slice::from_ref(&ask), how);
        let streams = engine.blueprint().plan().streams();
        let id = engine.open(ask).unwrap();
        while !engine.is_idle() {
            engine.step().unwrap();
        }
        let transcript = engine.close(id).unwrap();
        let logits = transcript.captured.tensors().remove("logits").unwrap();
        let bits: Vec<u32> = logits.data.iter().map(|x| x.to_bits()).collect();
        (streams, transcript.generated, bits)
    };
    let (little, all) = (run(budget), run(u64::MAX));
    assert!(
        little.0 && !all.0,
        "the small budget streams, and the large one does not"
    );
    assert!(little.1 == all.1 && little.2 == all.2);
}
