//! A process that is killed again and again loses no session, token or end that it acknowledged.

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

use common::durable::{alone, next_turns, number_of, numbered_request, restarted};
use djinn_engine::SessionId;

/// Environment variable with the state folder of the child process that is killed.
const CHILD: &str = "DJINN_TEST_STATE";

/// Environment variable with the lowest number of the sessions that the child opens.
const FIRST: &str = "DJINN_TEST_FIRST";

/// Environment variable with the number of sessions that the child opens at most.
const MAX_SESSIONS: &str = "DJINN_TEST_SESSIONS";

/// Opens sessions, runs their turns, closes them, and prints every acknowledgement.
fn child(folder: &Path) {
    let mut out = std::io::stdout();
    let mut engine = restarted(4, folder);
    let most = std::env::var(MAX_SESSIONS).unwrap().parse().unwrap();
    let restored: Vec<u64> = engine
        .list(None)
        .iter()
        .map(|s| number_of(&s.owner))
        .collect();
    let there: Vec<String> = restored.iter().map(u64::to_string).collect();
    let first: u64 = std::env::var(FIRST).unwrap().parse().unwrap();
    let after = restored.iter().max().map_or(0, |last| last + 1);
    let mut next = first.max(after);
    let mut numbers: BTreeMap<SessionId, u64> = engine
        .list(None)
        .iter()
        .map(|s| (s.id, number_of(&s.owner)))
        .collect();
    // The test runner may have begun a line.
    writeln!(out, "\nrestored {}", there.join(" ")).unwrap();
    loop {
        while engine.list(None).len() < 6 && next < most {
            let id = engine.open(numbered_request(next)).unwrap();
            numbers.insert(id, next);
            writeln!(out, "opened {next} {id}").unwrap();
            next += 1;
        }
        if engine.list(None).is_empty() {
            writeln!(out, "complete").unwrap();
            return;
        }
        for output in engine.step().unwrap() {
            if let Some(token) = output.token {
                let (id, at) = (numbers[&output.session], output.index);
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
            writeln!(out, "whole {} {}", numbers[&id], tokens.join(" ")).unwrap();
            engine.close(id).unwrap();
            writeln!(out, "closed {}", numbers[&id]).unwrap();
        }
    }
}

/// Acknowledgements that the parent has read.
#[derive(Default)]
struct Acknowledged {
    opened: BTreeSet<u64>,
    last_id: Option<SessionId>,
    closed: BTreeSet<u64>,
    tokens: BTreeMap<(u64, usize), u32>,
    /// All tokens of each session that ended.
    complete: BTreeMap<u64, Vec<u32>>,
    restarts: usize,
}

impl Acknowledged {
    /// Lowest number that no acknowledged session has.
    fn next_number(&self) -> u64 {
        let last = [self.opened.last(), self.complete.keys().next_back()];
        last.into_iter().flatten().max().map_or(0, |last| last + 1)
    }

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
            "opened" => {
                assert!(self.opened.insert(numbers[0]), "{line} again");
                let id = line.rsplit(' ').next().unwrap().parse().ok();
                assert!(id > self.last_id, "{line} after {:?}", self.last_id);
                self.last_id = id;
            }
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
            .env(FIRST, acknowledged.next_number().to_string())
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
    // The log was compacted meanwhile.
    let logs = fs::read_dir(folder.path().join("state")).unwrap();
    let names = logs.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let generation = names.filter_map(|name| {
        let number = name.strip_prefix("log-")?.strip_suffix(".djinn")?;
        u64::from_str_radix(number, 16).ok()
    });
    assert!(generation.max() > Some(1), "never compacted");
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
