//! More sessions than memory: whatever waits, comes back, is cancelled or makes room for
//! others, a session's bits are those it gives alone with all the memory there is.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    time::{Duration, Instant},
};

use common::{FAMILIES, How, family, golden, ids, open, request, stories};
use djinn_engine::{
    Blueprint, Class, Engine, EngineError, Finish, Request, Sampling, SessionId, Settings, Tier,
    Transcript,
};
use djinn_weights::MemorySettings;

/// Numbers that follow from a seed, which a failure tells.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) as usize % limit
    }
}

/// A session unlike the others.
fn unlike(folder: &Path, tokens: &[u32], random: &mut Random) -> Request {
    let prompt: Vec<u32> = (0..1 + random.below(60))
        .map(|_| tokens[random.below(tokens.len())])
        .collect();
    let class = [Class::Realtime, Class::Interactive, Class::Batch][random.below(3)];
    Request {
        sampling: Sampling {
            temperature: random.below(3) as f32 / 2.0,
            seed: random.below(1000) as u64,
            logprobs: (random.below(2) == 0).then_some(1),
            ..Sampling::default()
        },
        class,
        ..request(folder, &prompt, &[], 1 + random.below(24))
    }
}

fn load(folder: &Path, settings: Settings) -> Engine {
    let (model, backend) = (open(folder), How::default().backend());
    let blueprint =
        Blueprint::draw(&model, &*backend, settings, MemorySettings::default()).unwrap();
    Engine::load(model, &*backend, blueprint, &mut |_| {}).unwrap()
}

/// What a session came to, bits and all.
type Told = (Vec<u32>, Vec<(u32, u32)>, Option<Finish>);

fn told(transcript: &Transcript) -> Told {
    let logprobs = transcript.logprobs.iter().flatten();
    let bits = logprobs.map(|l| (l.token, l.logprob.to_bits())).collect();
    (transcript.generated.clone(), bits, transcript.finish)
}

/// Each of these by itself, one after the other.
fn alone(folder: &Path, requests: &[Request]) -> Vec<Transcript> {
    let model = open(folder);
    let one = |r: &Request| Settings::for_requests(&model, std::slice::from_ref(r), 64).unwrap();
    let mut settings = one(&requests[0]);
    for request in requests {
        let more = one(request);
        settings.rows = settings.rows.max(more.rows);
        settings.context = settings.context.max(more.context);
        settings.pages = settings.pages.max(more.pages);
    }
    let mut engine = load(folder, settings);
    let mut run = |request: &Request| {
        let id = engine.open(request.clone()).unwrap();
        while !engine.is_idle() {
            engine.step().unwrap();
        }
        engine.close(id).unwrap()
    };
    requests.iter().map(&mut run).collect()
}

/// Settings for sessions of which a pass takes `most`, and `device` pages hold few.
fn tight(folder: &Path, requests: &[Request], most: usize, share: usize) -> Settings {
    let model = open(folder);
    let all = Settings::for_requests(&model, requests, 64).unwrap();
    let largest = all.context.div_ceil(all.page_tokens);
    let device = (all.pages / share).max(largest);
    Settings {
        sessions: most,
        rows: 64,
        logit_rows: most,
        pages: device,
        host_pages: all.pages + largest - device,
        ..all
    }
}

/// The same with a disk behind a host that holds no more than two sessions, or a part of
/// what they come to.
fn load_with_disk(folder: &Path, settings: Settings, host_pages: usize, disk: &Path) -> Engine {
    let (model, backend) = (open(folder), How::default().backend());
    let least = settings.context.div_ceil(settings.page_tokens);
    let settings = Settings {
        disk_pages: settings.host_pages + 2 * least,
        host_pages: host_pages.max(2 * least),
        ..settings
    };
    let mut blueprint =
        Blueprint::draw(&model, &*backend, settings, MemorySettings::default()).unwrap();
    blueprint.spill_to(disk);
    Engine::load(model, &*backend, blueprint, &mut |_| {}).unwrap()
}

