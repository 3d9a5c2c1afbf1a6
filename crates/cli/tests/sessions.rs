//! Saved sessions, and errors of the disk that stores them.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::{fs, path::Path, process::Command};

use common::{json_output, ok, stdout};
use serde_json::{Value, json};

/// Runs a command, checks that it fails with exit status 2, and returns its standard error.
fn refused(args: &[&str]) -> String {
    let output = common::djinn(args);
    assert_eq!(output.status.code(), Some(2), "{args:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_saved_session_names_the_flag_that_continues_it() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state").to_str().unwrap().to_owned();
    let first = [
        "run",
        "--json",
        "--state",
        &state,
        "--prompt",
        "A cat",
        "--kv-dtype",
        "f32",
        "--max-tokens",
        "4",
    ];
    let first = json_output(&first);
    let id = first["session"].as_str().unwrap();
    let resume = [
        "run",
        "--json",
        "--state",
        &state,
        "--session",
        id,
        "--max-tokens",
        "4",
    ];
    let error = refused(&resume);
    assert!(error.contains("--kv-dtype f32"), "{error}");
    let again = json_output(&[&resume[..], &["--kv-dtype", "f32"]].concat());
    assert_eq!(again["output_ids"].as_array().unwrap().len(), 4);
}

#[test]
fn a_saved_session_continues_over_several_runs() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (state, other, file) = (path("state"), path("other"), path("boat.djinn"));
    let run = |flags: &[&str]| {
        let mut args = vec!["run", "--json", "--state"];
        args.extend(flags);
        json_output(&args)
    };
    let first = run(&[
        &state,
        "--prompt",
        "Tom had a red boat.",
        "--max-tokens",
        "12",
        "--ignore-eos",
    ]);
    let id = first["session"].as_str().unwrap();
    let resume = [&state, "--session", id, "--max-tokens", "9"];
    let second = run(&resume);
    let third = run(&[&resume[..], &["--prompt", " One day"]].concat());
    assert_eq!(first["finish"], "length");
    assert_eq!(
        (
            &third["seed"],
            third["prompt_ids"].as_array().unwrap().len()
        ),
        (&json!(null), 2)
    );
    // Without --json, the command prints the continuation.
    let copy = path("copy");
    fs::create_dir(&copy).unwrap();
    for entry in fs::read_dir(&state).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), Path::new(&copy).join(entry.file_name())).unwrap();
    }
    let continuation = ok(&[
        "run",
        "--state",
        &copy,
        "--session",
        id,
        "--max-tokens",
        "5",
    ]);
    assert!(stdout(&continuation).trim().len() > 3, "{continuation:?}");
    assert_eq!(second["output_ids"].as_array().unwrap().len(), 9);

    // One run generates the same tokens as the first two runs together.
    let ids = |value: &Value, key: &str| -> Vec<String> {
        let ids = value[key].as_array().unwrap().iter();
        ids.map(Value::to_string).collect()
    };
    let both_runs: Vec<String> = [&first, &second]
        .iter()
        .flat_map(|run| ids(run, "output_ids"))
        .collect();
    let prompt = ids(&first, "prompt_ids").join(",");
    let one_run = [
        "run",
        "--json",
        "--ignore-eos",
        "--max-tokens",
        "21",
        "--tokens",
        &prompt,
    ];
    assert_eq!(ids(&json_output(&one_run), "output_ids"), both_runs);

    let list = json_output(&["sessions", "list", "--json", "--state", &state]);
    assert_eq!(list["sessions"][0]["generated"], 30);
    let shown = stdout(&ok(&["sessions", "show", id, "--state", &state]));
    assert!(shown.contains("given: Tom had a red boat."), "{shown}");
    assert!(shown.contains("given: One day"), "{shown}");

    ok(&["sessions", "save", id, &file, "--state", &state]);
    let again = refused(&["sessions", "save", id, &file, "--state", &state]);
    assert!(again.contains("exists"), "{again}");
    ok(&["sessions", "load", &file, "--state", &other]);
    let loaded = json_output(&["sessions", "list", "--json", "--state", &other]);
    let loaded = loaded["sessions"][0]["id"].as_str().unwrap();
    assert_ne!(loaded, id);
    let in_other = run(&[&other, "--session", loaded, "--max-tokens", "6"]);
    let in_state = run(&[&state, "--session", id, "--max-tokens", "6"]);
    assert_eq!(ids(&in_other, "output_ids"), ids(&in_state, "output_ids"));
    assert_ne!(ids(&third, "output_ids"), ids(&in_state, "output_ids"));

    let unknown = refused(&["sessions", "delete", id, "7", "--state", &state]);
    assert!(
        unknown.contains("no session 00000000000000000000000007"),
        "{unknown}"
    );
    ok(&["sessions", "delete", id, "--state", &state]);
    let list = json_output(&["sessions", "list", "--json", "--state", &state]);
    assert_eq!(list["sessions"].as_array().unwrap().len(), 0);
}

#[test]
fn invalid_session_commands_are_refused_and_leave_the_state_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().to_str().unwrap();
    let small = ["--tokens", "1,2", "--max-tokens", "2", "--state", state];
    ok(&[&["run"], &small[..]].concat());
    let check = |args: &[&str], part: &str| {
        let stderr_text = refused(args);
        assert!(stderr_text.contains(part), "{args:?}: {stderr_text}");
    };
    check(
        &["run", "--state", state, "--session", "3"],
        "no session 00000000000000000000000003",
    );
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
    // A log with a changed byte is refused and stays as it is.
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
    let listed = stdout(&ok(&["sessions", "list", "--state", state]));
    assert!(listed.contains("damaged:"), "{listed}");
    assert_eq!(fs::read(&log).unwrap(), bytes);
}

