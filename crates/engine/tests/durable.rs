//! Durable sessions: wherever the process ends, acknowledged state is restored, and the sessions
//! continue with the same bits.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use common::{How, open, request, stories};
use djinn_engine::{
    Blueprint, Engine, EngineError, Finish, Request, RestoreScope, Sampling, SavedFile, SessionId,
    SessionStatus, Settings, StateFolder, Transcript,
};
use djinn_wal::WalError;
use djinn_weights::MemorySettings;

/// Loads an engine for `sessions` sessions of up to 96 positions, half of them in host memory.
fn engine(sessions: usize) -> Engine {
    let (model, backend) = (open(&stories()), How::default().backend());
    let settings = Settings::for_sessions(&model.program, sessions, 96, 64).unwrap();
    let settings = Settings {
        pages: settings
            .pages
            .div_ceil(2)
            .max(settings.context.div_ceil(16)),
        host_pages: settings.pages,
        open: 1000,
        ..settings
    };
    let blueprint =
        Blueprint::draw(&model, &*backend, settings, MemorySettings::default()).unwrap();
    Engine::load(model, &*backend, blueprint, &mut |_| {}).unwrap()
}

fn restarted(sessions: usize, folder: &Path) -> Engine {
    let mut engine = engine(sessions);
    let restored = engine.attach_state(StateFolder::open(folder).unwrap(), RestoreScope::All);
    assert!(restored.unwrap().refused.is_empty());
    engine
}

/// Creates a request with its own tokens, sampling parameters and owner.
fn numbered_request(number: u64) -> Request {
    let tokens: Vec<u32> = (0..7 + number as u32 % 20)
        .map(|i| (11 * i + number as u32) % 900)
        .collect();
    Request {
        sampling: Sampling {
            temperature: (number % 3) as f32 / 2.0,
            seed: number,
            logprobs: number.is_multiple_of(2).then_some(1),
            ..Sampling::default()
        },
        keep: true,
        owner: format!("owner {}", number % 3),
        ..request(&stories(), &tokens, &[], TURN)
    }
}

/// Number of tokens generated in a turn.
const TURN: usize = 5;
/// Number of turns of a conversation.
const TURNS: usize = 3;

fn answer(number: u64, turn: usize) -> Vec<u32> {
    (0..turn as u32 + 1)
        .map(|i| 30 + 7 * i + number as u32 % 50)
        .collect()
}

/// Returns the generated tokens and the bits of their log-probabilities.
fn result_bits(transcript: &Transcript) -> (Vec<u32>, Vec<(u32, u32)>) {
    let logprobs = transcript.logprobs.iter().flatten();
    let bits = logprobs.map(|l| (l.token, l.logprob.to_bits())).collect();
    (transcript.generated.clone(), bits)
}

/// Runs a whole conversation without interruption. Returns its transcript and all its tokens.
fn alone(number: u64) -> (Transcript, Vec<u32>) {
    let mut engine = engine(1);
    let id = engine.open(numbered_request(number)).unwrap();
    for turn in 1..TURNS {
        while !engine.is_idle() {
            engine.step().unwrap();
        }
        engine
            .any_session(id)
            .and_then(|mut session| session.append(&answer(number, turn), TURN, &[]))
            .unwrap();
    }
    while !engine.is_idle() {
        engine.step().unwrap();
    }
    let tokens = engine
        .view(id)
        .map(|session| session.tokens())
        .unwrap()
        .to_vec();
    (engine.close(id).unwrap(), tokens)
}

