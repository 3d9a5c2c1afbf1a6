//! Sessions that are kept, and disks that fail them.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::{fs, path::Path, process::Command};

use common::{ok, stdout};
use serde_json::{Value, json};

fn answer(args: &[&str]) -> Value {
    serde_json::from_str(&stdout(&ok(args))).unwrap()
}

/// What a command says when it refuses.
fn refused(args: &[&str]) -> String {
    let output = common::djinn(args);
    assert_eq!(output.status.code(), Some(2), "{args:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_story_is_told_in_several_runs() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (state, other, file) = (path("state"), path("other"), path("boat.djinn"));
    let run = |more: &[&str]| {
        let mut args = vec!["run", "--json", "--state"];
        args.extend(more);
        answer(&args)
    };
    let first = run(&[
        &state,
        "--prompt",
        "Tom had a red boat.",
        "--max-tokens",
        "12",
        "--ignore-eos",
    ]);
    let on = [&state, "--session", "0", "--max-tokens", "9"];
    let second = run(&on);
    let third = run(&[&on[..], &["--prompt", " One day"]].concat());
    assert_eq!(
        (&first["session"], &first["finish"]),
        (&json!(0), &json!("length"))
    );
    assert_eq!(
        (
            &third["seed"],
            third["prompt_ids"].as_array().unwrap().len()
        ),
        (&json!(null), 2)
    );
    // Without --json the story goes on where it was.
    let copy = path("copy");
    fs::create_dir(&copy).unwrap();
    for entry in fs::read_dir(&state).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), Path::new(&copy).join(entry.file_name())).unwrap();
    }
    let more = ok(&[
        "run",
        "--state",
        &copy,
        "--session",
        "0",
        "--max-tokens",
        "5",
    ]);
    assert!(stdout(&more).trim().len() > 3, "{more:?}");
    assert_eq!(second["output_ids"].as_array().unwrap().len(), 9);

    // All of it in one go.
    let ids = |value: &Value, key: &str| -> Vec<String> {
        let ids = value[key].as_array().unwrap().iter();
        ids.map(Value::to_string).collect()
    };
    let whole: Vec<String> = [&first, &second]
        .iter()
        .flat_map(|run| ids(run, "output_ids"))
        .collect();
    let prompt = ids(&first, "prompt_ids").join(",");
    let alone = [
        "run",
        "--json",
        "--ignore-eos",
        "--max-tokens",
        "21",
        "--tokens",
        &prompt,
    ];
    assert_eq!(ids(&answer(&alone), "output_ids"), whole);

    let list = answer(&["sessions", "list", "--json", "--state", &state]);
    assert_eq!(list["sessions"][0]["generated"], 30);
    let shown = stdout(&ok(&["sessions", "show", "0", "--state", &state]));
    assert!(shown.contains("given: Tom had a red boat."), "{shown}");
    assert!(shown.contains("given: One day"), "{shown}");

    ok(&["sessions", "save", "0", &file, "--state", &state]);
    let again = refused(&["sessions", "save", "0", &file, "--state", &state]);
    assert!(again.contains("exists"), "{again}");
    ok(&["sessions", "load", &file, "--state", &other]);
    let there = run(&[&other, "--session", "0", "--max-tokens", "6"]);
    let here = run(&[&state, "--session", "0", "--max-tokens", "6"]);
    assert_eq!(ids(&there, "output_ids"), ids(&here, "output_ids"));
    assert_ne!(ids(&third, "output_ids"), ids(&here, "output_ids"));

    let one = refused(&["sessions", "delete", "0", "7", "--state", &state]);
    assert!(one.contains("no session 7"), "{one}");
    ok(&["sessions", "delete", "0", "--state", &state]);
    let list = answer(&["sessions", "list", "--json", "--state", &state]);
    assert_eq!(list["sessions"].as_array().unwrap().len(), 0);
}

