//! Swapping a model out and in: the device's memory is given back between two passes, no session
//! ends, and no bit changes.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::Ordering;

use common::elastic::{TIERS, draw_elastic, requests, settings};
use common::faulty_disk::{GONE, HEALTHY, on_faulty_disk};
use common::paging::{Random, SessionResult, alone, alone_in, result_of};
use common::stops::stopping;
use common::{FAMILIES, How, family, open, with_kv};
use djinn_device::{Backend, testing::LateBackend};
use djinn_engine::{
    Blueprint, Engine, EngineError, LoadProgress, Request, RunUntil, SessionId, Settings, SwapRoom,
};
use djinn_types::{KvDtype, Tier};
use djinn_weights::{Keep, MemorySettings, Overrides};

/// How a model reaches the device.
#[derive(Clone, Copy, Debug)]
struct Route {
    tier: Tier,
    host_copy: bool,
    keep: Keep,
}

/// Every way for weights to return: from files or host memory, all of them resident or some.
fn routes(weight_bytes: u64) -> Vec<Route> {
    let keeps = [Keep::All, Keep::AtMost(weight_bytes / 2)];
    let ways = [
        (Tier::Files, false),
        (Tier::Host, false),
        (Tier::Host, true),
    ];
    let routes = ways.into_iter().flat_map(|(tier, host_copy)| {
        keeps.map(|keep| Route {
            tier,
            host_copy,
            keep,
        })
    });
    routes.collect()
}

fn memory(route: Route) -> MemorySettings {
    MemorySettings {
        tier: Some(route.tier),
        host_copy: route.host_copy,
        chunk: Some(16 << 10),
        overrides: Overrides {
            keep: route.keep,
            ..Overrides::default()
        },
        ..MemorySettings::default()
    }
}

/// Settings with room in host memory for the pages of `host_sessions` sessions.
fn roomy(folder: &Path, requests: &[Request], host_sessions: usize) -> Settings {
    let settings = settings(&open(folder), requests);
    let pages = settings.context.div_ceil(settings.page_tokens);
    Settings {
        host_pages: host_sessions * pages,
        ..settings
    }
}

fn load(folder: &Path, backend: &dyn Backend, settings: Settings, route: Route) -> Engine {
    load_in(folder, backend, settings, memory(route))
}

fn load_in(
    folder: &Path,
    backend: &dyn Backend,
    settings: Settings,
    memory: MemorySettings,
) -> Engine {
    let model = open(folder);
    let blueprint = Blueprint::draw(&model, backend, settings, memory).unwrap();
    Engine::load(model, backend, blueprint, &mut |_| {}).unwrap()
}

/// Loads an engine on the backend of the tests, whose weights take the first way to the device.
fn load_first(folder: &Path, settings: Settings) -> Engine {
    let backend = How::default().backend();
    let route = routes(open(folder).program.weight_bytes())[0];
    load(folder, &*backend, settings, route)
}

/// First requests of [`requests`].
fn first_requests(folder: &Path, tokens: usize, output: usize, count: usize) -> Vec<Request> {
    let mut asked = requests(folder, tokens, output);
    asked.truncate(count);
    asked
}

fn open_all(engine: &mut Engine, asked: &[Request]) -> Vec<SessionId> {
    let open = |ask: &Request| engine.open(ask.clone()).unwrap();
    asked.iter().map(open).collect()
}

fn run_all(engine: &mut Engine) {
    while !engine.is_idle() {
        engine.step().unwrap();
        engine.check_integrity();
    }
}

fn expected(folder: &Path, requests: &[Request]) -> Vec<SessionResult> {
    alone(folder, requests).iter().map(result_of).collect()
}

fn close_all(engine: &mut Engine, ids: &[SessionId]) -> Vec<SessionResult> {
    let close = |&id| result_of(&engine.close(id).unwrap());
    ids.iter().map(close).collect()
}

