//! Sessions larger than the KV memory of the device: they give the bits of a session with all pages
//! in memory.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::{collections::BTreeMap, path::Path};

use common::{
    FAMILIES, How, bits, family, golden, ids, open,
    paging::{Random, SessionResult, alone, random_request, result_of},
    request, request_edited, run,
    stops::{run_with_pauses, stopping},
    stories, with_kv,
};
use djinn_device::{Backend, testing::LateBackend};
use djinn_engine::{
    Blueprint, Engine, EngineError, Finish, KvMemory, Request, Sampling, SessionId, SessionStatus,
    Settings, Tier,
};
use djinn_model::Model;
use djinn_types::KvDtype;
use djinn_weights::{MemorySettings, PlanError};

/// Number of tokens of a page. Short sessions then have many pages.
const PAGE: usize = 4;
/// Number of rows of a pass that writes few pages.
const ROWS: usize = 4;

/// Returns settings in which the largest of these sessions has `factor` times as many pages as the
/// device.
fn small_device(folder: &Path, requests: &[Request], rows: usize, factor: usize) -> Settings {
    let all = Settings::for_requests(&open(folder), requests, rows).unwrap();
    let most = all.context.div_ceil(PAGE);
    let written = 2 * (all.rows.div_ceil(PAGE) + 1);
    let pages = (most / factor).max(written);
    assert!(pages < most, "the session is larger than the device");
    Settings {
        page_tokens: PAGE,
        pages,
        window_pages: most,
        host_pages: requests.len() * most,
        ..all
    }
}

fn load_on(
    folder: &Path,
    backend: &dyn Backend,
    settings: Settings,
    memory: MemorySettings,
) -> Engine {
    let model = open(folder);
    let blueprint = Blueprint::draw(&model, backend, settings, memory).unwrap();
    Engine::load(model, backend, blueprint, &mut |_| {}).unwrap()
}

fn load(folder: &Path, settings: Settings) -> Engine {
    let backend = How::default().backend();
    load_on(folder, &*backend, settings, MemorySettings::default())
}

/// Returns a prompt of `length` tokens of the golden file.
fn prompt(folder: &Path, length: usize) -> Vec<u32> {
    let tokens = ids(&golden(folder)["input_ids"]);
    (0..length)
        .map(|i| tokens[(i * i + i / 7) % tokens.len()])
        .collect()
}

/// Creates a request of 60 tokens that generates 20 more, with captures at every hook.
fn long_request(folder: &Path) -> Request {
    request(folder, &prompt(folder, 60), &["*"], 20)
}

fn run_out(engine: &mut Engine) {
    while !engine.is_idle() {
        for output in engine.step().unwrap() {
            assert_eq!(output.failure, None);
        }
        engine.check_integrity();
    }
}

/// Checks that pages streamed, and that none was on the device without a frame.
fn assert_streamed(engine: &mut Engine) {
    let paged = engine.paging_stats().unwrap();
    assert!(paged.streamed.bytes > 0, "{paged:?}");
    let frames = engine.footprint().kv - engine.footprint().kv_window;
    assert!(paged.device_peak <= frames, "{paged:?}");
    engine.check_integrity();
}

/// Runs a session of every family in a device with a fraction of its pages.
fn every_family_gives_the_same_bits(kv_dtype: KvDtype) {
    for folder in FAMILIES.map(family) {
        let request = long_request(&folder);
        let how = with_kv(kv_dtype);
        let expect = bits(&run(&folder, vec![request.clone()], how)[0]);
        for (rows, factor) in [(1, 3), (ROWS, 3), (9, 2), (2, 10)] {
            let requests = std::slice::from_ref(&request);
            let settings = small_device(&folder, requests, rows, factor);
            let mut engine = load_on(&folder, &*how.backend(), settings, how.memory);
            let id = engine.open(request.clone()).unwrap();
            run_out(&mut engine);
            assert_streamed(&mut engine);
            let found = bits(&engine.close(id).unwrap());
            assert!(found == expect, "{folder:?} {rows} rows, factor {factor}");
        }
    }
}

