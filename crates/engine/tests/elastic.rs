//! Elastic memory: weights yield to KV pages and return, no bit changes, and no session fails.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::path::Path;
use std::sync::atomic::Ordering;

use common::elastic::{
    Resident, TIERS, draw, draw_elastic, draw_elastic_in, load, requests, settings, settle,
};
use common::faulty_disk::{GONE, HEALTHY, on_faulty_disk};
use common::paging::{Random, SessionResult, alone, alone_in, result_of};
use common::stops::stopping;
use common::{FAMILIES, How, family, open, stories, with_kv};
use djinn_device::testing::LateBackend;
use djinn_engine::{Engine, Finish, MemorySplit, Request, RunUntil, SessionId, SessionStatus};
use djinn_types::{KvDtype, Tier};
use djinn_weights::{Keep, MemorySettings, Overrides};

fn elastic_engine(folder: &Path, requests: &[Request], tier: Tier, resident: Resident) -> Engine {
    elastic_engine_in(folder, requests, (tier, KvDtype::default()), resident)
}

fn elastic_engine_in(
    folder: &Path,
    requests: &[Request],
    (tier, kv_dtype): (Tier, KvDtype),
    resident: Resident,
) -> Engine {
    let (model, backend) = (open(folder), How::default().backend());
    let settings = settings(&model, requests);
    let blueprint = draw_elastic_in(&model, &*backend, &settings, (tier, kv_dtype), resident);
    load(model, &*backend, blueprint)
}

fn split(engine: &Engine) -> MemorySplit {
    engine.memory_split()
}

fn expected(folder: &Path, requests: &[Request]) -> Vec<SessionResult> {
    alone(folder, requests).iter().map(result_of).collect()
}

fn close_all(engine: &mut Engine, ids: Vec<SessionId>) -> Vec<SessionResult> {
    let close = |id| result_of(&engine.close(id).unwrap());
    ids.into_iter().map(close).collect()
}

/// Runs all requests while the level changes before every pass.
fn run_at_random_levels(
    engine: &mut Engine,
    requests: &[Request],
    seed: u64,
) -> Vec<SessionResult> {
    let mut random = Random(seed);
    let MemorySplit { least, most, .. } = split(engine);
    let mut ids: Vec<SessionId> = Vec::new();
    let mut seen = vec![false; most + 1];
    // Few sessions run at once, so that their pages fit at most levels.
    while ids.len() < requests.len() || !engine.is_idle() {
        let running = ids.iter().filter(|id| {
            let view = engine.view(**id).unwrap();
            view.info().status != SessionStatus::Done
        });
        if running.count() < 2 && ids.len() < requests.len() {
            ids.push(engine.open(requests[ids.len()].clone()).unwrap());
        }
        let level = least + random.below(most - least + 1);
        engine.set_level(level).unwrap();
        engine.check_integrity();
        for output in engine.step().unwrap() {
            assert_eq!(output.failure, None);
        }
        engine.check_integrity();
        seen[split(engine).level] = true;
    }
    assert!(seen.iter().filter(|seen| **seen).count() > 2, "{seen:?}");
    close_all(engine, ids)
}

/// Changes the level at random in every family that may be elastic.
fn level_changes_no_bit(kv_dtype: KvDtype) {
    for name in FAMILIES.into_iter().filter(|name| *name != "mixtral") {
        let folder = family(name);
        let asked = requests(&folder, 40, 10);
        let expect = alone_in(&folder, &asked, with_kv(kv_dtype).memory);
        let expect: Vec<SessionResult> = expect.iter().map(result_of).collect();
        for (tier, resident) in [
            (Tier::Files, Resident::All),
            (Tier::Host, Resident::All),
            (Tier::Host, Resident::Some),
        ] {
            let mut engine = elastic_engine_in(&folder, &asked, (tier, kv_dtype), resident);
            for seed in 0..2 {
                let found = run_at_random_levels(&mut engine, &asked, seed);
                assert!(found == expect, "{name} from {tier:?}, {resident:?}");
            }
        }
    }
}

#[test]
fn the_level_changes_no_bit_with_kv_in_f16() {
    level_changes_no_bit(KvDtype::F16);
}

#[test]
fn the_level_changes_no_bit_with_kv_in_bf16() {
    level_changes_no_bit(KvDtype::Bf16);
}