/// Two hundred sessions that come and go as chance wants it. Each has its own tokens but for
/// a beginning that some share; some wait, some are cancelled, and some fork.
fn live(engine: &mut Engine, requests: &[Request], expect: &[Told], random: &mut Random) {
    let seed = random.0;
    let mut numbers: BTreeMap<SessionId, usize> = BTreeMap::new();
    let mut waiting: Vec<SessionId> = Vec::new();
    let (mut next, mut done, mut cancelled, mut forks) = (0, 0, 0, 0);
    while done + cancelled < requests.len() + forks {
        // Some arrive, in no hurry.
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
                let found = told(&engine.close(output.session).unwrap());
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
                let found = told(&engine.close(output.session).unwrap()).0;
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
        .map(|_| unlike(&folder, &tokens, &mut random))
        .collect();
    for request in requests.iter_mut().step_by(4) {
        request.tokens.splice(0..0, common.iter().copied());
    }
    let expect: Vec<Told> = alone(&folder, &requests).iter().map(told).collect();
    let settings = tight(&folder, &requests, 12, 5);
    let mut engine = load(&folder, settings.clone());
    live(&mut engine, &requests, &expect, &mut random);
    drop(engine);

    // The same with a disk behind a sixth of the host's memory.
    let disk = tempfile::tempdir().unwrap();
    let host_pages = settings.host_pages / 6;
    let mut engine = load_with_disk(&folder, settings, host_pages, disk.path());
    live(&mut engine, &requests, &expect, &mut random);
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
        "nothing is left"
    );
}

/// Sessions that all wait, most of them on disk.
fn on_disk(disk: &Path) -> (Engine, Vec<SessionId>, Vec<Told>) {
    let folder = stories();
    let requests: Vec<Request> = (0..24)
        .map(|i| request(&folder, &[i + 5; 60], &[], 8))
        .collect();
    let expect = alone(&folder, &requests).iter().map(told).collect();
    let settings = tight(&folder, &requests, 4, 12);
    let mut engine = load_with_disk(&folder, settings, 0, disk);
    let open = |request: &Request| engine.open(request.clone()).unwrap();
    let sessions: Vec<SessionId> = requests.iter().map(open).collect();
    let mut waiting = BTreeSet::new();
    while waiting.len() < sessions.len() {
        for output in engine.step().unwrap() {
            if waiting.insert(output.session) {
                engine
                    .any_session(output.session)
                    .and_then(|mut session| session.wait(None))
                    .unwrap();
            }
        }
    }
    // What is on its way gets there.
    for _ in 0..100 {
        engine.step().unwrap();
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(engine.paging_stats().unwrap().spilled.bytes > 0);
    (engine, sessions, expect)
}

/// Lets all go on; says how many came to their end, and what the others were told.
fn finish(mut engine: Engine, sessions: &[SessionId], expect: &[Told]) -> (usize, Vec<String>) {
    for &id in sessions {
        engine
            .any_session(id)
            .and_then(|mut session| session.resume())
            .unwrap();
    }
    while !engine.is_idle() {
        engine.step().unwrap();
        engine.check_integrity();
    }
    let (mut whole, mut failures) = (0, Vec::new());
    for (&id, expect) in sessions.iter().zip(expect) {
        let transcript = engine.close(id).unwrap();
        match transcript.failure.clone() {
            Some(failure) => failures.push(failure),
            None => {
                assert!(told(&transcript) == *expect, "session {}", id.0);
                whole += 1;
            }
        }
    }
    engine.check_integrity();
    (whole, failures)
}

#[test]
fn a_spill_file_that_somebody_changed_is_an_error_of_those_it_held() {
    let path = |disk: &Path| {
        let file = std::fs::read_dir(disk).unwrap().next();
        file.unwrap().unwrap().path()
    };
    let disk = tempfile::tempdir().unwrap();
    let (engine, sessions, expect) = on_disk(disk.path());
    assert_eq!(finish(engine, &sessions, &expect), (24, vec![]));

    let (engine, sessions, expect) = on_disk(disk.path());
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(path(disk.path()));
    // A byte in the middle of what the first slot holds.
    std::os::unix::fs::FileExt::write_all_at(&file.unwrap(), &[0x55], 1000).unwrap();
    let (whole, failures) = finish(engine, &sessions, &expect);
    assert!(
        whole >= 22 && whole + failures.len() == 24,
        "{whole} {failures:?}"
    );
    assert!(
        failures.iter().all(|f| f.contains("is corrupt")),
        "{failures:?}"
    );
    assert!(!failures.is_empty());

    let (engine, sessions, expect) = on_disk(disk.path());
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(path(disk.path()));
    file.unwrap().set_len(5000).unwrap();
    let (whole, failures) = finish(engine, &sessions, &expect);
    assert!(
        whole > 0 && whole + failures.len() == 24,
        "{whole} {failures:?}"
    );
    // Others may have been written behind it since: then there is a hole where it was.
    let is_told = |f: &String| f.contains("was truncated") || f.contains("is corrupt");
    assert!(failures.iter().all(is_told), "{failures:?}");
}

#[test]
fn without_room_elsewhere_sessions_queue_and_none_fails() {
    let folder = stories();
    let requests: Vec<Request> = (0..9)
        .map(|i| request(&folder, &[i + 5; 60], &[], 8))
        .collect();
    let expect: Vec<Told> = alone(&folder, &requests).iter().map(told).collect();
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
        // The host has no room for one that waits: it stays where it is, and comes back.
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
        assert!(told(&engine.close(id).unwrap()) == *expect);
    }
}

