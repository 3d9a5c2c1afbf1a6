//! More sessions than memory: sessions that wait, resume, are cancelled, fork or are evicted give
//! the bits of a session that runs alone with enough memory.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use common::paging::{
    Random, SessionResult, alone, load, load_with_disk, random_request, result_of, tight,
};
use common::{FAMILIES, How, family, golden, ids, open, request, stories};
use djinn_engine::{Blueprint, Engine, Request, SessionId, Settings, Tier};
use djinn_weights::MemorySettings;

/// Runs sessions that arrive at random; some wait, some are cancelled, and some fork. Compares every
/// result.
fn run_randomly(
    engine: &mut Engine,
    requests: &[Request],
    expect: &[SessionResult],
    random: &mut Random,
) {
    let seed = random.0;
    let mut numbers: BTreeMap<SessionId, usize> = BTreeMap::new();
    let mut waiting: Vec<SessionId> = Vec::new();
    let (mut next, mut done, mut cancelled, mut forks) = (0, 0, 0, 0);
    while done + cancelled < requests.len() + forks {
        // Up to three sessions arrive before each pass.
        for _ in 0..random.below(4).min(requests.len() - next) {
            let id = engine.open(requests[next].clone()).unwrap();
            numbers.insert(id, next);
            next += 1;
        }
        let outputs = engine.step().unwrap();
        engine.check_integrity();
        for output in outputs {
            let number = numbers[&output.session];
            if output.finish.is_some() {
                assert_eq!(output.failure, None, "session {number}, seed {seed}");
                let found = result_of(&engine.close(output.session).unwrap());
                assert!(found == expect[number], "session {number}, seed {seed}");
                done += 1;
            } else if random.below(6) == 0 {
                let expected = Instant::now() + Duration::from_secs(random.below(9) as u64);
                let expected = (random.below(2) == 0).then_some(expected);
                engine
                    .any_session(output.session)
                    .and_then(|mut session| session.wait(expected))
                    .unwrap();
                waiting.push(output.session);
            } else if random.below(150) == 0 {
                let found = result_of(&engine.close(output.session).unwrap()).0;
                assert_eq!(found, expect[number].0[..found.len()], "seed {seed}");
                cancelled += 1;
            } else if random.below(40) == 0 {
                let fork = engine
                    .any_session(output.session)
                    .and_then(|mut session| session.fork(None))
                    .unwrap();
                numbers.insert(fork, number);
                forks += 1;
            }
            engine.check_integrity();
        }
        if !waiting.is_empty() && (engine.is_idle() || random.below(3) == 0) {
            let id = waiting.swap_remove(random.below(waiting.len()));
            if random.below(30) == 0 {
                engine.close(id).unwrap();
                cancelled += 1;
            } else {
                engine
                    .any_session(id)
                    .and_then(|mut session| session.resume())
                    .unwrap();
            }
        }
    }
    assert!(
        cancelled > 2 && done > 150 && forks > 20,
        "{done} {cancelled} {forks}"
    );
    assert!(
        engine.prefix_tokens_reused() > 200,
        "{}",
        engine.prefix_tokens_reused()
    );
    let paged = engine.paging_stats().unwrap();
    assert!(
        0 < paged.copied_in.bytes && 0 < paged.copied_out.bytes,
        "{paged:?}"
    );
    assert!(paged.device_peak <= engine.footprint().kv, "{paged:?}");
    assert!(
        paged.host_peak <= engine.blueprint().host_page_bytes(),
        "{paged:?}"
    );
    engine.check_integrity();
}

#[test]
fn two_hundred_sessions_in_a_fifth_of_their_memory() {
    let folder = stories();
    let tokens = ids(&golden(&folder)["cat.input_ids"]);
    let mut random = Random(7);
    let common: Vec<u32> = (0..40).map(|i| tokens[i % tokens.len()]).collect();
    let mut requests: Vec<Request> = (0..200)
        .map(|_| random_request(&folder, &tokens, &mut random))
        .collect();
    for request in requests.iter_mut().step_by(4) {
        request.tokens.splice(0..0, common.iter().copied());
    }
    let expect: Vec<SessionResult> = alone(&folder, &requests).iter().map(result_of).collect();
    let settings = tight(&folder, &requests, 12, 5);
    let mut engine = load(&folder, settings.clone());
    run_randomly(&mut engine, &requests, &expect, &mut random);
    drop(engine);

    // A sixth of the host memory, and a disk.
    let disk = tempfile::tempdir().unwrap();
    let host_pages = settings.host_pages / 6;
    let mut engine = load_with_disk(&folder, settings, host_pages, disk.path());
    run_randomly(&mut engine, &requests, &expect, &mut random);
    let paged = engine.paging_stats().unwrap();
    assert!(
        paged.spilled.bytes > 0 && paged.fetched.bytes > 0,
        "{paged:?}"
    );
    assert!(
        paged.disk_peak <= engine.blueprint().disk_page_bytes(),
        "{paged:?}"
    );
    drop(engine);
    assert_eq!(
        std::fs::read_dir(disk.path()).unwrap().count(),
        0,
        "the spill file is removed"
    );
}