#[test]
fn every_family_gives_the_same_bits_with_kv_in_f16() {
    every_family_gives_the_same_bits(KvDtype::F16);
}

#[test]
fn every_family_gives_the_same_bits_with_kv_in_bf16() {
    every_family_gives_the_same_bits(KvDtype::Bf16);
}

#[test]
fn every_family_gives_the_same_bits_with_kv_in_f32() {
    every_family_gives_the_same_bits(KvDtype::F32);
}

#[test]
fn copies_that_arrive_late_change_no_bit() {
    for name in ["gpt2", "llama3", "mixtral"] {
        let folder = family(name);
        let request = long_request(&folder);
        let expect = bits(&run(&folder, vec![request.clone()], How::default())[0]);
        for seed in 0..3 {
            let settings = small_device(&folder, std::slice::from_ref(&request), ROWS, 3);
            let backend = LateBackend::new(seed, 5);
            let mut engine = load_on(&folder, &backend, settings, MemorySettings::default());
            let id = engine.open(request.clone()).unwrap();
            run_out(&mut engine);
            assert_streamed(&mut engine);
            assert!(bits(&engine.close(id).unwrap()) == expect, "{name} {seed}");
        }
    }
}

#[test]
fn weights_and_pages_stream_together() {
    for (name, tier) in [
        ("llama2", Tier::Files),
        ("llama2", Tier::Host),
        ("mixtral", Tier::Host),
    ] {
        let folder = family(name);
        let request = long_request(&folder);
        let expect = bits(&run(&folder, vec![request.clone()], How::default())[0]);
        let settings = small_device(&folder, std::slice::from_ref(&request), ROWS, 3);
        let (model, backend) = (open(&folder), How::default().backend());
        let all = MemorySettings::default();
        let whole = Blueprint::draw(&model, &*backend, settings.clone(), all).unwrap();
        let footprint = whole.footprint();
        let memory = MemorySettings {
            budget: footprint.total() - footprint.weights() / 2,
            tier: Some(tier),
            ..all
        };
        let mut engine = load_on(&folder, &*backend, settings, memory);
        assert!(engine.blueprint().plan().streams());
        let id = engine.open(request).unwrap();
        run_out(&mut engine);
        assert_streamed(&mut engine);
        assert!(
            bits(&engine.close(id).unwrap()) == expect,
            "{name} {tier:?}"
        );
    }
}

#[test]
fn pauses_and_edits_change_no_bit() {
    for name in ["gpt2", "llama2", "mistral", "mixtral"] {
        let folder = family(name);
        let edits = [
            "blocks.1.attn.hook_pattern[1]:zero",
            "blocks.2.hook_resid_post:scale=0.9",
        ];
        let captures = ["*.hook_pattern", "logits"];
        let request = request_edited(&folder, &prompt(&folder, 40), &captures, 6, &edits);
        let expect = bits(&run(&folder, vec![request.clone()], How::default())[0]);
        let sites = [
            "hook_embed",
            "blocks.1.hook_resid_pre",
            "blocks.1.attn.hook_z",
            "blocks.2.hook_resid_post",
            "logits",
        ];
        for site in sites {
            let request = stopping(&folder, &request, &[site]);
            let settings = small_device(&folder, std::slice::from_ref(&request), ROWS, 3);
            let mut engine = load(&folder, settings);
            let (found, stops) = run_with_pauses(&mut engine, request, &[]);
            assert!(stops.len() > 10, "{name} {site}");
            assert_streamed(&mut engine);
            assert!(found == expect, "{name}: paused at {site}");
        }
    }
}