/// Weights that stream and pages that come and go, over one link: a session's bits are those
/// it gives alone with everything in memory.
#[test]
fn weights_stream_while_pages_move() {
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
        // A quarter of the weights stays.
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
fn every_family_makes_room_and_comes_back() {
    for folder in FAMILIES.map(family) {
        let tokens = ids(&golden(&folder)["input_ids"]);
        let mut random = Random(3);
        let requests: Vec<Request> = (0..9)
            .map(|_| unlike(&folder, &tokens, &mut random))
            .collect();
        let expect: Vec<_> = alone(&folder, &requests).iter().map(told).collect();
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
            assert!(told(&engine.close(id).unwrap()) == expect, "{folder:?}");
        }
        assert!(
            engine.paging_stats().unwrap().copied_out.bytes > 0,
            "{folder:?}"
        );
    }
}

/// What a session is told goes on from its KV: the tokens are those that a fresh session
/// generates after everything said so far.
#[test]
fn a_conversation_goes_on_where_it_was() {
    for (folder, first) in [(stories(), 11), (family("llama3"), 7), (family("gpt2"), 5)] {
        let report = |request: Request| Request {
            sampling: Sampling {
                logprobs: Some(2),
                ..Sampling::default()
            },
            keep: true,
            ..request
        };
        let prompt: Vec<u32> = (0..20).map(|i| first + 3 * i).collect();
        let ask = report(request(&folder, &prompt, &[], 6));
        let long = report(request(&folder, &[1; 90], &[], 6));
        let settings = Settings::for_requests(&open(&folder), &[long.clone(), long], 7).unwrap();
        let pages = settings.pages / 2;
        let settings = Settings {
            pages,
            host_pages: 2 * pages,
            ..settings
        };
        let mut engine = load(&folder, settings);
        let id = engine.open(ask.clone()).unwrap();
        let other = engine.open(ask).unwrap();
        let mut said = prompt.clone();
        let mut logprobs = 0;
        for answer in [vec![9, 2, 5], vec![], vec![4; 17]] {
            let mut found = Vec::new();
            while !engine.is_idle() {
                for output in engine.step().unwrap() {
                    let is_ours = output.session == id;
                    found.extend(output.token.filter(|_| is_ours));
                }
                engine.check_integrity();
            }
            let fresh = request(&folder, &said, &[], 6);
            let alone = &alone(&folder, &[report(fresh)])[0];
            // On a card, generated tokens and those of a prompt have kernels of their own.
            if common::card().is_none() {
                assert_eq!(found, alone.generated, "{folder:?}");
            }
            assert_eq!(found.len(), 6);
            logprobs += alone.logprobs.len();
            said.extend(found);
            said.extend(&answer);
            for id in [id, other] {
                engine
                    .any_session(id)
                    .and_then(|mut session| session.append(&answer, 6, &[]))
                    .unwrap();
            }
        }
        let both = [id, other].map(|id| engine.close(id).unwrap());
        assert!(told(&both[0]) == told(&both[1]), "{folder:?}");
        assert_eq!(
            (both[0].logprobs.len(), both[0].generated.len()),
            (logprobs, 18)
        );
        assert_eq!(both[0].prompt, prompt);
        engine.check_integrity();
    }
}

