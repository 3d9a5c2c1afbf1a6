//! The prefix cache: requests reuse the pages of sessions that have ended, and give the bits of an
//! engine that keeps none.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::{collections::BTreeMap, fs::File, os::unix::fs::FileExt, path::Path, time::Duration};

use common::faulty_disk::{HEALTHY, on_faulty_disk};
use common::paging::{Random, load, load_with_disk, tight};
use common::{Bits, How, bits, open, request, request_edited, stories};
use djinn_engine::{
    Engine, EngineError, PrefixCacheSettings, Request, SessionId, Settings, SharePrefixes,
    Transcript,
};

const PAGE: usize = Settings::PAGE_TOKENS;

/// Settings for `sessions` sessions that each may take the whole context.
fn settings(sessions: usize) -> Settings {
    let settings = Settings::for_sessions(&open(&stories()).program, sessions, 256, 64).unwrap();
    Settings {
        logit_rows: 64,
        ..settings
    }
}

fn engine(sessions: usize) -> Engine {
    load(&stories(), settings(sessions))
}

/// Prompt of `len` tokens.
fn prompt(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32)
        .map(|at| 5 + (at * 7 + seed * 31) % 400)
        .collect()
}

fn run_out(engine: &mut Engine) {
    while !engine.is_idle() {
        engine.step().unwrap();
        engine.check_integrity();
    }
}

/// Runs a request to its end. Returns its transcript and the number of tokens from the cache.
fn run(engine: &mut Engine, request: Request) -> (Transcript, usize) {
    let id = engine.open(request).unwrap();
    run_out(engine);
    let reused = engine.view(id).unwrap().reused();
    (engine.close(id).unwrap(), reused)
}

/// Number of tokens that a request of `prompt` tokens takes from the cache, which has `cached`
/// tokens of it.
fn reusable(cached: usize, prompt: usize) -> usize {
    cached.min(prompt - 1) / PAGE * PAGE
}

#[test]
fn a_repeated_prompt_runs_only_its_last_tokens() {
    let (folder, mut engine) = (stories(), engine(2));
    let asked = request(&folder, &prompt(1, 200), &[], 6);
    let (first, reused) = run(&mut engine, asked.clone());
    assert_eq!(reused, 0);
    let passes = engine.passes();
    let (second, reused) = run(&mut engine, asked.clone());
    assert_eq!((bits(&second), reused), (bits(&first), reusable(200, 200)));
    // One pass for the rest of the prompt, and one for each token but the last.
    assert_eq!(engine.passes() - passes, 6);
    let stats = engine.prefix_cache_stats();
    assert_eq!(
        (stats.lookups, stats.hits, stats.tokens_reused),
        (2, 1, 192)
    );
    assert!(
        stats.device_bytes > 0 && stats.pages_evicted == 0,
        "{stats:?}"
    );
    assert_eq!(
        engine.kv_usage().device.used,
        0,
        "cached pages count as free"
    );
    // A prompt that ends on the boundary of a page runs its last page.
    let (_, reused) = run(&mut engine, request(&folder, &prompt(1, 6 * PAGE), &[], 1));
    assert_eq!(reused, 5 * PAGE);
}

#[test]
fn a_chat_computes_only_what_is_new() {
    let (folder, mut engine) = (stories(), engine(2));
    if !How::default().backend().phases_agree() {
        return;
    }
    let mut tokens = prompt(3, 20);
    let mut computed = 0;
    for turn in 0..8 {
        let asked = request(&folder, &tokens, &[], 9);
        let (transcript, reused) = run(&mut engine, asked);
        assert_eq!(reused, reusable(computed, tokens.len()), "turn {turn}");
        // The last generated token has not run.
        computed = tokens.len() + transcript.generated.len() - 1;
        tokens.extend(&transcript.generated);
        tokens.extend(prompt(turn, 5));
    }
}

#[test]
fn owners_share_only_where_asked() {
    for (share, expect) in [(SharePrefixes::Owner, 0), (SharePrefixes::All, 96)] {
        let mut engine = engine(2);
        engine.set_prefix_cache(PrefixCacheSettings {
            share,
            ..PrefixCacheSettings::default()
        });
        for (owner, expect) in [("ada", 0), ("bert", expect), ("ada", 96)] {
            let asked = Request {
                owner: owner.to_owned(),
                ..request(&stories(), &prompt(1, 100), &[], 2)
            };
            let (_, reused) = run(&mut engine, asked);
            assert_eq!(reused, expect, "{share:?} {owner}");
        }
    }
}

