//! KV pages of waiting sessions: when they are copied to host memory, and when they are evicted.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::time::{Duration, Instant};

use common::paging::{SessionResult, alone, load, result_of, tight};
use common::{request, stories};
use djinn_engine::{Engine, PrefixCacheSettings, Request};

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
    // Pages of ended sessions would be copied too.
    engine.set_prefix_cache(PrefixCacheSettings::OFF);
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