#[test]
fn what_the_host_has_already_is_not_sent_again() {
    let folder = stories();
    let ask = request(&folder, &[5; 100], &[], 30);
    let expect = told(&alone(&folder, std::slice::from_ref(&ask))[0]);
    let mut engine = load(&folder, tight(&folder, &[ask.clone(), ask.clone()], 2, 1));
    let page = engine.blueprint().page_bytes();
    let id = engine.open(ask).unwrap();
    let mut sent = Vec::new();
    for _ in 0..3 {
        // Two passes over the prompt, or two tokens.
        engine.step().unwrap();
        engine.step().unwrap();
        engine
            .any_session(id)
            .and_then(|mut session| session.wait(None))
            .unwrap();
        engine.check_integrity();
        sent.push(engine.paging_stats().unwrap().copied_out.bytes / page);
        engine
            .any_session(id)
            .and_then(|mut session| session.resume())
            .unwrap();
    }
    // Seven pages of prompt; then only the one that tokens were added to.
    assert_eq!(sent, [7, 8, 9]);
    while !engine.is_idle() {
        engine.step().unwrap();
    }
    assert!(told(&engine.close(id).unwrap()) == expect);
    engine.check_integrity();
}

/// Whether pages went to the host, and whether any came back.
fn moved(engine: &mut Engine) -> (bool, bool) {
    let paged = engine.paging_stats().unwrap();
    (paged.copied_out.bytes > 0, paged.copied_in.bytes > 0)
}

#[test]
fn who_says_when_it_is_back_keeps_its_place_while_nobody_needs_it() {
    let folder = stories();
    let asks = [5, 6].map(|token| request(&folder, &[token; 100], &[], 30));
    let expect: Vec<Told> = alone(&folder, &asks).iter().map(told).collect();
    // Room for one of the two.
    let mut engine = load(&folder, tight(&folder, &asks, 2, 2));
    let id = engine.open(asks[0].clone()).unwrap();
    for _ in 0..9 {
        engine.step().unwrap();
    }
    let now = Instant::now();
    // Back in a moment, nothing moves.
    engine
        .any_session(id)
        .and_then(|mut session| session.wait(Some(now)))
        .unwrap();
    assert_eq!(moved(&mut engine), (false, false));
    engine
        .any_session(id)
        .and_then(|mut session| session.resume())
        .unwrap();
    engine.step().unwrap();
    // Back in a minute, the host has what stays here.
    let minute = Duration::from_secs(60);
    engine
        .any_session(id)
        .and_then(|mut session| session.wait(Some(now + minute)))
        .unwrap();
    assert!(engine.maintain(now).is_empty());
    assert_eq!(moved(&mut engine), (true, false));
    let sent = engine.paging_stats().unwrap().copied_out.bytes;
    assert_eq!(engine.kv_usage().device.used, engine.kv_usage().host.used);
    engine
        .any_session(id)
        .and_then(|mut session| session.resume())
        .unwrap();
    engine.step().unwrap();
    assert_eq!(moved(&mut engine), (true, false), "it was there");
    // Somebody else takes its place: of what had not changed since nothing is sent again.
    engine
        .any_session(id)
        .and_then(|mut session| session.wait(Some(now + minute)))
        .unwrap();
    let other = engine.open(asks[1].clone()).unwrap();
    while !engine.is_idle() {
        engine.step().unwrap();
        engine.check_integrity();
    }
    let page = engine.blueprint().page_bytes();
    assert_eq!(engine.paging_stats().unwrap().copied_out.bytes, sent + page);
    assert!(told(&engine.close(other).unwrap()) == expect[1]);
    assert_eq!(moved(&mut engine), (true, false), "not yet");
    assert!(engine.maintain(now + minute).is_empty());
    assert_eq!(moved(&mut engine), (true, true), "ahead of its return");
    engine.check_integrity();
    engine
        .any_session(id)
        .and_then(|mut session| session.resume())
        .unwrap();
    while !engine.is_idle() {
        engine.step().unwrap();
    }
    assert!(told(&engine.close(id).unwrap()) == expect[0]);
    engine.check_integrity();
}