#[test]
fn the_limit_bounds_what_ended_sessions_keep() {
    let page_bytes = engine(1).blueprint().page_bytes();
    for pages in [0, 3] {
        let mut engine = engine(2);
        engine.set_prefix_cache(PrefixCacheSettings {
            limit: Some(pages as u64 * page_bytes),
            ..PrefixCacheSettings::default()
        });
        let asked = request(&stories(), &prompt(1, 100), &[], 2);
        run(&mut engine, asked.clone());
        assert_eq!(
            engine.prefix_cache_stats().device_bytes,
            pages as u64 * page_bytes
        );
        let (_, reused) = run(&mut engine, asked);
        assert_eq!(reused, pages * PAGE);
    }
}

#[test]
fn captured_positions_run_and_edited_pages_stay_private() {
    let folder = stories();
    let tokens = prompt(2, 100);
    let captured =
        |patterns: &[&str], edits: &[&str]| request_edited(&folder, &tokens, patterns, 3, edits);
    let alone = |request: Request| bits(&run(&mut engine(1), request).0);
    let plain = captured(&[], &[]);
    let all = captured(&["blocks.*.hook_resid_post"], &[]);
    let late = captured(&["blocks.2.hook_resid_post@60"], &[]);
    let edited = captured(
        &["blocks.2.hook_resid_post@70"],
        &["blocks.1.hook_resid_post:scale=0.5@40..45"],
    );
    let mut engine = engine(2);
    let order = [
        // An edited session publishes the pages before its first edit.
        (&edited, 0),
        (&plain, 32),
        (&all, 0),
        (&late, 48),
        (&edited, 32),
        (&plain, 96),
    ];
    for (number, (request, expect)) in order.into_iter().enumerate() {
        let (transcript, reused) = run(&mut engine, request.clone());
        assert_eq!(reused, expect, "request {number}");
        assert!(
            bits(&transcript) == alone(request.clone()),
            "request {number}"
        );
    }
}

/// A request of a random conversation: a shared beginning, maybe an answer of an earlier request,
/// and captures and edits at random positions.
fn random_request(folder: &Path, random: &mut Random, past: &[(Vec<u32>, Vec<u32>)]) -> Request {
    let mut tokens = prompt(random.below(3) as u32, 1 + random.below(90));
    if !past.is_empty() && random.below(2) == 0 {
        let (prompt, answer) = &past[random.below(past.len())];
        tokens = prompt.iter().chain(answer).copied().collect();
        tokens.truncate(120);
    }
    tokens.extend(prompt(random.below(50) as u32, random.below(20)));
    let at = random.below(tokens.len());
    let (capture, edit) = (
        format!("blocks.2.hook_resid_post@{at}"),
        format!("blocks.1.hook_resid_post:scale=0.5@{at}"),
    );
    let captures: &[&str] = match random.below(6) {
        0 => &[&capture],
        1 => &["logits"],
        _ => &[],
    };
    let edits: &[&str] = if random.below(5) == 0 { &[&edit] } else { &[] };
    let generate = 1 + random.below(24);
    Request {
        keep: random.below(4) == 0,
        owner: ["ada", "bert"][random.below(2)].to_owned(),
        ..request_edited(folder, &tokens, captures, generate, edits)
    }
}

/// Runs a request and, where it is kept, another turn, alone on an engine without a cache.
fn expected(engine: &mut Engine, request: &Request) -> Bits {
    let id = engine.open(request.clone()).unwrap();
    run_out(engine);
    if request.keep {
        append(engine, id);
        run_out(engine);
    }
    bits(&engine.close(id).unwrap())
}

fn append(engine: &mut Engine, id: SessionId) {
    let appended = engine
        .any_session(id)
        .and_then(|mut session| session.append(&[9, 8, 7], 5, &[]));
    appended.unwrap();
}