/// Runs sessions of very different lengths that wait, resume and fork at random.
fn run_together(engine: &mut Engine, requests: &[Request], expect: &[SessionResult]) {
    let mut random = Random(11);
    let mut numbers: BTreeMap<SessionId, usize> = BTreeMap::new();
    let (mut waiting, mut next, mut done, mut forks) = (Vec::new(), 0, 0, 0);
    while done < requests.len() + forks {
        for _ in 0..random.below(3).min(requests.len() - next) {
            numbers.insert(engine.open(requests[next].clone()).unwrap(), next);
            next += 1;
        }
        for output in engine.step().unwrap() {
            let number = numbers[&output.session];
            if output.finish.is_some() {
                assert_eq!(output.failure, None, "session {number}");
                let found = result_of(&engine.close(output.session).unwrap());
                assert!(found == expect[number], "session {number}");
                done += 1;
            } else if random.below(8) == 0 {
                let mut session = engine.any_session(output.session).unwrap();
                session.wait(None).unwrap();
                waiting.push(output.session);
            } else if random.below(30) == 0 && forks < 10 {
                let mut session = engine.any_session(output.session).unwrap();
                numbers.insert(session.fork(None).unwrap(), number);
                forks += 1;
            }
            engine.check_integrity();
        }
        if !waiting.is_empty() && (engine.is_idle() || random.below(3) == 0) {
            let id = waiting.swap_remove(random.below(waiting.len()));
            engine.any_session(id).unwrap().resume().unwrap();
        }
    }
    assert!(forks > 2, "{forks}");
}

#[test]
fn large_and_small_sessions_share_the_device() {
    let folder = stories();
    let tokens = ids(&golden(&folder)["cat.input_ids"]);
    let mut random = Random(5);
    let requests: Vec<Request> = (0..24)
        .map(|i| match i % 4 {
            0 => {
                let length = 90 + random.below(60);
                let long: Vec<u32> = (0..length)
                    .map(|_| tokens[random.below(tokens.len())])
                    .collect();
                Request {
                    sampling: random_request(&folder, &tokens, &mut random).sampling,
                    ..request(&folder, &long, &[], 12)
                }
            }
            _ => random_request(&folder, &tokens, &mut random),
        })
        .collect();
    let expect: Vec<SessionResult> = alone(&folder, &requests).iter().map(result_of).collect();
    let settings = Settings {
        sessions: 5,
        logit_rows: 5,
        open: 60,
        ..small_device(&folder, &requests, 24, 3)
    };
    let mut engine = load(&folder, settings.clone());
    run_together(&mut engine, &requests, &expect);
    assert_streamed(&mut engine);
    drop(engine);

    // Host memory for two of the largest sessions, and a disk for the others.
    let disk = tempfile::tempdir().unwrap();
    let most = settings.window_pages;
    let settings = Settings {
        host_pages: 2 * most,
        disk_pages: settings.host_pages,
        ..settings
    };
    let (model, backend) = (open(&folder), How::default().backend());
    let memory = MemorySettings::default();
    let mut blueprint = Blueprint::draw(&model, &*backend, settings, memory).unwrap();
    blueprint.spill_to(disk.path());
    let mut engine = Engine::load(model, &*backend, blueprint, &mut |_| {}).unwrap();
    run_together(&mut engine, &requests, &expect);
    assert_streamed(&mut engine);
    let paged = engine.paging_stats().unwrap();
    assert!(
        paged.spilled.bytes > 0 && paged.fetched.bytes > 0,
        "{paged:?}"
    );
}

#[test]
fn a_small_session_keeps_its_pages_beside_a_large_one() {
    let folder = family("llama2");
    let requests = [
        request(&folder, &prompt(&folder, 80), &[], 40),
        request(&folder, &prompt(&folder, 8), &[], 40),
    ];
    let expect: Vec<SessionResult> = alone(&folder, &requests).iter().map(result_of).collect();
    let settings = small_device(&folder, &requests, 8, 2);
    let frames = settings.pages;
    let mut engine = load(&folder, settings);
    let [large, small] = requests.map(|request| engine.open(request).unwrap());
    let (mut together, mut full) = (0, 0);
    while !engine.is_idle() {
        let outputs = engine.step().unwrap();
        let ran = |id| outputs.iter().any(|o| o.session == id && o.token.is_some());
        let away = |id| engine.view(id).unwrap().info().away;
        if ran(large) && ran(small) && engine.statuses().all(|s| s == SessionStatus::Ready) {
            assert_eq!(away(small), 0, "the small session stays on the device");
            together += usize::from(away(large) > 0);
            full += usize::from(engine.kv_usage().device.used == frames);
        }
        engine.check_integrity();
    }
    assert!(together > 20, "both run in one pass: {together}");
    assert!(
        full > 20,
        "free frames hold pages of the large session: {full}"
    );
    for (id, expect) in [large, small].into_iter().zip(&expect) {
        assert!(result_of(&engine.close(id).unwrap()) == *expect);
    }
}

