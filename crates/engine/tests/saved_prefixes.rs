//! The prefix cache of a state folder: an engine that starts again reuses pages that the engine before it
//! has computed, and gives the same bits.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::{
    fs,
    path::Path,
    time::{Duration, Instant, SystemTime},
};

use common::paging::{load_in, load_with_disk_in};
use common::{Bits, FAMILIES, KV_DTYPES, bits, family, open, request, stories, with_kv};
use djinn_engine::{
    Engine, PrefixCacheSettings, Request, RestoreScope, Restored, SavedPrefixes, Settings,
    SharePrefixes, StateFolder,
};
use djinn_types::KvDtype;
use djinn_weights::MemorySettings;

const PAGE: usize = Settings::PAGE_TOKENS;

/// Name of the file of saved pages in a state folder.
const FILE: &str = "prefixes.djinn";

fn prompt(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32)
        .map(|at| 5 + (at * 7 + seed * 31) % 90)
        .collect()
}

fn memory(kv_dtype: KvDtype) -> MemorySettings {
    with_kv(kv_dtype).memory
}

/// Engine with device pages for one session of 128 tokens, and with room for more in host memory.
fn engine(folder: &Path, memory: MemorySettings) -> Engine {
    let settings = Settings::for_sessions(&open(folder).program, 2, 128, 64).unwrap();
    let settings = Settings {
        pages: settings.pages / 2,
        host_pages: 3 * settings.pages,
        ..settings
    };
    load_in(folder, settings, memory)
}

fn attach(engine: &mut Engine, state: &Path) -> Restored {
    let folder = StateFolder::open(state).unwrap();
    engine.attach_state(folder, RestoreScope::All).unwrap()
}

/// Saves pages with enough time.
fn save_now(engine: &mut Engine) -> SavedPrefixes {
    let until = Instant::now() + Duration::from_secs(600);
    engine.save_prefixes(until).unwrap()
}

/// Runs a request alone. Returns its result and the number of tokens that it reused.
fn run(engine: &mut Engine, request: Request) -> (Bits, usize) {
    let id = engine.open(request).unwrap();
    while !engine.is_idle() {
        engine.step().unwrap();
        engine.check_integrity();
    }
    let reused = engine.view(id).unwrap().reused();
    (bits(&engine.close(id).unwrap()), reused)
}

#[test]
fn a_restarted_engine_reuses_saved_pages() {
    for name in FAMILIES {
        let folder = family(name);
        let asked = request(&folder, &prompt(1, 50), &[], 6);
        for kv_dtype in KV_DTYPES {
            let state = tempfile::tempdir().unwrap();
            let mut first = engine(&folder, memory(kv_dtype));
            assert_eq!(attach(&mut first, state.path()).prefixes.pages, 0);
            let (expect, reused) = run(&mut first, asked.clone());
            assert_eq!(reused, 0);
            let saved = save_now(&mut first);
            assert!(saved.pages >= 50 / PAGE, "{name}: {saved:?}");
            assert_eq!(
                saved.bytes,
                saved.pages as u64 * first.blueprint().page_bytes()
            );
            drop(first);

            let mut second = engine(&folder, memory(kv_dtype));
            let restored = attach(&mut second, state.path());
            assert_eq!(restored.prefixes, saved, "{name}");
            assert!(restored.prefixes_left.is_none());
            second.check_integrity();
            let (found, reused) = run(&mut second, asked.clone());
            assert_eq!(reused, 50 / PAGE * PAGE, "{name}");
            assert!(found == expect, "{name} with {kv_dtype}");
        }
    }
}