#[test]
fn without_host_memory_sessions_queue_and_none_fails() {
    let folder = stories();
    let requests: Vec<Request> = (0..9)
        .map(|i| request(&folder, &[i + 5; 60], &[], 8))
        .collect();
    let expect: Vec<SessionResult> = alone(&folder, &requests).iter().map(result_of).collect();
    let settings = Settings {
        host_pages: 1,
        ..tight(&folder, &requests, 4, 9)
    };
    let mut engine = load(&folder, settings);
    let open = |request: &Request| engine.open(request.clone()).unwrap();
    let sessions: Vec<SessionId> = requests.iter().map(open).collect();
    let mut waited = false;
    while !engine.is_idle() {
        let outputs = engine.step().unwrap();
        // Host memory has no room for the waiting session: its pages stay on the device.
        if let (Some(output), false) = (outputs.first(), waited) {
            engine
                .any_session(output.session)
                .and_then(|mut session| session.wait(None))
                .unwrap();
            engine.check_integrity();
            engine
                .any_session(output.session)
                .and_then(|mut session| session.resume())
                .unwrap();
            waited = true;
        }
    }
    for (id, expect) in sessions.into_iter().zip(&expect) {
        assert!(result_of(&engine.close(id).unwrap()) == *expect);
    }
}

/// Weights stream and pages move over one link: a session gives the bits of a run alone with
/// everything in memory.
#[test]
fn paging_while_weights_stream_changes_no_bit() {
    for (folder, tier) in [
        (stories(), Tier::Files),
        (stories(), Tier::Host),
        (family("llama3"), Tier::Host),
        (family("mixtral"), Tier::Host),
    ] {
        let requests: Vec<Request> = (0..10u32)
            .map(|i| Request {
                keep: true,
                ..request(
                    &folder,
                    &(0..40 + i)
                        .map(|k| 3 + (7 * k + i) % 90)
                        .collect::<Vec<_>>(),
                    &[],
                    6,
                )
            })
            .collect();
        let talk = |engine: &mut Engine, ids: &[SessionId]| {
            for turn in 0..2 {
                while !engine.is_idle() {
                    engine.step().unwrap();
                    engine.check_integrity();
                }
                if turn == 0 {
                    for &id in ids {
                        engine
                            .any_session(id)
                            .and_then(|mut session| session.append(&[5, 9, 4], 5, &[]))
                            .unwrap();
                    }
                }
            }
        };
        let model = open(&folder);
        let one = Settings::for_sessions(&model.program, 1, 64, 64).unwrap();
        let mut alone = load(&folder, one.clone());
        let expect: Vec<Vec<u32>> = requests
            .iter()
            .map(|request| {
                let id = alone.open(request.clone()).unwrap();
                talk(&mut alone, &[id]);
                alone.close(id).unwrap().generated
            })
            .collect();
        let settings = Settings {
            sessions: 5,
            open: 10,
            logit_rows: 5,
            pages: 3 * one.pages,
            host_pages: 10 * one.pages,
            ..one
        };
        // A quarter of the weights is resident.
        let backend = How::default().backend();
        let whole = Blueprint::draw(
            &model,
            &*backend,
            settings.clone(),
            MemorySettings::default(),
        )
        .unwrap();
        let memory = MemorySettings {
            budget: whole.footprint().total() - whole.footprint().weights() * 3 / 4,
            tier: Some(tier),
            ..MemorySettings::default()
        };
        let blueprint = Blueprint::draw(&model, &*backend, settings, memory).unwrap();
        assert!(blueprint.plan().streams(), "{folder:?}");
        let mut engine = Engine::load(model, &*backend, blueprint, &mut |_| {}).unwrap();
        let open = |request: &Request| engine.open(request.clone()).unwrap();
        let ids: Vec<SessionId> = requests.iter().map(open).collect();
        talk(&mut engine, &ids);
        for (id, expect) in ids.into_iter().zip(&expect) {
            assert_eq!(
                engine.close(id).unwrap().generated,
                *expect,
                "{folder:?} {tier:?}"
            );
        }
        let paged = engine.paging_stats().unwrap();
        assert!(paged.copied_in.bytes > 0, "{folder:?} {tier:?}");
    }
}

#[test]
fn every_family_is_evicted_and_restored_to_the_bit() {
    for folder in FAMILIES.map(family) {
        let tokens = ids(&golden(&folder)["input_ids"]);
        let mut random = Random(3);
        let requests: Vec<Request> = (0..9)
            .map(|_| random_request(&folder, &tokens, &mut random))
            .collect();
        let expect: Vec<_> = alone(&folder, &requests).iter().map(result_of).collect();
        let mut engine = load(&folder, tight(&folder, &requests, 4, 3));
        let ids: Vec<SessionId> = requests
            .iter()
            .map(|request| engine.open(request.clone()).unwrap())
            .collect();
        while !engine.is_idle() {
            engine.step().unwrap();
            engine.check_integrity();
        }
        for (id, expect) in ids.into_iter().zip(expect) {
            assert!(
                result_of(&engine.close(id).unwrap()) == expect,
                "{folder:?}"
            );
        }
        assert!(
            engine.paging_stats().unwrap().copied_out.bytes > 0,
            "{folder:?}"
        );
    }
}