#[test]
fn the_level_changes_no_bit_with_kv_in_f32() {
    level_changes_no_bit(KvDtype::F32);
}

#[test]
fn late_copies_and_events_change_no_bit() {
    let folder = family("llama3");
    let asked = requests(&folder, 40, 10);
    let expect = expected(&folder, &asked);
    for seed in 0..4 {
        let (model, backend) = (open(&folder), LateBackend::new(seed, 9));
        let settings = settings(&model, &asked);
        let blueprint = draw_elastic(&model, &backend, &settings, Tier::Host, Resident::All);
        let mut engine = load(model, &backend, blueprint);
        let found = run_at_random_levels(&mut engine, &asked, seed);
        assert!(found == expect, "seed {seed}");
    }
}

#[test]
fn weights_yield_under_load_and_return() {
    for (name, tier) in ["llama2", "gpt2", "falcon7b"]
        .into_iter()
        .flat_map(|name| TIERS.map(|tier| (name, tier)))
    {
        let folder = family(name);
        let asked = requests(&folder, 40, 30);
        let expect = expected(&folder, &asked);
        let mut engine = elastic_engine(&folder, &asked, tier, Resident::All);
        let (plan, initial) = (engine.blueprint().plan().clone(), split(&engine));
        assert_eq!((initial.level, initial.streamed_bytes), (0, 0));
        for _ in 0..2 {
            let open = |ask: &Request| engine.open(ask.clone()).unwrap();
            let ids: Vec<SessionId> = asked.iter().map(open).collect();
            let mut peak = initial;
            while !engine.is_idle() {
                for output in engine.step().unwrap() {
                    assert_eq!(output.failure, None);
                }
                engine.check_integrity();
                let now = split(&engine);
                assert_eq!(engine.kv_usage().device.total, now.frames);
                let slab = engine.blueprint().footprint().slab();
                assert_eq!(slab, engine.device().slab_bytes, "the slab is constant");
                if now.level > peak.level {
                    peak = now;
                }
            }
            assert!(peak.level > 0 && peak.frames > initial.frames, "{peak:?}");
            assert!(peak.resident_bytes < initial.resident_bytes);
            assert!(peak.streamed_bytes > 0);
            assert!(
                close_all(&mut engine, ids) == expect,
                "{name} from {tier:?}"
            );
            settle(&mut engine);
            let end = split(&engine);
            assert_eq!(end.level, 0);
            assert_eq!(
                (end.frames, end.resident_bytes),
                (initial.frames, initial.resident_bytes)
            );
            assert!(
                *engine.blueprint().plan() == plan,
                "the initial plan returns"
            );
        }
    }
}

#[test]
fn one_session_after_many_brings_the_weights_back() {
    let folder = stories();
    let mut asked = vec![common::request(&folder, &[5; 60], &[], 4); 24];
    asked.push(common::request(&folder, &[7; 20], &[], 200));
    let expect = expected(&folder, &asked);
    let mut engine = elastic_engine(&folder, &asked, Tier::Host, Resident::All);
    let open = |ask: &Request| engine.open(ask.clone()).unwrap();
    let ids: Vec<SessionId> = asked.iter().map(open).collect();
    let mut levels = Vec::new();
    while !engine.is_idle() {
        engine.step().unwrap();
        levels.push(split(&engine).level);
    }
    let top = levels
        .iter()
        .position(|level| level == levels.iter().max().unwrap());
    assert!(levels[top.unwrap()] > 0, "{levels:?}");
    assert!(
        levels[top.unwrap()..].is_sorted_by(|a, b| a >= b),
        "no flapping: {levels:?}"
    );
    assert_eq!(
        levels.last(),
        Some(&0),
        "the weights returned while a session ran"
    );
    assert!(close_all(&mut engine, ids) == expect);
}