#[test]
fn pages_of_every_tier_are_saved_and_return_to_every_tier() {
    let (folder, state) = (stories(), tempfile::tempdir().unwrap());
    let all = MemorySettings::default();
    let settings = |sessions| Settings::for_sessions(&open(&folder).program, sessions, 128, 64);
    let large = || load_in(&folder, settings(6).unwrap(), all);
    let disk = tempfile::tempdir().unwrap();
    let small = || {
        let settings = settings(1).unwrap();
        let settings = Settings {
            host_pages: 6 * settings.pages,
            ..settings
        };
        let host_pages = 2 * settings.pages;
        load_with_disk_in(&folder, settings, host_pages, disk.path(), all)
    };
    let asked = |seed| request(&folder, &prompt(seed, 100), &[], 3);
    let mut engine = large();
    attach(&mut engine, state.path());
    let expect: Vec<Bits> = (0..6).map(|seed| run(&mut engine, asked(seed)).0).collect();
    let saved = save_now(&mut engine);
    drop(engine);

    let mut engine = small();
    assert_eq!(attach(&mut engine, state.path()).prefixes, saved);
    let stats = engine.prefix_cache_stats();
    let tiers = [stats.device_bytes, stats.host_bytes, stats.disk_bytes];
    assert!(tiers.iter().all(|&bytes| bytes > 0), "{stats:?}");
    assert_eq!(tiers.iter().sum::<u64>(), saved.bytes);
    assert_eq!(save_now(&mut engine).pages, 0, "nothing is new");
    // Pages that were on disk come first, before other pages need their frames.
    for (seed, expect) in expect.iter().enumerate() {
        let (found, reused) = run(&mut engine, asked(seed as u32));
        assert!(found == *expect, "request {seed}");
        assert!(seed > 0 || reused == 96, "{reused} tokens reused");
    }
    run(&mut engine, asked(6));
    let again = save_now(&mut engine);
    drop(engine);

    let mut engine = large();
    assert_eq!(attach(&mut engine, state.path()).prefixes, again);
    let mut reused = 0;
    for (seed, expect) in expect.iter().enumerate() {
        let (found, tokens) = run(&mut engine, asked(seed as u32));
        assert!(found == *expect, "request {seed}");
        reused += tokens;
    }
    assert!(reused >= 96, "{reused} tokens reused");
}

#[test]
fn an_archive_stays_without_time_for_a_new_one_and_unfinished_ones_go() {
    let state = tempfile::tempdir().unwrap();
    let saved = save(state.path(), PrefixCacheSettings::default());
    let path = state.path().join(FILE);
    let before = fs::read(&path).unwrap();
    // A killed process with the number of this one has left the name that the next archive gets.
    let unfinished = (0..9).map(|n| format!("{FILE}.{}-{n}.tmp", std::process::id()));
    let unfinished: Vec<_> = unfinished.map(|name| state.path().join(name)).collect();
    unfinished
        .iter()
        .for_each(|path| fs::write(path, "x").unwrap());
    let mut engine = engine(&stories(), MemorySettings::default());
    assert_eq!(attach(&mut engine, state.path()).prefixes, saved);
    assert!(unfinished.iter().all(|path| !path.exists()));
    run(&mut engine, request(&stories(), &prompt(2, 100), &[], 3));
    assert_eq!(engine.save_prefixes(Instant::now()).unwrap().pages, 0);
    assert_eq!(fs::read(&path).unwrap(), before);
    assert!(save_now(&mut engine).pages > saved.pages);
}