/// Runs the requests, several at once and in any order; some are forked, some wait, some are
/// closed before they end. Compares every result.
fn run_randomly(engine: &mut Engine, requests: &[Request], expect: &[Bits], random: &mut Random) {
    let seed = random.0;
    let mut open: BTreeMap<SessionId, (usize, usize)> = BTreeMap::new();
    let mut waiting = Vec::new();
    let (mut next, mut done) = (0, 0);
    while next < requests.len() || !open.is_empty() {
        if next < requests.len() && open.len() < 6 && random.below(2) == 0 {
            open.insert(engine.open(requests[next].clone()).unwrap(), (next, 0));
            next += 1;
        }
        let outputs = engine.step().unwrap();
        engine.check_integrity();
        for output in outputs {
            let (number, turn) = open[&output.session];
            let (id, keep) = (output.session, requests[number].keep);
            if output.finish.is_some() {
                assert_eq!(output.failure, None, "request {number}, seed {seed}");
            }
            if output.finish.is_some() && keep && turn == 0 {
                append(engine, id);
                open.insert(id, (number, 1));
            } else if output.finish.is_some() {
                open.remove(&id);
                let found = bits(&engine.close(id).unwrap());
                assert!(found == expect[number], "request {number}, seed {seed}");
                done += 1;
            } else if random.below(20) == 0 {
                engine
                    .any_session(id)
                    .and_then(|mut session| session.wait(None))
                    .unwrap();
                waiting.push(id);
            } else if random.below(60) == 0 {
                engine.close(id).unwrap();
                open.remove(&id);
            } else if expect[number].1.is_empty() && open.len() < 7 && random.below(30) == 0 {
                // A fork has no captures of its origin. A session with edits needs room at once.
                let fork = engine
                    .any_session(id)
                    .and_then(|mut session| session.fork(None));
                match fork {
                    Ok(fork) => drop(open.insert(fork, (number, turn))),
                    Err(error) => assert!(matches!(error, EngineError::NoRoomToFork(_))),
                }
            }
        }
        if !waiting.is_empty() && (engine.is_idle() || random.below(3) == 0) {
            let id = waiting.swap_remove(random.below(waiting.len()));
            engine
                .any_session(id)
                .and_then(|mut session| session.resume())
                .unwrap();
        }
    }
    assert!(2 * done > requests.len(), "{done} of {}", requests.len());
}

#[test]
fn random_requests_give_the_bits_of_an_engine_without_a_cache() {
    let folder = stories();
    let mut alone = engine(1);
    alone.set_prefix_cache(PrefixCacheSettings::OFF);
    for round in 0..6u64 {
        let mut random = Random(round);
        let (mut requests, mut expect, mut past) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..28 {
            let request = random_request(&folder, &mut random, &past);
            let found = expected(&mut alone, &request);
            past.push((request.tokens.clone(), found.0.clone()));
            requests.push(request);
            expect.push(found);
        }
        assert_eq!(alone.prefix_tokens_reused(), 0);
        let largest = 256 / PAGE;
        let tight = Settings {
            sessions: 3,
            open: 8,
            rows: 64,
            ..settings(3)
        };
        let disk = tempfile::tempdir().unwrap();
        let mut engine = match round % 3 {
            // Everything fits on the device; only a few pages are free for the cache.
            0 => load(
                &folder,
                Settings {
                    open: 8,
                    pages: largest + 4,
                    ..tight
                },
            ),
            1 => load(
                &folder,
                Settings {
                    pages: largest,
                    host_pages: 2 * largest,
                    ..tight
                },
            ),
            _ => {
                let settings = Settings {
                    pages: largest,
                    host_pages: 4 * largest,
                    ..tight
                };
                load_with_disk(&folder, settings, 2 * largest, disk.path())
            }
        };
        let limit = (round > 2).then(|| 30 * engine.blueprint().page_bytes());
        let share = [SharePrefixes::Owner, SharePrefixes::All][round as usize % 2];
        engine.set_prefix_cache(PrefixCacheSettings {
            share,
            limit,
            ..PrefixCacheSettings::default()
        });
        run_randomly(&mut engine, &requests, &expect, &mut random);
        let stats = engine.prefix_cache_stats();
        assert!(stats.hits > 3 && stats.pages_evicted > 0, "{stats:?}");
        assert!(
            stats.lookups >= stats.hits && stats.tokens_reused > 100,
            "{stats:?}"
        );
    }
}