#[test]
fn waiting_sessions_give_their_frames_to_weights() {
    let folder = family("llama2");
    let kept = |ask: Request| Request { keep: true, ..ask };
    let asked: Vec<Request> = requests(&folder, 60, 6).into_iter().map(kept).collect();
    for tier in TIERS {
        let mut engine = elastic_engine(&folder, &asked, tier, Resident::All);
        let open = |ask: &Request| engine.open(ask.clone()).unwrap();
        let ids: Vec<SessionId> = asked.iter().map(open).collect();
        while !engine.is_idle() {
            engine.step().unwrap();
        }
        settle(&mut engine);
        assert_eq!(
            split(&engine).level,
            0,
            "pages of waiting sessions left the device"
        );
        // The sessions continue with the bits of sessions that never left it.
        let more: Vec<u32> = asked[0].tokens[..9].to_vec();
        for &id in &ids {
            let mut session = engine.any_session(id).unwrap();
            session.append(&more, 5, &[]).unwrap();
        }
        let mut peak = 0;
        while !engine.is_idle() {
            engine.step().unwrap();
            engine.check_integrity();
            peak = peak.max(split(&engine).level);
        }
        assert!(peak > 0, "the sessions that run again need frames");
        let found = close_all(&mut engine, ids);
        let (model, backend) = (common::open(&folder), How::default().backend());
        let settings = settings(&model, &asked);
        let ample = draw(&model, &*backend, &settings, MemorySettings::default());
        assert!(ample.levels().is_none());
        let mut engine = load(model, &*backend, ample);
        let open = |ask: &Request| engine.open(ask.clone()).unwrap();
        let ids: Vec<SessionId> = asked.iter().map(open).collect();
        while !engine.is_idle() {
            engine.step().unwrap();
        }
        for &id in &ids {
            let mut session = engine.any_session(id).unwrap();
            session.append(&more, 5, &[]).unwrap();
        }
        while !engine.is_idle() {
            engine.step().unwrap();
        }
        assert!(close_all(&mut engine, ids) == found, "{tier:?}");
    }
}

#[test]
fn a_session_resumes_at_another_level() {
    let folder = family("qwen3");
    let plain = requests(&folder, 30, 8);
    let expect = expected(&folder, &plain);
    let hooks = [
        "blocks.0.hook_resid_mid,step=1",
        "blocks.1.attn.hook_z,step=3",
    ];
    let asked: Vec<Request> = plain
        .iter()
        .map(|ask| stopping(&folder, ask, &hooks))
        .collect();
    for tier in TIERS {
        let mut engine = elastic_engine(&folder, &asked, tier, Resident::All);
        let MemorySplit { least, most, .. } = split(&engine);
        let mut random = Random(3);
        let open = |ask: &Request| engine.open(ask.clone()).unwrap();
        let ids: Vec<SessionId> = asked.iter().map(open).collect();
        let mut pauses = 0;
        loop {
            let paused = common::stops::run_until_idle(&mut engine);
            if paused.is_empty() {
                break;
            }
            pauses += paused.len();
            engine
                .set_level(least + random.below(most - least + 1))
                .unwrap();
            for (id, _) in paused {
                let mut session = engine.any_session(id).unwrap();
                session.resume_with(&[], RunUntil::Breakpoint).unwrap();
            }
        }
        assert_eq!(pauses, 2 * asked.len());
        assert!(close_all(&mut engine, ids) == expect, "{tier:?}");
        assert!(split(&engine).switches > 0);
    }
}

#[test]
fn a_failed_return_leaves_the_level_and_all_sessions_as_they_are() {
    let folder = family("llama2");
    let asked = requests(&folder, 30, 12);
    let expect = expected(&folder, &asked);
    let backend = How::default().backend();
    if backend.tier() != Tier::Files {
        return;
    }
    for reads in [GONE, 1, 2, 3] {
        let (model, disk) = on_faulty_disk(&folder);
        let settings = settings(&model, &asked);
        let blueprint = draw_elastic(&model, &*backend, &settings, Tier::Files, Resident::All);
        let mut engine = load(model, &*backend, blueprint);
        let most = split(&engine).most;
        engine.set_level(most).unwrap();
        let id = engine.open(asked[0].clone()).unwrap();
        for _ in 0..3 {
            engine.step().unwrap();
        }
        disk.reads_left.store(reads, Ordering::SeqCst);
        let before = split(&engine);
        let failed = engine.set_level(0);
        disk.reads_left.store(HEALTHY, Ordering::SeqCst);
        assert!(failed.is_err(), "{reads} reads");
        engine.check_integrity();
        let after = split(&engine);
        assert_eq!((after.level, after.frames), (before.level, before.frames));
        assert_eq!(
            (after.switches, after.failed),
            (before.switches, before.failed + 1)
        );
        while !engine.is_idle() {
            engine.step().unwrap();
            engine.check_integrity();
        }
        let found = result_of(&engine.close(id).unwrap());
        assert!(found == expect[0], "{reads} reads");
        engine.set_level(0).unwrap();
        assert_eq!(split(&engine).level, 0);
        let id = engine.open(asked[0].clone()).unwrap();
        while !engine.is_idle() {
            engine.step().unwrap();
        }
        assert!(result_of(&engine.close(id).unwrap()) == expect[0]);
    }
}