#[test]
fn what_cannot_be_is_said_and_harms_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().to_str().unwrap();
    let small = ["--tokens", "1,2", "--max-tokens", "2", "--state", state];
    ok(&[&["run"], &small[..]].concat());
    let check = |args: &[&str], part: &str| {
        let said = refused(args);
        assert!(said.contains(part), "{args:?}: {said}");
    };
    check(&["run", "--state", state, "--session", "3"], "no session 3");
    check(&["run", "--session", "3"], "--state");
    check(
        &[
            "run",
            "--state",
            state,
            "--session",
            "0",
            "--chat",
            "--prompt",
            "x",
        ],
        "--chat",
    );
    let other = ["run", "--model", "shape:gpt2?layers=1"];
    check(&[&other[..], &small[..]].concat(), "stories-7m");
    check(&["sessions", "list"], "--state");
    check(
        &["sessions", "list", "--state", "/nowhere/at/all"],
        "no saved sessions",
    );
    let junk = folder.path().join("junk");
    fs::write(&junk, "junk").unwrap();
    check(
        &["sessions", "load", junk.to_str().unwrap(), "--state", state],
        "junk",
    );
    // A log that was changed in the middle is refused, and left as it is.
    let log = fs::read_dir(state)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let log = log
        .filter(|path| path.to_str().unwrap().contains("log-"))
        .last();
    let log = log.unwrap();
    let mut bytes = fs::read(&log).unwrap();
    bytes[150] ^= 1;
    fs::write(&log, &bytes).unwrap();
    check(&["sessions", "list", "--state", state], "log-");
    assert_eq!(fs::read(&log).unwrap(), bytes);
}

/// The same command where files cannot grow beyond so many KiB: a disk that is full.
fn with_little_disk(kib: u64, args: &[&str]) -> std::process::Output {
    let script = format!("trap '' XFSZ; ulimit -f {kib}; exec \"$0\" \"$@\"");
    Command::new("bash")
        .args(["-c", &script, env!("CARGO_BIN_EXE_djinn")])
        .args(args)
        .output()
        .unwrap()
}

#[test]
fn a_full_disk_is_an_error_of_those_concerned() {
    let folder = tempfile::tempdir().unwrap();
    let spill = folder.path().to_str().unwrap();
    let args = [
        "bench",
        "sessions",
        "--sessions",
        "60",
        "--memory",
        "30MB",
        "--host-memory",
        "12MB",
        "--prompt",
        "60",
        "--turns",
        "2",
        "--think",
        "0.3",
        "--spill",
        spill,
        "--check",
        "20",
        "--json",
    ];
    let report = |output: &std::process::Output| -> Value {
        let text = String::from_utf8_lossy(&output.stdout);
        serde_json::from_str(&text).unwrap_or_else(|_| panic!("{output:?}"))
    };
    let whole = report(&with_little_disk(1 << 30, &args));
    assert_eq!(
        (&whole["completed"], &whole["failed"]),
        (&Value::from(60), &json!({}))
    );
    assert!(
        whole["spilled"]["bytes"].as_u64().unwrap() > 5_000_000,
        "{whole}"
    );

    let output = with_little_disk(2000, &args);
    let little = report(&output);
    let (completed, failed) = (
        little["completed"].as_u64().unwrap(),
        little["failed"].as_object().unwrap(),
    );
    assert_eq!(completed + failed.len() as u64, 60, "{little}");
    assert!(completed > 5 && !failed.is_empty(), "{little}");
    assert_eq!(little["differ"].as_array().unwrap().len(), 0);
    for why in failed.values() {
        let why = why.as_str().unwrap();
        assert!(why.contains("no space left"), "{why}");
    }
    assert_eq!(
        fs::read_dir(folder.path()).unwrap().count(),
        0,
        "nothing is left behind"
    );
}

#[test]
fn a_state_that_cannot_be_written_refuses_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().to_str().unwrap();
    let run = ["run", "--json", "--max-tokens", "5", "--state", state];
    ok(&run);
    let before = fs::metadata(log(folder.path())).unwrap().len();
    let on = [&run[..], &["--session", "0"]].concat();
    let output = with_little_disk(before / 1024, &on);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("no space left"), "{said}");
    let list = answer(&["sessions", "list", "--json", "--state", state]);
    assert_eq!(list["sessions"][0]["generated"], 5);
    assert_eq!(answer(&on)["output_ids"].as_array().unwrap().len(), 5);
}

fn log(folder: &Path) -> std::path::PathBuf {
    let paths = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut logs = paths.filter(|path| path.to_str().unwrap().contains("log-"));
    logs.next().unwrap()
}
