//! More sessions than memory: sessions that wait, resume, are cancelled, fork or are evicted give
//! the bits of a session that runs alone with enough memory.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    path::Path,
    time::{Duration, Instant},
};

use common::{FAMILIES, How, family, golden, ids, open, request, stories};
use djinn_engine::{
    Blueprint, Class, Engine, EngineError, FailureKind, Finish, Request, Sampling, SessionFailure,
    SessionId, SessionStatus, Settings, Tier, Transcript,
};
use djinn_weights::MemorySettings;

/// Pseudorandom numbers. A failure prints the seed.
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

/// Creates a request with random tokens, class and sampling parameters.
fn random_request(folder: &Path, tokens: &[u32], random: &mut Random) -> Request {
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

/// Tokens, bits of log-probabilities and finish reason of a session.
type SessionResult = (Vec<u32>, Vec<(u32, u32)>, Option<Finish>);

fn result_of(transcript: &Transcript) -> SessionResult {
    let logprobs = transcript.logprobs.iter().flatten();
    let bits = logprobs.map(|l| (l.token, l.logprob.to_bits())).collect();
    (transcript.generated.clone(), bits, transcript.finish)
}

/// Runs each request alone, one after the other.
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

/// Returns settings for `most` sessions per pass, with device pages for one session in `share`.
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

/// Loads an engine with a disk tier and `host_pages` pages in host memory, at least for two sessions.
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

/// Opens sessions that all wait, most of them with their pages on disk.
fn on_disk(disk: &Path) -> (Engine, Vec<SessionId>, Vec<SessionResult>) {
    let folder = stories();
    let requests: Vec<Request> = (0..24)
        .map(|i| request(&folder, &[i + 5; 60], &[], 8))
        .collect();
    let expect = alone(&folder, &requests).iter().map(result_of).collect();
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
    // Waits until the disk transfers in flight are done: nothing has moved for a while.
    let (mut last, mut quiet) = ((0, engine.kv_usage()), 0);
    while last.0 == 0 || quiet < 100 {
        engine.step().unwrap();
        std::thread::sleep(Duration::from_millis(2));
        let now = (
            engine.paging_stats().unwrap().spilled.bytes,
            engine.kv_usage(),
        );
        quiet = if now == last { quiet + 1 } else { 0 };
        last = now;
    }
    (engine, sessions, expect)
}

/// Resumes all sessions. Returns how many gave the expected result, and the failures of the others.
fn finish(
    mut engine: Engine,
    sessions: &[SessionId],
    expect: &[SessionResult],
) -> (usize, Vec<SessionFailure>) {
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
    let (mut complete, mut failures) = (0, Vec::new());
    for (&id, expect) in sessions.iter().zip(expect) {
        let transcript = engine.close(id).unwrap();
        match transcript.failure.clone() {
            Some(failure) => failures.push(failure),
            None => {
                assert!(result_of(&transcript) == *expect, "session {}", id.0);
                complete += 1;
            }
        }
    }
    engine.check_integrity();
    (complete, failures)
}

#[test]
fn a_damaged_spill_file_fails_only_the_sessions_it_held() {
    let path = |disk: &Path| {
        let file = std::fs::read_dir(disk).unwrap().next();
        file.unwrap().unwrap().path()
    };
    let name = |file: &Path| file.display().to_string();
    let disk = tempfile::tempdir().unwrap();
    let (engine, sessions, expect) = on_disk(disk.path());
    assert_eq!(finish(engine, &sessions, &expect), (24, vec![]));

    let (engine, sessions, expect) = on_disk(disk.path());
    let damaged = path(disk.path());
    let file = File::options().write(true).open(&damaged);
    // A byte in the middle of the first slot.
    std::os::unix::fs::FileExt::write_all_at(&file.unwrap(), &[0x55], 1000).unwrap();
    let (complete, failures) = finish(engine, &sessions, &expect);
    assert!(
        complete >= 22 && complete + failures.len() == 24,
        "{complete} {failures:?}"
    );
    assert!(!failures.is_empty());
    let names_file = |failure: &SessionFailure| {
        failure.kind == FailureKind::Spill && failure.message.contains(&name(&damaged))
    };
    assert!(failures.iter().all(names_file), "{failures:?}");

    let (engine, sessions, expect) = on_disk(disk.path());
    let damaged = path(disk.path());
    let file = File::options().write(true).open(&damaged);
    file.unwrap().set_len(5000).unwrap();
    let (complete, failures) = finish(engine, &sessions, &expect);
    assert!(
        complete > 0 && complete + failures.len() == 24,
        "{complete} {failures:?}"
    );
    assert!(!failures.is_empty());
    let names_file = |failure: &SessionFailure| {
        failure.kind == FailureKind::Spill && failure.message.contains(&name(&damaged))
    };
    assert!(failures.iter().all(names_file), "{failures:?}");
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

/// A conversation continues from its KV pages: each turn generates the tokens that a fresh session
/// generates after the whole text so far.
#[test]
fn a_conversation_continues_from_its_pages() {
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
            // On a GPU, prompt tokens and generated tokens use different kernels.
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
        assert!(result_of(&both[0]) == result_of(&both[1]), "{folder:?}");
        assert_eq!(
            (both[0].logprobs.len(), both[0].generated.len()),
            (logprobs, 18)
        );
        assert_eq!(both[0].prompt, prompt);
        engine.check_integrity();
    }
}

#[test]
fn unchanged_pages_are_copied_out_once() {
    let folder = stories();
    let ask = request(&folder, &[5; 100], &[], 30);
    let expect = result_of(&alone(&folder, std::slice::from_ref(&ask))[0]);
    let mut engine = load(&folder, tight(&folder, &[ask.clone(), ask.clone()], 2, 1));
    let page = engine.blueprint().page_bytes();
    let id = engine.open(ask).unwrap();
    let mut copied = Vec::new();
    for _ in 0..3 {
        // The prompt and one token, or two tokens.
        engine.step().unwrap();
        engine.step().unwrap();
        engine
            .any_session(id)
            .and_then(|mut session| session.wait(None))
            .unwrap();
        engine.check_integrity();
        copied.push(engine.paging_stats().unwrap().copied_out.bytes / page);
        engine
            .any_session(id)
            .and_then(|mut session| session.resume())
            .unwrap();
    }
    // Seven pages of prompt; then only the page that tokens were added to.
    assert_eq!(copied, [7, 8, 9]);
    while !engine.is_idle() {
        engine.step().unwrap();
    }
    assert!(result_of(&engine.close(id).unwrap()) == expect);
    engine.check_integrity();
}

/// Returns whether pages were copied to host memory, and whether pages were copied back.
fn moved(engine: &mut Engine) -> (bool, bool) {
    let paged = engine.paging_stats().unwrap();
    (paged.copied_out.bytes > 0, paged.copied_in.bytes > 0)
}

#[test]
fn an_expected_session_keeps_its_frames_until_others_need_them() {
    let folder = stories();
    let asks = [5, 6].map(|token| request(&folder, &[token; 100], &[], 30));
    let expect: Vec<SessionResult> = alone(&folder, &asks).iter().map(result_of).collect();
    // The device has room for one of the two sessions.
    let mut engine = load(&folder, tight(&folder, &asks, 2, 2));
    let id = engine.open(asks[0].clone()).unwrap();
    for _ in 0..9 {
        engine.step().unwrap();
    }
    let now = Instant::now();
    // A session expected at once moves nothing.
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
    // A session expected in a minute is copied to host memory and stays on the device.
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
    assert_eq!(
        moved(&mut engine),
        (true, false),
        "the pages stayed on the device"
    );
    // Another session takes the frames: unchanged pages are not copied again.
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
    assert!(result_of(&engine.close(other).unwrap()) == expect[1]);
    assert_eq!(moved(&mut engine), (true, false), "too early to prefetch");
    assert!(engine.maintain(now + minute).is_empty());
    assert_eq!(
        moved(&mut engine),
        (true, true),
        "prefetched before the session resumes"
    );
    engine.check_integrity();
    engine
        .any_session(id)
        .and_then(|mut session| session.resume())
        .unwrap();
    while !engine.is_idle() {
        engine.step().unwrap();
    }
    assert!(result_of(&engine.close(id).unwrap()) == expect[0]);
    engine.check_integrity();
}

#[test]
fn pages_have_no_host_copies_while_host_memory_is_short() {
    let folder = stories();
    let asks = [5, 6].map(|token| Request {
        keep: true,
        ..request(&folder, &[token; 100], &[], 4)
    });
    // The device has room for both sessions, host memory for one.
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
    // The first session is copied and stays; the second is evicted and takes the frames of the copies.
    assert_eq!(held, [(7, 7), (7, 7)]);
    let away: Vec<usize> = engine.list(None).iter().map(|info| info.away).collect();
    assert_eq!(away, [0, 7]);
}

#[test]
fn an_expected_session_takes_the_frames_of_an_unexpected_one() {
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
    // Both wait; the second is on the device, the first is not.
    let away = |engine: &Engine| {
        let all = engine.list(None).into_iter();
        all.map(|info| info.away > 0).collect::<Vec<_>>()
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
    assert!(
        out.bytes > back.bytes,
        "host memory had a copy of the second session"
    );
    // A session expected at the same time does not take the frames.
    engine
        .any_session(ids[1])
        .and_then(|mut session| session.wait(Some(now)))
        .unwrap();
    assert!(engine.maintain(now).is_empty());
    assert_eq!(away(&engine), [false, true]);
}

#[test]
fn operations_in_the_wrong_status_are_rejected() {
    let folder = stories();
    let ask = request(&folder, &[1, 2, 3], &[], 3);
    let settings = Settings::for_requests(&open(&folder), std::slice::from_ref(&ask), 64).unwrap();
    let mut engine = load(&folder, settings);
    let id = engine.open(ask.clone()).unwrap();
    let resume = |engine: &mut Engine| {
        let session = engine.any_session(id);
        session.and_then(|mut session| session.resume())
    };
    let wait = |engine: &mut Engine| {
        let session = engine.any_session(id);
        session.and_then(|mut session| session.wait(None))
    };
    let wrong_status = |result: Result<(), EngineError>| match result {
        Err(EngineError::WrongStatus { status, .. }) => status,
        other => panic!("{other:?}"),
    };
    let status = wrong_status(resume(&mut engine));
    assert_eq!(status, SessionStatus::Ready);
    wait(&mut engine).unwrap();
    assert!(engine.is_idle() && engine.step().unwrap().is_empty());
    wait(&mut engine).unwrap();
    let appended = engine
        .any_session(id)
        .and_then(|mut session| session.append(&[1], 1, &[]));
    assert!(matches!(appended, Err(EngineError::NotKept(_))));
    resume(&mut engine).unwrap();
    while !engine.is_idle() {
        engine.step().unwrap();
    }
    let status = wrong_status(resume(&mut engine));
    assert_eq!(status, SessionStatus::Done);
    assert_eq!(engine.close(id).unwrap().generated.len(), 3);
    let closed = wait(&mut engine);
    assert!(matches!(closed, Err(EngineError::NoSession(_))));
}

#[test]
fn a_request_larger_than_the_device_is_rejected_at_once() {
    let folder = stories();
    let long = request(&folder, &[1; 40], &[], 3);
    let settings = Settings::for_requests(&open(&folder), std::slice::from_ref(&long), 64);
    let settings = Settings {
        pages: 2,
        host_pages: 9,
        ..settings.unwrap()
    };
    let mut engine = load(&folder, settings);
    let rejected = engine.open(long);
    assert!(matches!(rejected, Err(EngineError::OutOfPages(_))));
    engine.check_integrity();
    assert!(engine.is_idle());
}