#[test]
fn a_kept_session_continues_after_others_took_its_frames() {
    let folder = family("qwen3");
    let kept = Request {
        keep: true,
        ..request(&folder, &prompt(&folder, 70), &["logits"], 5)
    };
    let others: Vec<Request> = (0..3)
        .map(|i| request(&folder, &prompt(&folder, 20 + i), &[], 8))
        .collect();
    let turns = |engine: &mut Engine, others: &[Request]| {
        let id = engine.open(kept.clone()).unwrap();
        run_out(engine);
        for turn in 0..3u32 {
            for request in others {
                engine.open(request.clone()).unwrap();
            }
            run_out(engine);
            let mut session = engine.any_session(id).unwrap();
            session.append(&[5 + turn, 9, 4], 6, &[]).unwrap();
            run_out(engine);
        }
        bits(&engine.close(id).unwrap())
    };
    let longest = Settings::for_requests(&open(&folder), std::slice::from_ref(&kept), 8).unwrap();
    let context = Settings {
        context: 128,
        open: 30,
        sessions: 4,
        logit_rows: 8,
        page_tokens: PAGE,
        pages: 160,
        ..longest
    };
    let expect = turns(&mut load(&folder, context.clone()), &[]);
    let settings = Settings {
        pages: 10,
        window_pages: 32,
        host_pages: 160,
        ..context
    };
    let mut engine = load(&folder, settings);
    let found = turns(&mut engine, &others);
    assert_streamed(&mut engine);
    assert!(found == expect);
}

#[test]
fn a_failed_copy_to_the_window_loses_no_token() {
    let folder = family("llama3");
    let request = Request {
        keep: true,
        ..request(&folder, &prompt(&folder, 60), &[], 20)
    };
    let expect = result_of(&alone(&folder, std::slice::from_ref(&request))[0]);
    for copies in [0, 1, 3, 5] {
        let settings = Settings {
            context: 80,
            ..small_device(&folder, std::slice::from_ref(&request), ROWS, 3)
        };
        let backend = LateBackend::new(copies, 3);
        let mut engine = load_on(&folder, &backend, settings, MemorySettings::default());
        let id = engine.open(request.clone()).unwrap();
        while engine.view(id).unwrap().generated() < 5 {
            engine.step().unwrap();
        }
        backend.fail_copy_after(copies as u32);
        let failed = loop {
            if let Err(error) = engine.step() {
                break error;
            }
        };
        assert!(matches!(failed, EngineError::Device(_)), "{failed}");
        engine.check_integrity();
        let generated = engine.view(id).unwrap().generated();
        assert!(generated >= 5, "{generated}");
        assert_eq!(engine.view(id).unwrap().status(), SessionStatus::Waiting);
        engine.any_session(id).unwrap().resume().unwrap();
        while !engine.is_idle() {
            engine.step().unwrap();
            engine.check_integrity();
        }
        let found = result_of(&engine.close(id).unwrap());
        assert_eq!((&found.0, &found.1), (&expect.0, &expect.1), "{copies}");
    }
}

#[test]
fn a_session_that_fits_nowhere_is_refused() {
    let folder = family("llama2");
    let request = request(&folder, &prompt(&folder, 60), &[], 20);
    let fits = small_device(&folder, std::slice::from_ref(&request), ROWS, 3);
    let most = fits.window_pages;
    for (window_pages, host_pages, runs) in [
        (most, most, true),
        // Host memory holds what the device does not, and what moves at once.
        (
            most,
            most - fits.pages + 2 * (ROWS.div_ceil(PAGE) + 1),
            true,
        ),
        (most, most - fits.pages - 1, false),
        (most - fits.pages - 1, most, false),
    ] {
        let settings = Settings {
            window_pages,
            host_pages,
            ..fits.clone()
        };
        let mut engine = load(&folder, settings);
        let opened = engine.open(request.clone());
        if runs {
            let id = opened.unwrap();
            run_out(&mut engine);
            let finish = engine.close(id).unwrap().finish;
            assert_eq!(finish, Some(Finish::Length));
        } else {
            let refused = matches!(opened, Err(EngineError::SessionTooLarge { .. }));
            assert!(refused, "{window_pages} {host_pages}");
        }
    }
}

