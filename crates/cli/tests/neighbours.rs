//! Two servers on one machine: the second one plans with what the first one has left, also where the first
//! has reserved memory that it does not use yet.

#![allow(clippy::unwrap_used, missing_docs)]
#![cfg(target_os = "linux")]

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
};

/// Bytes of keys and values of one token of the model.
const TOKEN_BYTES: u64 = 23_040;

/// Memory of the machine that is free now.
fn available() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib: u64 = line
        .unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .unwrap();
    1024 * kib
}

/// A command in a folder of its own for files that tell processes of each other, so that this test and other
/// tests do not see each other.
fn djinn(runtime: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_djinn"));
    command.args(args).args(["--device", "cpu"]);
    command.env("XDG_RUNTIME_DIR", runtime);
    command.env("DJINN_HOME", runtime).env("HF_HOME", runtime);
    command
}

/// Starts a server and waits until it is ready.
fn serve(runtime: &Path, args: &[&str]) -> Child {
    let mut command = djinn(runtime, &[&["serve", "--port", "0"], args].concat());
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    assert!(line.starts_with("Server ready"), "{line}");
    child
}

fn end(mut server: Child) {
    server.kill().unwrap();
    server.wait().unwrap();
}

#[test]
fn servers_with_default_settings_run_beside_each_other() {
    let runtime = tempfile::tempdir().unwrap();
    let servers = [(); 3].map(|()| serve(runtime.path(), &[]));
    servers.into_iter().for_each(end);
}

#[test]
fn a_second_server_sees_memory_that_the_first_has_only_reserved() {
    let runtime = tempfile::tempdir().unwrap();
    // One session takes more than half of the free memory.
    let free = available();
    let context = free / 100 * 55 / TOKEN_BYTES;
    let model = format!("large=shape:smollm2-135m?context={context},context={context}");
    let memory = format!("{}MB", free / 100 * 60 / 1_000_000);
    let flags = ["--model", &model, "--memory", &memory];
    let first = serve(runtime.path(), &flags);
    let second = [&["serve", "--port", "0"][..], &flags].concat();
    let output = djinn(runtime.path(), &second).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    let named = format!("djinn process {} with large", first.id());
    for part in ["are free", &named] {
        assert!(error.contains(part), "{error}");
    }
    end(first);
    // A killed process holds nothing.
    end(serve(runtime.path(), &flags));
}