/// Starts the next turn of every waiting session. Returns the sessions that have ended.
fn next_turns(engine: &mut Engine) -> Vec<SessionId> {
    let mut ended = Vec::new();
    for info in engine.list(None) {
        let turn = info.generated / TURN;
        if info.status == SessionStatus::Waiting && turn < TURNS {
            let said = answer(info.id.0, turn);
            engine
                .any_session(info.id)
                .and_then(|mut session| session.append(&said, TURN, &[]))
                .unwrap();
        } else if info.status == SessionStatus::Waiting {
            ended.push(info.id);
        }
    }
    ended
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

#[test]
fn a_restart_after_any_step_changes_no_bit() {
    let expect: Vec<_> = (0..3).map(|number| result_bits(&alone(number).0)).collect();
    let folder = tempfile::tempdir().unwrap();
    let states = folder.path().join("states");
    let mut engine = restarted(3, &folder.path().join("state"));
    for number in 0..3 {
        engine.open(numbered_request(number)).unwrap();
    }
    let mut copies = 0;
    loop {
        copy(
            &folder.path().join("state"),
            &states.join(copies.to_string()),
        );
        copies += 1;
        engine.step().unwrap();
        if engine.is_idle() {
            copy(
                &folder.path().join("state"),
                &states.join(copies.to_string()),
            );
            copies += 1;
        }
        if engine.is_idle() && next_turns(&mut engine).len() == 3 {
            break;
        }
    }
    assert!(copies > TURN * TURNS, "{copies}");
    drop(engine);
    for number in 0..copies {
        let mut engine = restarted(3, &states.join(number.to_string()));
        loop {
            while !engine.is_idle() {
                engine.step().unwrap();
                engine.check_integrity();
            }
            if next_turns(&mut engine).len() == 3 {
                break;
            }
        }
        for (number, expect) in (0..).zip(&expect) {
            let found = result_bits(&engine.close(SessionId(number)).unwrap());
            assert!(found == *expect, "session {number}");
        }
        drop(engine);
        let state = StateFolder::open(&states.join(number.to_string())).unwrap();
        assert_eq!(
            state.sessions().count(),
            0,
            "closed sessions are not restored"
        );
    }
}

#[test]
fn edits_captures_and_forks_are_restored() {
    use djinn_engine::{EditSpec, Positions, Probe};
    let folder = tempfile::tempdir().unwrap();
    let model = open(&stories());
    let edits: Vec<EditSpec> = [
        "blocks.2.hook_resid_post:scale=0.5@2..9",
        "blocks.1.hook_mlp_out:scale=0.9@generated",
    ]
    .map(|edit| edit.parse().unwrap())
    .to_vec();
    let captures = ["blocks.3.hook_mlp_out"];
    let probe = Probe::new(&model.program, &captures, Positions::All, &edits).unwrap();
    let ask = Request {
        probe,
        ..numbered_request(4)
    };
    let run = |engine: &mut Engine| {
        while !engine.is_idle() {
            engine.step().unwrap();
        }
    };
    let mut whole = engine(3);
    let id = whole.open(ask.clone()).unwrap();
    run(&mut whole);
    let expect = whole.close(id).unwrap();

    let mut engine = restarted(3, folder.path());
    let id = engine.open(ask).unwrap();
    for _ in 0..3 {
        engine.step().unwrap();
    }
    let other = Sampling {
        temperature: 1.0,
        seed: 99,
        ..Sampling::default()
    };
    let fork = engine
        .any_session(id)
        .and_then(|mut session| session.fork(Some(other.clone())))
        .unwrap();
    drop(engine);
    let mut engine = restarted(3, folder.path());
    run(&mut engine);
    let (found, fork) = (engine.close(id).unwrap(), engine.close(fork).unwrap());
    assert!(result_bits(&found) == result_bits(&expect));
    let tensors = |t: &Transcript| t.captured.tensors();
    assert_eq!(tensors(&found), tensors(&expect));
    assert_eq!(fork.generated[..2], expect.generated[..2]);
    assert_ne!(fork.generated, expect.generated);
}

/// A stop string whose first part was generated before a restart is found after it.
#[test]
fn a_stop_string_may_span_a_restart() {
    let text = |engine: &Engine, ids: &[u32]| {
        let text = engine.model().tokenizer.as_ref().unwrap();
        text.decode(ids, true).unwrap()
    };
    let ask = request(&stories(), &[0, 1577, 395, 259, 698, 1108, 14], &[], 16);
    let mut whole = engine(1);
    let id = whole
        .open(Request {
            keep: true,
            ..ask.clone()
        })
        .unwrap();
    while !whole.is_idle() {
        whole.step().unwrap();
    }
    let generated = whole.close(id).unwrap().generated;
    // The stop string is the end of one token and the beginning of the next.
    let (third, fourth) = (
        text(&whole, &generated[2..3]),
        text(&whole, &generated[3..4]),
    );
    let stop = format!("{}{}", &third[third.len() - 1..], &fourth[..2]);
    let folder = tempfile::tempdir().unwrap();
    let mut engine = restarted(1, folder.path());
    let stop = Request {
        stop: vec![stop],
        keep: true,
        ..ask
    };
    let id = engine.open(stop).unwrap();
    while engine
        .view(id)
        .map(|session| session.tokens())
        .unwrap()
        .len()
        < 7 + 3
    {
        engine.step().unwrap();
    }
    drop(engine);
    let mut engine = restarted(1, folder.path());
    let mut finish = None;
    while !engine.is_idle() {
        for output in engine.step().unwrap() {
            finish = output.finish;
        }
    }
    assert_eq!(
        (
            finish,
            engine
                .view(id)
                .map(|session| session.tokens())
                .unwrap()
                .len()
        ),
        (Some(Finish::Stop), 7 + 4)
    );
}

#[test]
fn a_session_moves_as_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let [here, there] = ["here", "there"].map(|name| folder.path().join(name));
    let file = folder.path().join("session.djinn");
    let expect = result_bits(&alone(0).0);
    let mut engine = restarted(1, &here);
    engine.open(numbered_request(0)).unwrap();
    while !engine.is_idle() {
        engine.step().unwrap();
    }
    drop(engine);
    let state = StateFolder::open(&here).unwrap();
    assert!(state.export(SessionId(7)).is_err());
    state
        .export(SessionId(0))
        .unwrap()
        .write(&file, false)
        .unwrap();
    assert!(
        state
            .export(SessionId(0))
            .unwrap()
            .write(&file, false)
            .is_err(),
        "the file exists"
    );

    let mut state = StateFolder::open(&there).unwrap();
    let id = state.import(SavedFile::read(&file).unwrap()).unwrap();
    drop(state);
    let mut engine = restarted(1, &there);
    while next_turns(&mut engine).is_empty() {
        while !engine.is_idle() {
            engine.step().unwrap();
        }
    }
    // The imported session has the same number, and so the same conversation.
    assert_eq!(id, SessionId(0));
    assert!(result_bits(&engine.close(id).unwrap()) == expect);
    // An inconsistent file is rejected without effect.
    let good = SavedFile::read(&file).unwrap();
    for given in [
        vec![(0, 999)],
        vec![],
        vec![(1, 3)],
        vec![(0, 5), (4, 6)],
        vec![(3, 0)],
    ] {
        let mut bad = good.clone();
        bad.session.given = given;
        let mut state = StateFolder::open(&folder.path().join("third")).unwrap();
        assert!(matches!(state.import(bad), Err(EngineError::Unreadable(_))));
    }
    fs::write(&file, "not a session").unwrap();
    assert!(SavedFile::read(&file).is_err());
}