#[test]
fn a_failed_pass_does_not_disturb_the_level() {
    let folder = family("llama2");
    let asked = requests(&folder, 30, 12);
    let expect = expected(&folder, &asked);
    let backend = How::default().backend();
    if backend.tier() != Tier::Files {
        return;
    }
    let (model, disk) = on_faulty_disk(&folder);
    let settings = settings(&model, &asked);
    let blueprint = draw_elastic(&model, &*backend, &settings, Tier::Files, Resident::All);
    let mut engine = load(model, &*backend, blueprint);
    let most = split(&engine).most;
    engine.set_level(most).unwrap();
    let id = engine.open(asked[0].clone()).unwrap();
    disk.reads_left.store(GONE, Ordering::SeqCst);
    while engine.step().is_ok() {}
    assert_eq!(engine.close(id).unwrap().finish, Some(Finish::Failed));
    disk.reads_left.store(HEALTHY, Ordering::SeqCst);
    for level in [most, 1, 0] {
        engine.set_level(level).unwrap();
        assert_eq!(split(&engine).level, level);
        let id = engine.open(asked[1].clone()).unwrap();
        while !engine.is_idle() {
            engine.step().unwrap();
        }
        assert!(result_of(&engine.close(id).unwrap()) == expect[1]);
    }
}

#[test]
fn fixed_parts_make_a_fixed_plan() {
    let folder = family("llama2");
    let (model, backend) = (open(&folder), How::default().backend());
    let settings = settings(&model, &requests(&folder, 40, 10));
    let elastic = draw_elastic(&model, &*backend, &settings, Tier::Host, Resident::All);
    let memory = elastic.memory();
    assert!(elastic.reason().contains("yield"), "{}", elastic.reason());
    assert!(elastic.host_bytes() > 0);
    let levels = |memory: MemorySettings| draw(&model, &*backend, &settings, memory).levels();
    assert!(levels(memory).is_some());
    let off = MemorySettings {
        elastic: false,
        ..memory
    };
    assert_eq!(levels(off), None);
    let ample = MemorySettings {
        budget: u64::MAX,
        ..memory
    };
    assert_eq!(levels(ample), None, "everything fits");
    let resident = MemorySettings {
        overrides: Overrides {
            keep: Keep::AtMost(100_000),
            ring: None,
        },
        ..memory
    };
    assert_eq!(levels(resident), None, "the user fixed the weights");
    // Less host memory leaves less to yield.
    let image = elastic.weights().host_bytes();
    let less = MemorySettings {
        host_budget: image / 2,
        ..memory
    };
    let range = levels(less);
    assert!(
        range.is_none_or(
            |range| range.is_host_limited && range.most < elastic.levels().unwrap().most
        )
    );
}

#[test]
fn a_mixture_keeps_its_fixed_plan() {
    let folder = family("mixtral");
    let asked = requests(&folder, 40, 10);
    let expect = expected(&folder, &asked);
    let (model, backend) = (open(&folder), How::default().backend());
    let settings = settings(&model, &asked);
    let least = draw(&model, &*backend, &settings, MemorySettings::default());
    let memory = MemorySettings {
        budget: least.footprint().total() * 3 / 4,
        elastic: true,
        ..MemorySettings::default()
    };
    let blueprint = draw(&model, &*backend, &settings, memory);
    assert_eq!(blueprint.levels(), None);
    let mut engine = load(model, &*backend, blueprint);
    let open = |ask: &Request| engine.open(ask.clone()).unwrap();
    let ids: Vec<SessionId> = asked.iter().map(open).collect();
    while !engine.is_idle() {
        engine.step().unwrap();
    }
    assert_eq!(split(&engine).switches, 0);
    assert!(close_all(&mut engine, ids) == expect);
}