/// Engine with few device pages, whose cache has the pages of `many` prompts, most of them on
/// disk.
fn with_pages_on_disk(folder: &Path, many: u32, disk: &Path) -> Engine {
    let requests: Vec<Request> = (0..many).map(|i| asked_of(folder, i)).collect();
    let mut engine = load_with_disk(folder, tight(folder, &requests, 2, many as usize), 0, disk);
    for request in requests {
        run(&mut engine, request);
        // Waits until no page moves to disk.
        let mut last = (u64::MAX, 0);
        while last.1 < 20 {
            engine.maintain(std::time::Instant::now());
            std::thread::sleep(Duration::from_millis(1));
            let now = engine.paging_stats().unwrap().spilled.bytes;
            last = if now == last.0 {
                (now, last.1 + 1)
            } else {
                (now, 0)
            };
        }
    }
    engine
}

#[test]
fn cached_pages_are_in_host_memory_before_a_session_takes_their_frames() {
    let folder = stories();
    let largest = 128 / PAGE;
    let settings = Settings {
        pages: largest,
        host_pages: 8 * largest,
        ..Settings::for_sessions(&open(&folder).program, 1, 128, 64).unwrap()
    };
    let mut engine = load(&folder, settings);
    for round in 0..2 {
        // Each prompt takes most of the frames of the device.
        for number in 0..6 {
            let (_, reused) = run(&mut engine, asked_of(&folder, number));
            assert_eq!(reused, round * 96, "prompt {number}");
        }
    }
    assert_eq!(engine.prefix_cache_stats().pages_evicted, 0);
}

fn asked_of(folder: &Path, number: u32) -> Request {
    request(folder, &prompt(number, 100), &[], 3)
}

#[test]
fn pages_on_disk_are_reused_and_lost_ones_are_computed_again() {
    let folder = stories();
    let expect: Vec<Bits> = (0..12)
        .map(|i| bits(&run(&mut engine(1), asked_of(&folder, i)).0))
        .collect();
    for is_damaged in [false, true] {
        let disk = tempfile::tempdir().unwrap();
        let mut engine = with_pages_on_disk(&folder, 12, disk.path());
        let stats = engine.prefix_cache_stats();
        assert!(stats.disk_bytes > 0 && stats.host_bytes > 0, "{stats:?}");
        if is_damaged {
            let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
            let mut paths = descriptors.map(|entry| entry.unwrap().path());
            let is_spill = |path: &std::path::PathBuf| {
                std::fs::read_link(path).is_ok_and(|to| to.starts_with(disk.path()))
            };
            let path = paths.find(is_spill).unwrap();
            let file = File::options().write(true).open(path).unwrap();
            let end = file.metadata().unwrap().len();
            for at in (0..end).step_by(512) {
                file.write_all_at(&[0x55; 8], at).unwrap();
            }
        }
        let mut reused = 0;
        for (number, expect) in expect.iter().enumerate() {
            let (transcript, tokens) = run(&mut engine, asked_of(&folder, number as u32));
            assert_eq!(transcript.failure, None, "request {number}");
            assert!(bits(&transcript) == *expect, "request {number}");
            reused += tokens;
        }
        let fetched = engine.paging_stats().unwrap().fetched.bytes;
        assert!(fetched > 0, "pages came from disk");
        assert!(
            is_damaged || reused > 3 * PAGE,
            "{reused} tokens from the cache"
        );
    }
}

#[test]
fn a_failed_pass_leaves_nothing_in_the_cache() {
    let folder = stories();
    let asked = request(&folder, &prompt(1, 100), &[], 4);
    let how = How {
        memory: djinn_weights::MemorySettings {
            overrides: djinn_weights::Overrides {
                keep: djinn_weights::Keep::Nothing,
                ring: None,
            },
            ..djinn_weights::MemorySettings::default()
        },
        ..How::default()
    };
    let (model, disk) = on_faulty_disk(&folder);
    let mut engine = common::load(model, &[asked.clone(), asked.clone()], how);
    let (expect, _) = run(&mut engine, asked.clone());
    assert!(engine.prefix_cache_stats().device_bytes > 0);
    let id = engine.open(asked.clone()).unwrap();
    disk.reads_left
        .store(1, std::sync::atomic::Ordering::SeqCst);
    while engine.step().is_ok() {}
    engine.close(id).unwrap();
    engine.check_integrity();
    assert_eq!(engine.prefix_cache_stats().device_bytes, 0);
    disk.reads_left
        .store(HEALTHY, std::sync::atomic::Ordering::SeqCst);
    let (found, reused) = run(&mut engine, asked);
    assert_eq!((bits(&found), reused), (bits(&expect), 0));
}