/// Runs a command with files limited to this many KiB, to simulate a full disk.
fn with_file_limit(kib: u64, args: &[&str]) -> std::process::Output {
    let script = format!("trap '' XFSZ; ulimit -f {kib}; exec \"$0\" \"$@\"");
    Command::new("bash")
        .args(["-c", &script, env!("CARGO_BIN_EXE_djinn")])
        .args(args)
        .output()
        .unwrap()
}

#[test]
fn a_full_spill_disk_fails_only_the_sessions_that_need_it() {
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
    let unlimited = report(&with_file_limit(1 << 30, &args));
    assert_eq!(
        (&unlimited["completed"], &unlimited["failed"]),
        (&Value::from(60), &json!({}))
    );
    assert!(
        unlimited["spilled"]["bytes"].as_u64().unwrap() > 5_000_000,
        "{unlimited}"
    );

    let output = with_file_limit(2000, &args);
    let limited = report(&output);
    let (completed, failed) = (
        limited["completed"].as_u64().unwrap(),
        limited["failed"].as_object().unwrap(),
    );
    assert_eq!(completed + failed.len() as u64, 60, "{limited}");
    assert!(completed > 5, "{limited}");
    assert_eq!(limited["differ"].as_array().unwrap().len(), 0);
    for error in failed.values() {
        let error = error.as_str().unwrap();
        assert!(error.contains("no space left"), "{error}");
    }
    assert_eq!(
        fs::read_dir(folder.path()).unwrap().count(),
        0,
        "the spill folder is empty afterwards"
    );
}

#[test]
fn a_full_state_disk_refuses_the_run_and_keeps_the_saved_session() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().to_str().unwrap();
    let run = ["run", "--json", "--max-tokens", "5", "--state", state];
    let first = json_output(&run);
    let id = first["session"].as_str().unwrap();
    let before = fs::metadata(log(folder.path())).unwrap().len();
    let resume = [&run[..], &["--session", id]].concat();
    let output = with_file_limit(before / 1024, &resume);
    let stderr_text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{stderr_text}");
    assert!(stderr_text.contains("no space left"), "{stderr_text}");
    let list = json_output(&["sessions", "list", "--json", "--state", state]);
    assert_eq!(list["sessions"][0]["generated"], 5);
    assert_eq!(
        json_output(&resume)["output_ids"].as_array().unwrap().len(),
        5
    );
}

/// Path of the first log file in a state folder.
fn log(folder: &Path) -> std::path::PathBuf {
    let paths = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut logs = paths.filter(|path| path.to_str().unwrap().contains("log-"));
    logs.next().unwrap()
}

/// Flips a bit in the middle of a file.
fn damage(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(path, bytes).unwrap();
}

/// Log file of a folder of sessions.
fn log_file(state: &str) -> std::path::PathBuf {
    let entries = fs::read_dir(state)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut logs = entries.filter(|path| path.extension().is_some_and(|end| end == "djinn"));
    logs.next().unwrap()
}

#[test]
fn a_damaged_folder_is_listed_and_repaired() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state").to_str().unwrap().to_owned();
    for prompt in [
        "Tom had a red boat.",
        "Lily saw a big dog.",
        "The sun was hot.",
    ] {
        let run = ["run", "--state", &state, "--prompt", prompt];
        ok(&[&run[..], &["--max-tokens", "8", "--ignore-eos"]].concat());
    }
    let whole = stdout(&ok(&["sessions", "repair", "--state", &state]));
    assert!(whole.contains("not damaged, 3 sessions"), "{whole}");
    damage(&log_file(&state));
    let before = fs::read(log_file(&state)).unwrap();

    // Listing reports the damage and changes nothing.
    let listed = stdout(&ok(&["sessions", "list", "--state", &state]));
    assert!(
        listed.contains("damaged:") && listed.contains("sessions repair"),
        "{listed}"
    );
    let list = ["sessions", "list", "--state", &state, "--json"];
    let report = json_output(&list);
    let damaged = report["damaged"].as_array().unwrap();
    assert!(!damaged.is_empty(), "{report}");
    let readable = report["sessions"].as_array().unwrap().len();
    assert!((1..=3).contains(&readable), "{report}");
    assert_eq!(fs::read(log_file(&state)).unwrap(), before);

    // Repairing says where the damaged log is kept.
    let repair = ["sessions", "repair", "--state", &state, "--json"];
    let report = &json_output(&repair)["folders"][0];
    assert_eq!(report["sessions"], readable);
    assert_eq!(report["damaged"].as_array().unwrap(), damaged);
    let kept = report["kept_files"][0].as_str().unwrap();
    assert_eq!(fs::read(kept).unwrap(), before);

    // Afterwards the folder is whole.
    let report = json_output(&list);
    assert_eq!(report["sessions"].as_array().unwrap().len(), readable);
    assert_eq!(report["damaged"], Value::Null);
    let again = stdout(&ok(&["sessions", "repair", "--state", &state]));
    assert!(again.contains("not damaged"), "{again}");
}

#[test]
fn repair_names_a_wrong_folder() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let error = refused(&["sessions", "repair", "--state", path]);
    assert!(error.contains("has no saved sessions"), "{error}");
    let error = refused(&["sessions", "repair", "--server", "127.0.0.1:1"]);
    assert!(error.contains("--state DIR"), "{error}");
    let model = folder.path().join("stories").to_str().unwrap().to_owned();
    ok(&[
        "run",
        "--state",
        &model,
        "--prompt",
        "A dog",
        "--max-tokens",
        "2",
    ]);
    let error = refused(&["sessions", "list", "--state", path]);
    assert!(error.contains(&model), "{error}");
    let repaired = stdout(&ok(&["sessions", "repair", "--state", path]));
    assert!(repaired.contains(&model), "{repaired}");
}