#[test]
fn sessions_of_other_owners_models_or_sizes_are_rejected_and_kept() {
    let folder = tempfile::tempdir().unwrap();
    let mut first = restarted(1, folder.path());
    let id = first.open(numbered_request(0)).unwrap();
    let error = StateFolder::open(folder.path()).err().unwrap();
    let is_in_use = matches!(error, EngineError::Wal(WalError::InUse { .. }));
    assert!(is_in_use, "{error}");
    let access = |engine: &mut Engine, owner: &str| {
        let waits = engine
            .session(owner, id)
            .and_then(|mut session| session.wait(None));
        (engine.list(Some(owner)).len(), waits.is_ok())
    };
    assert_eq!(access(&mut first, "owner 0"), (1, true));
    assert_eq!(access(&mut first, "owner 1"), (0, false));
    drop(first);

    // An engine with another model.
    let model = open(&common::family("llama2"));
    let backend = How::default().backend();
    let settings = Settings::for_sessions(&model.program, 1, 32, 32).unwrap();
    let blueprint =
        Blueprint::draw(&model, &*backend, settings, MemorySettings::default()).unwrap();
    let mut other = Engine::load(model, &*backend, blueprint, &mut |_| {}).unwrap();
    let state = StateFolder::open(folder.path()).unwrap();
    let refused = other.attach_state(state, RestoreScope::All);
    assert!(matches!(refused, Err(EngineError::OtherModel { .. })));

    // An engine too small for the session: the session stays in the folder.
    let (model, backend) = (open(&stories()), How::default().backend());
    let settings = Settings::for_sessions(&model.program, 1, 4, 4).unwrap();
    let blueprint =
        Blueprint::draw(&model, &*backend, settings, MemorySettings::default()).unwrap();
    let mut small = Engine::load(model, &*backend, blueprint, &mut |_| {}).unwrap();
    let state = StateFolder::open(folder.path()).unwrap();
    let restored = small.attach_state(state, RestoreScope::All).unwrap();
    assert_eq!((restored.sessions.len(), restored.refused.len()), (0, 1));
    drop(small);
    assert_eq!(
        StateFolder::open(folder.path()).unwrap().sessions().count(),
        1
    );
}