#[test]
fn where_the_host_is_short_nothing_is_in_two_places() {
    let folder = stories();
    let asks = [5, 6].map(|token| Request {
        keep: true,
        ..request(&folder, &[token; 100], &[], 4)
    });
    // Room for both on the device, and for one of them on the host.
    let mut engine = load(&folder, tight(&folder, &asks, 2, 1));
    let mut held = Vec::new();
    for ask in &asks {
        engine.open(ask.clone()).unwrap();
        while !engine.is_idle() {
            engine.step().unwrap();
        }
        engine.check_integrity();
        let pages = engine.kv_usage();
        held.push((pages.device.used, pages.host.used));
    }
    // The first is copied and stays; the second goes, and takes the copies' place.
    assert_eq!(held, [(7, 7), (7, 7)]);
    let away: Vec<usize> = engine.list(None).iter().map(|told| told.away).collect();
    assert_eq!(away, [0, 7]);
}

#[test]
fn who_is_expected_takes_the_place_of_who_is_not() {
    let folder = stories();
    let asks = [5, 6].map(|token| Request {
        keep: true,
        ..request(&folder, &[token; 100], &[], 4)
    });
    let mut engine = load(&folder, tight(&folder, &asks, 2, 2));
    let mut ids = Vec::new();
    for ask in &asks {
        ids.push(engine.open(ask.clone()).unwrap());
        while !engine.is_idle() {
            engine.step().unwrap();
        }
    }
    // The second is here, the first is not, and both wait.
    let away = |engine: &Engine| {
        let all = engine.list(None).into_iter();
        all.map(|told| told.away > 0).collect::<Vec<_>>()
    };
    assert_eq!(away(&engine), [true, false]);
    let now = Instant::now();
    engine
        .any_session(ids[0])
        .and_then(|mut session| session.wait(Some(now)))
        .unwrap();
    assert!(engine.maintain(now).is_empty());
    engine.check_integrity();
    assert_eq!(away(&engine), [false, true]);
    let (out, back) = (
        engine.paging_stats().unwrap().copied_out,
        engine.paging_stats().unwrap().copied_in,
    );
    assert!(out.bytes > back.bytes, "the host had all of the second");
    // One as soon as the other stays where it is.
    engine
        .any_session(ids[1])
        .and_then(|mut session| session.wait(Some(now)))
        .unwrap();
    assert!(engine.maintain(now).is_empty());
    assert_eq!(away(&engine), [false, true]);
}

#[test]
fn states_are_told_apart() {
    let folder = stories();
    let ask = request(&folder, &[1, 2, 3], &[], 3);
    let settings = Settings::for_requests(&open(&folder), std::slice::from_ref(&ask), 64).unwrap();
    let mut engine = load(&folder, settings);
    let id = engine.open(ask.clone()).unwrap();
    let told = |done: Result<(), EngineError>| done.unwrap_err().to_string();
    assert_eq!(
        told(
            engine
                .any_session(id)
                .and_then(|mut session| session.resume())
        ),
        "session 0 is ready, not waiting or paused"
    );
    engine
        .any_session(id)
        .and_then(|mut session| session.wait(None))
        .unwrap();
    assert!(engine.is_idle() && engine.step().unwrap().is_empty());
    engine
        .any_session(id)
        .and_then(|mut session| session.wait(None))
        .unwrap();
    assert_eq!(
        told(
            engine
                .any_session(id)
                .and_then(|mut session| session.append(&[1], 1, &[]))
        ),
        "session 0 is not kept: nothing can be said to it after its prompt"
    );
    engine
        .any_session(id)
        .and_then(|mut session| session.resume())
        .unwrap();
    while !engine.is_idle() {
        engine.step().unwrap();
    }
    assert_eq!(
        told(
            engine
                .any_session(id)
                .and_then(|mut session| session.resume())
        ),
        "session 0 is done, not waiting or paused"
    );
    assert_eq!(engine.close(id).unwrap().generated.len(), 3);
    assert_eq!(
        told(
            engine
                .any_session(id)
                .and_then(|mut session| session.wait(None))
        ),
        "there is no session 0"
    );
    // More than the pages there are is refused at once, and nothing is left of it.
    let long = request(&folder, &[1; 40], &[], 3);
    let settings = Settings::for_requests(&open(&folder), std::slice::from_ref(&long), 64);
    let settings = Settings {
        pages: 2,
        host_pages: 9,
        ..settings.unwrap()
    };
    let mut engine = load(&folder, settings);
    let refused = engine.open(long);
    assert!(matches!(refused, Err(EngineError::OutOfPages(_))));
    engine.check_integrity();
    assert!(engine.is_idle());
}