#[test]
fn a_model_whose_files_have_changed_uses_no_saved_pages() {
    let (state, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for entry in fs::read_dir(stories()).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    let all = MemorySettings::default();
    let mut first = engine(copy.path(), all);
    attach(&mut first, state.path());
    run(&mut first, request(copy.path(), &prompt(1, 100), &[], 3));
    let saved = save_now(&mut first);
    drop(first);
    assert_eq!(
        attach(&mut engine(copy.path(), all), state.path()).prefixes,
        saved
    );
    let weights = fs::File::options()
        .append(true)
        .open(copy.path().join("model.safetensors"));
    let later = SystemTime::now() + Duration::from_secs(60);
    weights.unwrap().set_modified(later).unwrap();
    let restored = attach(&mut engine(copy.path(), all), state.path());
    assert!(restored.prefixes.pages == 0 && restored.prefixes_left.is_some());
}

#[test]
fn a_kept_session_continues_without_computing_saved_pages() {
    let folder = stories();
    let asked = Request {
        keep: true,
        ..request(&folder, &prompt(3, 60), &[], 4)
    };
    let more = [9, 8, 7];
    let run_turn = |engine: &mut Engine, id| {
        engine
            .any_session(id)
            .unwrap()
            .append(&more, 4, &[])
            .unwrap();
        while !engine.is_idle() {
            engine.step().unwrap();
        }
        engine.view(id).unwrap().reused()
    };
    let turn = |engine: &mut Engine| {
        let id = engine.open(asked.clone()).unwrap();
        while !engine.is_idle() {
            engine.step().unwrap();
        }
        id
    };
    let mut whole = engine(&folder, MemorySettings::default());
    let id = turn(&mut whole);
    run_turn(&mut whole, id);
    let expect = bits(&whole.close(id).unwrap());

    let state = tempfile::tempdir().unwrap();
    let mut first = engine(&folder, MemorySettings::default());
    attach(&mut first, state.path());
    let id = turn(&mut first);
    save_now(&mut first);
    drop(first);
    let mut second = engine(&folder, MemorySettings::default());
    assert_eq!(attach(&mut second, state.path()).sessions, [id]);
    assert!(run_turn(&mut second, id) >= 48);
    assert!(bits(&second.close(id).unwrap()) == expect);
}

/// Saves the pages of one request in a folder, and returns what was saved.
fn save(state: &Path, settings: PrefixCacheSettings) -> SavedPrefixes {
    let folder = stories();
    let mut engine = engine(&folder, MemorySettings::default());
    engine.set_prefix_cache(settings);
    attach(&mut engine, state);
    run(&mut engine, request(&folder, &prompt(1, 100), &[], 3));
    save_now(&mut engine)
}

/// Opens a folder with an engine of these settings. Returns the number of pages that it read, whether it
/// gives a reason for pages that it did not read, and the number of tokens that a request of `owner` reuses.
fn reopen(
    state: &Path,
    model: &Path,
    settings: PrefixCacheSettings,
    kv_dtype: KvDtype,
    owner: &str,
) -> (usize, bool, usize) {
    let mut engine = engine(model, memory(kv_dtype));
    engine.set_prefix_cache(settings);
    let restored = attach(&mut engine, state);
    let asked = Request {
        owner: owner.to_owned(),
        ..request(model, &prompt(1, 100), &[], 3)
    };
    let (_, reused) = run(&mut engine, asked);
    let has_reason = restored.prefixes_left.is_some();
    (restored.prefixes.pages, has_reason, reused)
}

#[test]
fn saved_pages_of_other_bits_or_owners_are_not_used() {
    let (folder, any) = (stories(), PrefixCacheSettings::default());
    let state = tempfile::tempdir().unwrap();
    let saved = save(state.path(), any);
    let auto = MemorySettings::default().kv_dtype;
    let reopen =
        |settings, kv_dtype, owner| reopen(state.path(), &folder, settings, kv_dtype, owner);
    assert_eq!(reopen(any, auto, ""), (saved.pages, false, 96));
    assert_eq!(reopen(any, auto, "bert"), (saved.pages, false, 0));
    let all = PrefixCacheSettings {
        share: SharePrefixes::All,
        ..any
    };
    assert_eq!(reopen(all, auto, "bert"), (0, true, 0));
    assert_eq!(reopen(any, KvDtype::F32, ""), (0, true, 0));
    assert_eq!(reopen(PrefixCacheSettings::OFF, auto, ""), (0, false, 0));
    assert_eq!(
        reopen(any, auto, ""),
        (saved.pages, false, 96),
        "the file stays"
    );
}

#[test]
fn the_limit_bounds_the_file_and_zero_saves_nothing() {
    let page = engine(&stories(), MemorySettings::default())
        .blueprint()
        .page_bytes();
    for pages in [2, 0] {
        let state = tempfile::tempdir().unwrap();
        let settings = PrefixCacheSettings {
            saved: Some(pages * page),
            ..PrefixCacheSettings::default()
        };
        assert_eq!(save(state.path(), settings).bytes, pages * page);
        assert_eq!(state.path().join(FILE).exists(), pages > 0);
        let auto = MemorySettings::default().kv_dtype;
        let found = reopen(state.path(), &stories(), settings, auto, "");
        assert_eq!(found, (pages as usize, false, pages as usize * PAGE));
    }
}

#[test]
fn a_damaged_file_costs_no_more_than_its_pages() {
    let any = PrefixCacheSettings::default();
    let state = tempfile::tempdir().unwrap();
    let saved = save(state.path(), any);
    let path = state.path().join(FILE);
    let whole = fs::read(&path).unwrap();
    let auto = MemorySettings::default().kv_dtype;
    let mut last = 0;
    // The header, the first page, the last page, and a file that is cut off.
    let flipped = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        bytes
    };
    let end = whole.len();
    let files = [
        flipped(60),
        flipped(20),
        whole[..end - 9].to_vec(),
        flipped(end - 20),
    ];
    for (number, bytes) in files.into_iter().enumerate() {
        fs::write(&path, bytes).unwrap();
        let (pages, has_reason, reused) = reopen(state.path(), &stories(), any, auto, "");
        assert!(has_reason && reused / PAGE <= pages, "file {number}");
        last = pages;
    }
    assert_eq!(last, saved.pages - 1, "only the last page is damaged");
}