/// Lets a load continue.
fn go_on(_: LoadProgress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// Swaps the model out and in.
fn swap(engine: &mut Engine) {
    engine.swap_out().unwrap();
    assert!(engine.is_swapped_out() && engine.is_idle());
    assert_eq!(engine.kv_usage().device.total, 0);
    engine.check_integrity();
    assert!(engine.step().unwrap().is_empty(), "no pass runs");
    engine.swap_in(&mut go_on).unwrap();
    assert!(!engine.is_swapped_out());
    engine.check_integrity();
}

/// Runs all requests together, and swaps the model out and in before some of the passes.
fn run_swapping(engine: &mut Engine, requests: &[Request], seed: u64) -> Vec<SessionResult> {
    let mut random = Random(seed);
    let ids = open_all(engine, requests);
    let mut swaps = 0;
    while engine.has_work() {
        if random.below(4) == 0 {
            swap(engine);
            swaps += 1;
        }
        for output in engine.step().unwrap() {
            assert_eq!(output.failure, None);
        }
        engine.check_integrity();
    }
    assert!(swaps > 1, "{swaps} swaps");
    close_all(engine, &ids)
}

/// Swaps every family out and in, in every way for weights to return.
fn swapping_changes_no_bit(kv_dtype: KvDtype) {
    for name in FAMILIES {
        let folder = family(name);
        let asked = first_requests(&folder, 40, 10, 6);
        let expect = alone_in(&folder, &asked, with_kv(kv_dtype).memory);
        let expect: Vec<SessionResult> = expect.iter().map(result_of).collect();
        for route in routes(open(&folder).program.weight_bytes()) {
            let backend = How::default().backend();
            let settings = roomy(&folder, &asked, asked.len());
            let memory = MemorySettings {
                kv_dtype,
                ..memory(route)
            };
            let mut engine = load_in(&folder, &*backend, settings, memory);
            let found = run_swapping(&mut engine, &asked, 1);
            assert!(found == expect, "{name}, {route:?}");
        }
    }
}

#[test]
fn swapping_changes_no_bit_with_kv_in_f16() {
    swapping_changes_no_bit(KvDtype::F16);
}

#[test]
fn swapping_changes_no_bit_with_kv_in_bf16() {
    swapping_changes_no_bit(KvDtype::Bf16);
}

#[test]
fn swapping_changes_no_bit_with_kv_in_f32() {
    swapping_changes_no_bit(KvDtype::F32);
}

#[test]
fn late_copies_and_events_change_no_bit() {
    let folder = family("llama3");
    let asked = first_requests(&folder, 40, 10, 6);
    let expect = expected(&folder, &asked);
    for seed in 0..4 {
        for route in routes(open(&folder).program.weight_bytes()) {
            let settings = roomy(&folder, &asked, asked.len());
            let mut engine = load(&folder, &LateBackend::new(seed, 9), settings, route);
            let found = run_swapping(&mut engine, &asked, seed);
            assert!(found == expect, "seed {seed}, {route:?}");
        }
    }
}

#[test]
fn elastic_weights_return_at_their_level() {
    let folder = family("llama2");
    let asked = first_requests(&folder, 40, 20, 3);
    let expect = expected(&folder, &asked);
    for tier in TIERS {
        let (model, backend) = (open(&folder), How::default().backend());
        let settings = Settings {
            host_pages: 64,
            ..settings(&model, &requests(&folder, 40, 20))
        };
        let resident = common::elastic::Resident::All;
        let blueprint = draw_elastic(&model, &*backend, &settings, tier, resident);
        let mut engine = common::elastic::load(model, &*backend, blueprint);
        let most = engine.memory_split().most;
        let ids = open_all(&mut engine, &asked);
        for level in [most, most / 2, 0] {
            engine.set_level(level).unwrap();
            let before = engine.memory_split();
            engine.swap_out().unwrap();
            engine.maintain(std::time::Instant::now());
            engine.swap_in(&mut go_on).unwrap();
            assert_eq!(engine.memory_split(), before);
            engine.step().unwrap();
            engine.check_integrity();
        }
        run_all(&mut engine);
        assert!(close_all(&mut engine, &ids) == expect, "{tier:?}");
    }
}

#[test]
fn waiting_and_paused_sessions_survive() {
    let folder = family("qwen3");
    let plain: Vec<Request> = requests(&folder, 30, 8).into_iter().take(3).collect();
    let expect = expected(&folder, &plain);
    let hooks = [
        "blocks.0.hook_resid_mid,step=1",
        "blocks.1.attn.hook_z,step=3",
    ];
    let stop = |ask: &Request| stopping(&folder, ask, &hooks);
    let asked: Vec<Request> = plain.iter().map(stop).collect();
    for route in routes(open(&folder).program.weight_bytes()) {
        let backend = How::default().backend();
        let settings = roomy(&folder, &asked, asked.len());
        let mut engine = load(&folder, &*backend, settings, route);
        let ids = open_all(&mut engine, &asked);
        loop {
            let paused = common::stops::run_until_idle(&mut engine);
            swap(&mut engine);
            if paused.is_empty() {
                break;
            }
            engine.swap_out().unwrap();
            for (id, _) in paused {
                let mut session = engine.any_session(id).unwrap();
                session.resume_with(&[], RunUntil::Breakpoint).unwrap();
            }
            assert!(engine.has_work());
            engine.swap_in(&mut go_on).unwrap();
        }
        assert!(close_all(&mut engine, &ids) == expect, "{route:?}");
    }
}

/// Runs two turns of kept sessions, with a swap between them if `host_sessions` says how much room
/// host memory has for it.
fn two_turns(folder: &Path, asked: &[Request], host_sessions: Option<usize>) -> Vec<SessionResult> {
    let settings = roomy(folder, asked, host_sessions.unwrap_or(0));
    let mut engine = load_first(folder, settings);
    let ids = open_all(&mut engine, asked);
    run_all(&mut engine);
    if host_sessions.is_some() {
        swap(&mut engine);
    }
    for &id in &ids {
        let mut session = engine.any_session(id).unwrap();
        session.append(&asked[0].tokens[..9], 5, &[]).unwrap();
    }
    run_all(&mut engine);
    close_all(&mut engine, &ids)
}

#[test]
fn sessions_between_turns_compute_again_what_host_memory_has_no_room_for() {
    let folder = family("llama2");
    let kept = |ask: Request| Request { keep: true, ..ask };
    let asked = requests(&folder, 60, 6).into_iter().take(4).map(kept);
    let asked: Vec<Request> = asked.collect();
    let expect = two_turns(&folder, &asked, None);
    for host_sessions in 0..4 {
        let found = two_turns(&folder, &asked, Some(host_sessions));
        assert!(found == expect, "room for {host_sessions} sessions");
    }
}

#[test]
fn a_session_that_runs_is_not_robbed_of_its_pages() {
    let folder = family("llama2");
    let asked = first_requests(&folder, 60, 6, 2);
    let expect = expected(&folder, &asked);
    let mut engine = load_first(&folder, roomy(&folder, &asked, 1));
    let ids = open_all(&mut engine, &asked);
    while engine.kv_usage().device.used < engine.blueprint().settings().host_pages + 1 {
        engine.step().unwrap();
    }
    let refused = engine.swap_out().unwrap_err();
    assert!(
        matches!(refused, EngineError::NoRoomToSwap { needed, there } if needed > there),
        "{refused}"
    );
    assert!(!engine.is_swapped_out());
    engine.check_integrity();
    run_all(&mut engine);
    assert!(close_all(&mut engine, &ids) == expect);
}

/// Opens sessions that need more host memory than there is, and runs them until they do.
fn open_crowd(engine: &mut Engine, asked: &[Request]) -> Vec<SessionId> {
    let ids = open_all(engine, asked);
    while engine.swap_room() == SwapRoom::Now {
        assert!(!engine.is_idle(), "the sessions need too little");
        engine.step().unwrap();
    }
    ids
}

#[test]
fn kept_sessions_between_turns_leave_host_memory_to_a_session_that_runs() {
    let folder = family("llama2");
    let asked = first_requests(&folder, 60, 6, 2);
    let expect = expected(&folder, &asked);
    let mut engine = load_first(&folder, roomy(&folder, &asked, 1));
    let keep = true;
    let kept = engine
        .open(Request {
            keep,
            ..asked[0].clone()
        })
        .unwrap();
    run_all(&mut engine);
    let runs = engine.open(asked[1].clone()).unwrap();
    let pages_of = |engine: &Engine, id| {
        let sessions = engine.list(None);
        sessions
            .iter()
            .find(|session| session.id == id)
            .unwrap()
            .pages
    };
    let host = engine.kv_usage().host;
    assert!(host.used > 0, "the host has copies of the kept session");
    while pages_of(&engine, runs) <= host.total - host.used {
        engine.step().unwrap();
    }
    swap(&mut engine);
    assert_eq!(pages_of(&engine, kept), 0, "its pages made room");
    run_all(&mut engine);
    for (found, expect) in close_all(&mut engine, &[kept, runs]).iter().zip(&expect) {
        assert!((&found.0, &found.1) == (&expect.0, &expect.1));
    }
}

#[test]
fn a_model_can_leave_after_the_turns_that_have_begun() {
    let folder = family("llama2");
    let asked = first_requests(&folder, 60, 6, 3);
    let expect = expected(&folder, &asked);
    let mut engine = load_first(&folder, roomy(&folder, &asked, 1));
    let mut ids = open_crowd(&mut engine, &asked[..2]);
    assert_eq!(engine.swap_room(), SwapRoom::AfterTurns);
    engine.set_draining(true);
    ids.push(engine.open(asked[2].clone()).unwrap());
    run_all(&mut engine);
    assert!(engine.has_work(), "the new session waits");
    assert!(engine.view(ids[2]).unwrap().awaits_first_pass());
    swap(&mut engine);
    engine.set_draining(false);
    run_all(&mut engine);
    assert!(close_all(&mut engine, &ids) == expect);
}

#[test]
fn a_turn_that_has_not_begun_does_not_keep_the_model_on_the_device() {
    let folder = family("llama2");
    let kept = |ask: Request| Request { keep: true, ..ask };
    let asked = requests(&folder, 60, 6).into_iter().take(3).map(kept);
    let asked: Vec<Request> = asked.collect();
    let expect = two_turns(&folder, &asked, None);
    let mut engine = load_first(&folder, roomy(&folder, &asked, 0));
    let ids = open_all(&mut engine, &asked);
    run_all(&mut engine);
    engine.set_draining(true);
    for &id in &ids {
        let mut session = engine.any_session(id).unwrap();
        session.append(&asked[0].tokens[..9], 5, &[]).unwrap();
    }
    assert!(engine.is_idle(), "no other turn begins");
    swap(&mut engine);
    engine.set_draining(false);
    run_all(&mut engine);
    assert!(close_all(&mut engine, &ids) == expect);
}

#[test]
fn a_paused_session_without_room_in_host_memory_keeps_its_model_on_the_device() {
    let folder = family("qwen3");
    let ask = requests(&folder, 30, 8).remove(0);
    let ask = stopping(&folder, &ask, &["blocks.0.hook_resid_mid,step=1"]);
    let settings = roomy(&folder, std::slice::from_ref(&ask), 0);
    let mut engine = load_first(&folder, settings);
    let id = engine.open(ask).unwrap();
    assert_eq!(common::stops::run_until_idle(&mut engine).len(), 1);
    assert_eq!(engine.swap_room(), SwapRoom::AfterSessions);
    assert!(engine.swap_out().is_err() && !engine.is_swapped_out());
    engine.close(id).unwrap();
    assert_eq!(engine.swap_room(), SwapRoom::Now);
}

#[test]
fn a_paused_session_forks_while_its_model_is_off_the_device() {
    let folder = family("qwen3");
    let plain = requests(&folder, 30, 8).remove(0);
    let expect = expected(&folder, std::slice::from_ref(&plain));
    let ask = stopping(&folder, &plain, &["blocks.0.hook_resid_mid,step=3"]);
    let settings = Settings {
        open: 2,
        ..roomy(&folder, std::slice::from_ref(&ask), 3)
    };
    let mut engine = load_first(&folder, settings);
    let id = engine.open(ask).unwrap();
    assert_eq!(common::stops::run_until_idle(&mut engine).len(), 1);
    engine.swap_out().unwrap();
    let fork = engine.any_session(id).unwrap().fork(None).unwrap();
    for id in [id, fork] {
        let mut session = engine.any_session(id).unwrap();
        session.resume_with(&[], RunUntil::Breakpoint).unwrap();
    }
    engine.swap_in(&mut go_on).unwrap();
    assert!(common::stops::run_until_idle(&mut engine).is_empty());
    for found in close_all(&mut engine, &[id, fork]) {
        assert!(found == expect[0]);
    }
}

#[test]
fn memory_that_could_not_be_given_back_is_given_back_later() {
    let folder = family("llama2");
    let asked = first_requests(&folder, 30, 8, 2);
    let expect = expected(&folder, &asked);
    for tries_again in [false, true] {
        let backend = LateBackend::new(1, 3);
        let route = routes(open(&folder).program.weight_bytes())[0];
        let mut engine = load(&folder, &backend, roomy(&folder, &asked, 2), route);
        let ids = open_all(&mut engine, &asked);
        engine.step().unwrap();
        backend.memory_faults().release.store(1, Ordering::SeqCst);
        assert!(engine.swap_out().is_err() && engine.is_swapped_out());
        assert!(engine.holds_device_memory(), "the device failed");
        if tries_again {
            engine.swap_out().unwrap();
            assert!(!engine.holds_device_memory());
        }
        backend.memory_faults().restore.store(1, Ordering::SeqCst);
        let refused = engine.swap_in(&mut go_on).unwrap_err();
        assert!(refused.is_device_memory_shortage(), "{refused}");
        engine.swap_in(&mut go_on).unwrap();
        assert!(engine.holds_device_memory() && !engine.is_swapped_out());
        run_all(&mut engine);
        assert!(close_all(&mut engine, &ids) == expect);
    }
}

#[test]
fn a_prompt_in_the_cache_is_not_computed_again_after_a_swap() {
    let folder = family("llama2");
    let ask = requests(&folder, 60, 6).remove(0);
    let expect = expected(&folder, std::slice::from_ref(&ask));
    let settings = roomy(&folder, std::slice::from_ref(&ask), 2);
    let mut engine = load_first(&folder, settings);
    for round in 0..3 {
        let id = engine.open(ask.clone()).unwrap();
        run_all(&mut engine);
        assert!(close_all(&mut engine, &[id]) == expect);
        assert_eq!(engine.prefix_tokens_reused() > 0, round > 0);
        swap(&mut engine);
    }
}

#[test]
fn a_return_can_be_cancelled() {
    let folder = family("llama2");
    let asked = first_requests(&folder, 30, 8, 2);
    let expect = expected(&folder, &asked);
    let backend = How::default().backend();
    for route in routes(open(&folder).program.weight_bytes()) {
        let mut engine = load(&folder, &*backend, roomy(&folder, &asked, 2), route);
        let ids = open_all(&mut engine, &asked);
        engine.step().unwrap();
        engine.swap_out().unwrap();
        let mut steps = 0;
        let cancelled = engine.swap_in(&mut |_| {
            steps += 1;
            ControlFlow::Break(())
        });
        // A copy in host memory returns in one step.
        if steps > 0 {
            assert!(steps == 1 && cancelled.is_err(), "{route:?}");
            assert!(engine.is_swapped_out() && !engine.holds_device_memory());
            engine.swap_in(&mut go_on).unwrap();
        }
        assert_eq!(steps > 0, !route.host_copy, "{route:?}");
        run_all(&mut engine);
        assert!(close_all(&mut engine, &ids) == expect, "{route:?}");
    }
}

#[test]
fn a_failed_return_can_be_tried_again() {
    let folder = family("llama2");
    let asked = first_requests(&folder, 30, 8, 2);
    let expect = expected(&folder, &asked);
    let backend = How::default().backend();
    if backend.tier() != Tier::Files {
        return;
    }
    for reads in [GONE, 1, 3] {
        let (model, disk) = on_faulty_disk(&folder);
        let route = routes(model.program.weight_bytes())[0];
        let settings = roomy(&folder, &asked, 2);
        let blueprint = Blueprint::draw(&model, &*backend, settings, memory(route)).unwrap();
        let mut engine = common::elastic::load(model, &*backend, blueprint);
        let ids = open_all(&mut engine, &asked);
        engine.step().unwrap();
        engine.swap_out().unwrap();
        disk.reads_left.store(reads, Ordering::SeqCst);
        let failed = engine.swap_in(&mut go_on);
        disk.reads_left.store(HEALTHY, Ordering::SeqCst);
        assert!(failed.is_err() && engine.is_swapped_out(), "{reads} reads");
        engine.swap_in(&mut go_on).unwrap();
        run_all(&mut engine);
        assert!(close_all(&mut engine, &ids) == expect, "{reads} reads");
    }
}