/// Environment variable with the state folder of the child process that is killed.
const CHILD: &str = "DJINN_TEST_STATE";
/// Environment variable with the number of sessions that the child opens at most.
const MAX_SESSIONS: &str = "DJINN_TEST_SESSIONS";

/// Opens sessions, runs their turns, closes them, and prints every acknowledgement.
fn child(folder: &Path) {
    let mut out = std::io::stdout();
    let mut engine = restarted(4, folder);
    let most = std::env::var(MAX_SESSIONS).unwrap().parse().unwrap();
    let there: Vec<String> = engine
        .list(None)
        .iter()
        .map(|s| s.id.0.to_string())
        .collect();
    // The test runner may have begun a line.
    writeln!(out, "\nrestored {}", there.join(" ")).unwrap();
    loop {
        while engine.list(None).len() < 6 && engine.next_session() < SessionId(most) {
            let id = engine
                .open(numbered_request(engine.next_session().0))
                .unwrap();
            writeln!(out, "opened {}", id.0).unwrap();
        }
        if engine.list(None).is_empty() {
            writeln!(out, "complete").unwrap();
            return;
        }
        for output in engine.step().unwrap() {
            if let Some(token) = output.token {
                let (id, at) = (output.session.0, output.index);
                writeln!(out, "token {id} {at} {token}").unwrap();
            }
        }
        for id in next_turns(&mut engine) {
            let tokens = engine
                .view(id)
                .map(|session| session.tokens())
                .unwrap()
                .iter()
                .map(u32::to_string);
            let tokens: Vec<String> = tokens.collect();
            writeln!(out, "whole {} {}", id.0, tokens.join(" ")).unwrap();
            engine.close(id).unwrap();
            writeln!(out, "closed {}", id.0).unwrap();
        }
    }
}

/// Acknowledgements that the parent has read.
#[derive(Default)]
struct Acknowledged {
    opened: BTreeSet<u64>,
    closed: BTreeSet<u64>,
    tokens: BTreeMap<(u64, usize), u32>,
    /// All tokens of each session that ended.
    complete: BTreeMap<u64, Vec<u32>>,
    restarts: usize,
}

