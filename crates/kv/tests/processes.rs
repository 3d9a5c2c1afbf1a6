//! Tests of the spill file of a process that runs out of disk space or is killed. Each test runs its
//! own program again as a process.

#![allow(clippy::unwrap_used, missing_docs)]

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use djinn_kv::{SpillError, SpillFile};

/// Environment variable with the child's folder; without it the child's test does nothing.
const FOLDER: &str = "DJINN_KV_TEST_FOLDER";

#[test]
fn child_runs_out_of_space() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else {
        return;
    };
    let spill = SpillFile::create(&folder.join("spill"), 4096, 1000).unwrap();
    spill.write(0, &[1; 4096]).unwrap();
    let error = spill.write(999, &[1; 4096]).unwrap_err();
    assert!(matches!(error, SpillError::NoSpace { .. }), "{error}");
    let to = &mut [0; 4096];
    spill.read(0, to).unwrap();
    assert_eq!(*to, [1; 4096]);
    let error = spill.read(999, to).unwrap_err();
    assert!(matches!(error, SpillError::SlotEmpty { .. }), "{error}");
    std::fs::write(folder.join("done"), []).unwrap();
}

#[test]
fn a_full_disk_keeps_earlier_slots() {
    let folder = tempfile::tempdir().unwrap();
    // A limit on the size of files stands in for a full disk.
    let shell = "trap '' XFSZ; ulimit -f 40; exec \"$@\"";
    let output = Command::new("sh")
        .args(["-c", shell, "sh"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "child_runs_out_of_space", "--nocapture"])
        .env(FOLDER, folder.path())
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    assert!(folder.path().join("done").exists(), "the child ran");
    let left = std::fs::read_dir(folder.path().join("spill")).unwrap();
    assert_eq!(left.count(), 0, "the spill file is removed");
}

#[test]
fn child_waits_with_a_spill_file() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else {
        return;
    };
    let spill = SpillFile::create(&folder, 4096, 4).unwrap();
    spill.write(3, b"a secret".repeat(512).as_slice()).unwrap();
    println!("\nwritten");
    // The parent kills this process before it reads a line.
    let _ = std::io::stdin().read_line(&mut String::new());
}

#[test]
fn a_killed_process_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_waits_with_a_spill_file", "--nocapture"])
        .env(FOLDER, folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let written = lines.map_while(Result::ok).any(|line| line == "written");
    assert!(written, "the child wrote a page");
    child.kill().unwrap();
    child.wait().unwrap();
    let left = std::fs::read_dir(folder.path()).unwrap();
    assert_eq!(left.count(), 0, "a killed process leaves no file");
}