/// Settings of one session of 2,048 tokens, and the bytes of a page.
fn one_long_session(model: &Model) -> (Settings, u64) {
    let settings = Settings::for_sessions(&model.program, 1, 2048, 16).unwrap();
    let backend = How::default().backend();
    let whole = Blueprint::draw(
        model,
        &*backend,
        settings.clone(),
        MemorySettings::default(),
    );
    let bytes = whole.unwrap().page_bytes();
    (settings, bytes)
}

#[test]
fn kv_memory_below_the_longest_session_makes_it_stream() {
    let folder = family("falcon7b");
    let (settings, page) = one_long_session(&open(&folder));
    let sampling = Sampling {
        logprobs: Some(3),
        ..Sampling::default()
    };
    let request = Request {
        sampling,
        ..request(&folder, &prompt(&folder, 500), &[], 8)
    };
    let expect = result_of(&alone(&folder, std::slice::from_ref(&request))[0]);
    let (model, backend) = (open(&folder), How::default().backend());
    let kv = KvMemory {
        device: Some(80 * page),
        spill: None,
    };
    let memory = MemorySettings::default();
    let blueprint = Blueprint::for_sessions(&model, &*backend, settings, memory, &kv).unwrap();
    let (footprint, settings) = (blueprint.footprint(), blueprint.settings());
    assert_eq!(settings.window_pages, 128);
    assert!(
        footprint.kv <= 80 * page && footprint.kv > 79 * page,
        "{footprint:?}"
    );
    let frames = (footprint.kv - footprint.kv_window) / page;
    assert_eq!(settings.pages as u64, frames);
    let away = (128 - frames) * page;
    assert_eq!(blueprint.streamed_kv_bytes(), away);
    assert_eq!(blueprint.work(&model).paged_bytes, away as f64);
    let mut engine = Engine::load(model, &*backend, blueprint, &mut |_| {}).unwrap();
    let id = engine.open(request).unwrap();
    run_out(&mut engine);
    assert_streamed(&mut engine);
    assert!(result_of(&engine.close(id).unwrap()) == expect);
}

#[test]
fn a_session_that_does_not_fit_beside_the_weights_streams() {
    let folder = family("falcon7b");
    let model = open(&folder);
    let (settings, page) = one_long_session(&model);
    let backend = How::default().backend();
    let kv = KvMemory::default();
    let lay_out = |budget: u64, host_budget: u64| {
        let memory = MemorySettings {
            budget,
            host_budget,
            ..MemorySettings::default()
        };
        Blueprint::for_sessions(&model, &*backend, settings.clone(), memory, &kv)
    };
    // The least memory in which the whole session lies beside the ring.
    let nothing = MemorySettings {
        budget: 0,
        ..MemorySettings::default()
    };
    let whole = Blueprint::draw(&model, &*backend, settings.clone(), nothing);
    let Err(EngineError::Plan(PlanError::Budget { least, .. })) = whole else {
        panic!("a budget of nothing is too small");
    };
    let plenty = u64::MAX;
    let whole = lay_out(least, plenty).unwrap();
    let streamed = |blueprint: &Blueprint| blueprint.streamed_kv_bytes();
    assert_eq!((whole.settings().window_pages, streamed(&whole)), (0, 0));
    let blueprint = lay_out(least - page, plenty).unwrap();
    assert_eq!(blueprint.settings().window_pages, 128);
    assert!(blueprint.footprint().total() < least);
    assert!(streamed(&blueprint) > 0);
    let other = blueprint.host_bytes() - blueprint.host_page_bytes();
    let refused = lay_out(least - page, (other + 20 * page) * 33 / 32);
    let needs_host = matches!(refused, Err(EngineError::WindowNeedsHost { needed, there })
        if needed > there && there <= 21 * page);
    assert!(needs_host, "{:?}", refused.err());
}