impl Acknowledged {
    /// Processes a line. Returns whether it was the last.
    fn read(&mut self, line: &str) -> bool {
        let mut words = line.split(' ');
        let what = words.next().unwrap();
        let numbers: Vec<u64> = words.filter_map(|word| word.parse().ok()).collect();
        match what {
            "restored" => {
                self.restarts += 1;
                let there: BTreeSet<u64> = numbers.into_iter().collect();
                for id in self.opened.difference(&self.closed) {
                    // The child may have closed the session without printing it.
                    let has_ended = self.complete.contains_key(id);
                    assert!(there.contains(id) || has_ended, "session {id} is lost");
                }
            }
            "opened" => assert!(self.opened.insert(numbers[0]), "{line} again"),
            "whole" => {
                let tokens = numbers[1..].iter().map(|&n| n as u32).collect();
                self.complete.insert(numbers[0], tokens);
            }
            "closed" => assert!(self.closed.insert(numbers[0]), "{line} again"),
            "token" => {
                let (at, token) = ((numbers[0], numbers[1] as usize), numbers[2] as u32);
                let before = self.tokens.insert(at, token);
                assert!(
                    before.is_none_or(|before| before == token),
                    "{line}, not {before:?}"
                );
            }
            _ => return what == "complete",
        }
        false
    }
}

#[test]
fn a_hundred_kills_lose_nothing_acknowledged() {
    if let Some(folder) = std::env::var_os(CHILD) {
        return child(Path::new(&folder));
    }
    let folder = tempfile::tempdir().unwrap();
    let mut acknowledged = Acknowledged::default();
    let (mut kills, mut random, mut complete) = (0, 12345u64, false);
    while !complete {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["a_hundred_kills", "--nocapture", "--test-threads=1"])
            .env(CHILD, folder.path().join("state"))
            .env(MAX_SESSIONS, if kills < 100 { "1000" } else { "0" })
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // The child is killed after a random number of lines and a random delay.
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let (lines, moment) = ((random >> 40) % 12, (random >> 33) % 3000);
        let mut heard = 0;
        let mut reader = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while reader.read_line(&mut line).unwrap() > 0 {
            if line.ends_with('\n') {
                complete |= acknowledged.read(line.trim_end());
                heard += u64::from(line.starts_with("token"));
            }
            line.clear();
            if heard == lines && kills < 100 {
                std::thread::sleep(Duration::from_micros(moment));
                child.kill().unwrap();
                kills += 1;
                heard += 1;
            }
        }
        child.wait().unwrap();
    }
    // The log was compacted meanwhile, and no session number was used twice.
    let logs = fs::read_dir(folder.path().join("state")).unwrap();
    let names = logs.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let generation = names.filter_map(|name| {
        let number = name.strip_prefix("log-")?.strip_suffix(".djinn")?;
        u64::from_str_radix(number, 16).ok()
    });
    assert!(generation.max() > Some(1), "never compacted");
    let next = acknowledged.opened.last().unwrap() + 1;
    let again = restarted(4, &folder.path().join("state"));
    assert!(again.next_session() >= SessionId(next));
    assert!(
        acknowledged.restarts > 90,
        "{} restarts",
        acknowledged.restarts
    );
    assert!(
        acknowledged.opened.len() > 20,
        "{}",
        acknowledged.opened.len()
    );
    for &number in &acknowledged.opened {
        let (transcript, all) = alone(number);
        assert_eq!(acknowledged.complete[&number], all, "session {number}");
        let heard = acknowledged.tokens.range((number, 0)..(number + 1, 0));
        for (&(_, at), token) in heard {
            assert_eq!(
                transcript.generated[at], *token,
                "token {at} of session {number}"
            );
        }
    }
}

#[test]
fn deadlines_leases_and_quotas_end_or_reject_sessions() {
    let mut engine = engine(3);
    engine.set_quota(djinn_engine::Quota {
        sessions: 2,
        ..Default::default()
    });
    // Hours, so that a slow machine does not reach a deadline while it steps.
    let now = std::time::Instant::now();
    let owned = |number: u64| Request {
        owner: "a".into(),
        ..numbered_request(number)
    };
    let late = engine
        .open(Request {
            deadline: Some(now + Duration::from_secs(5000)),
            ..owned(0)
        })
        .unwrap();
    let leased = engine
        .open(Request {
            lease: Some(Duration::from_secs(5000)),
            ..owned(1)
        })
        .unwrap();
    let error = engine.open(owned(2)).unwrap_err();
    let is_expected = matches!(
        error,
        EngineError::Quota {
            asked: 3,
            limit: 2,
            ..
        }
    );
    assert!(is_expected, "{error}");
    assert!(
        engine
            .any_session(late)
            .and_then(|mut session| session.fork(None))
            .is_err()
    );
    engine.open(numbered_request(1)).unwrap();
    while !engine.is_idle() {
        engine.step().unwrap();
    }
    let ends = |engine: &mut Engine, seconds: u64| -> Vec<(SessionId, Option<Finish>)> {
        let outputs = engine.maintain(now + Duration::from_secs(seconds));
        outputs
            .iter()
            .map(|output| (output.session, output.finish))
            .collect()
    };
    assert_eq!(ends(&mut engine, 4000), []);
    engine
        .any_session(leased)
        .map(|mut session| session.renew())
        .unwrap();
    assert_eq!(ends(&mut engine, 5000), [(late, Some(Finish::Deadline))]);
    assert_eq!(ends(&mut engine, 60_000), [(leased, Some(Finish::Lease))]);
    assert!(
        engine
            .any_session(late)
            .and_then(|mut session| session.append(&[1], 1, &[]))
            .is_err()
    );
    engine.check_integrity();
    assert_eq!(engine.close(late).unwrap().finish, Some(Finish::Deadline));
    engine.open(owned(2)).unwrap();
}

/// Copies the state folder that release 0.1 wrote for the golden mixtral model: one kept session
/// of three given and six generated tokens.
fn old_folder(to: &Path) {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/state-0.1/mixtral");
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

#[test]
fn a_state_folder_of_release_0_1_is_restored() {
    let folder = tempfile::tempdir().unwrap();
    old_folder(folder.path());
    let load = |name: &str| {
        let model = open(&common::family(name));
        let settings = Settings::for_sessions(&model.program, 2, 40, 16).unwrap();
        let backend = How::default().backend();
        let memory = MemorySettings::default();
        let blueprint = Blueprint::draw(&model, &*backend, settings, memory).unwrap();
        Engine::load(model, &*backend, blueprint, &mut |_| {}).unwrap()
    };
    let state = || StateFolder::open(folder.path()).unwrap();
    let id = SessionId(0);
    let saved = state().get(id).unwrap().tokens.clone();
    assert_eq!(saved.len(), 9);
    let refused = load("gpt2").attach_state(state(), RestoreScope::All);
    assert!(matches!(refused, Err(EngineError::OtherModel { .. })));
    let mut engine = load("mixtral");
    let restored = engine.attach_state(state(), RestoreScope::All).unwrap();
    assert_eq!(restored.sessions, [id]);
    engine
        .any_session(id)
        .unwrap()
        .append(&[7], 3, &[])
        .unwrap();
    while !engine.is_idle() {
        engine.step().unwrap();
    }
    let tokens = engine.view(id).unwrap().tokens().to_vec();
    assert_eq!((&tokens[..9], tokens.len()), (&saved[..], 13));
    // A new session with the same tokens continues in the same way.
    let mut fresh = load("mixtral");
    let ask = Request {
        tokens: tokens[..3].to_vec(),
        max_tokens: 6,
        keep: true,
        ..Request::default()
    };
    let again = fresh.open(ask).unwrap();
    while !fresh.is_idle() {
        fresh.step().unwrap();
    }
    fresh
        .any_session(again)
        .unwrap()
        .append(&[7], 3, &[])
        .unwrap();
    while !fresh.is_idle() {
        fresh.step().unwrap();
    }
    assert_eq!(fresh.view(again).unwrap().tokens(), tokens);
}
