//! Tests of logs and archives of processes that are killed or run out of disk space. Each test
//! runs its own program again as a child process.

#![allow(clippy::unwrap_used, missing_docs)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use djinn_wal::{Archive, ArchiveWriter, Log, WalError, write_atomically};

/// Environment variable with the child's folder; without it the child's tests do nothing.
const FOLDER: &str = "DJINN_WAL_TEST_FOLDER";

fn folder_of_child() -> Option<PathBuf> {
    std::env::var_os(FOLDER).map(PathBuf::from)
}

/// Runs one test of this program in a process that `shell` prepares.
fn child(shell: &str, test: &str, folder: &Path) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", &format!("{shell} exec \"$@\""), "sh"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(FOLDER, folder);
    command
}

fn record(number: u64) -> Vec<u8> {
    number.to_string().repeat(1 + number as usize % 300).into()
}

#[test]
fn child_appends_until_killed() {
    let Some(folder) = folder_of_child() else {
        return;
    };
    let (mut log, found) = Log::open(&folder).unwrap();
    let mut records = found.records;
    for number in records.len() as u64.. {
        log.append(&record(number)).unwrap();
        println!("\nappended {number}");
        records.push(record(number));
        if number % 16 == 0 {
            log.compact(records.iter().cloned()).unwrap();
        }
    }
}

#[test]
fn appended_records_survive_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    // Every round continues the log of the last one, and is killed at another point.
    for round in 0..6 {
        let mut child = child("", "child_appends_until_killed", folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut appended = || {
            let mut numbers = lines.by_ref().map_while(Result::ok);
            numbers.find_map(|line| line.strip_prefix("appended ")?.parse::<u64>().ok())
        };
        let mut last = (0..20 + 37 * round).map(|_| appended().unwrap()).last();
        child.kill().unwrap();
        child.wait().unwrap();
        // These lines were printed before the kill took effect. The last line may be cut to a
        // smaller number.
        while let Some(number) = appended() {
            last = last.max(Some(number));
        }
        let (_, found) = Log::open(folder.path()).unwrap();
        assert_eq!(found.damage, []);
        let found = found.records;
        let reported = last.unwrap() as usize + 1;
        let count = found.len();
        assert!(count >= reported, "{count} of {reported}");
        assert!(count <= reported + 1, "at most one record was in flight");
        assert!((0..).map(record).zip(&found).all(|(a, b)| a == *b));
    }
}

#[test]
fn child_runs_out_of_space() {
    let Some(folder) = folder_of_child() else {
        return;
    };
    let no_space = |error: WalError| {
        assert!(matches!(error, WalError::NoSpace { .. }), "{error}");
    };
    let (mut log, _) = Log::open(&folder).unwrap();
    let mut count = 0;
    no_space(
        (0..)
            .find_map(|_| {
                let failed = log.append(&[7; 3000]).err();
                count += u64::from(failed.is_none());
                failed
            })
            .unwrap(),
    );
    assert!(count > 0, "the limit leaves room for some records");
    let file = folder.join("log-0000000000000001.djinn");
    assert_eq!(file.metadata().unwrap().len(), log.bytes());
    no_space(log.append(&[7; 3000]).unwrap_err());
    log.append(b"still fits").unwrap();
    log.sync().unwrap();
    no_space(log.compact(vec![vec![1; 3000]; 1000]).unwrap_err());
    log.append(b"so does this").unwrap();

    let path = folder.join("archive");
    let mut writer = ArchiveWriter::create(&path, b"{}", 3000, false).unwrap();
    no_space((0..).find_map(|_| writer.write(&[2; 3000]).err()).unwrap());
    // The pages written before the failure form a valid archive.
    writer.finish().unwrap();
    println!("\nappended {count}");
}

#[test]
fn a_full_disk_loses_no_record() {
    let folder = tempfile::tempdir().unwrap();
    // A limit on the size of files stands in for a full disk: the last write is cut in the same
    // way, and the next one fails.
    let shell = "trap '' XFSZ; ulimit -f 40;";
    let output = child(shell, "child_runs_out_of_space", folder.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{error}");
    let count = said.lines().find_map(|line| line.strip_prefix("appended "));
    let count: usize = count.unwrap().parse().unwrap();
    let (log, found) = Log::open(folder.path()).unwrap();
    let found = found.records;
    assert_eq!((found.len(), log.torn()), (count + 2, 0));
    assert_eq!(found[count..], [&b"still fits"[..], b"so does this"]);
    let archive = Archive::open(&folder.path().join("archive")).unwrap();
    assert!(archive.pages() > 0);
    archive
        .read(archive.pages() - 1, &mut vec![0; 3000])
        .unwrap();
    let left = fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(left, 3, "lock, log and archive");
}

#[test]
fn child_creates_every_kind_of_file() {
    let Some(folder) = folder_of_child() else {
        return;
    };
    let inner = folder.join("a/b");
    let (mut log, _) = Log::open(&inner).unwrap();
    log.append(b"first").unwrap();
    log.append(b"second").unwrap();
    log.sync().unwrap();
    drop(log);
    // An older release left a file that other users can read, and a record is damaged.
    let file = inner.join("log-0000000000000001.djinn");
    let mut bytes = fs::read(&file).unwrap();
    bytes[60] ^= 1;
    fs::write(&file, bytes).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let (log, found) = Log::open(&inner).unwrap();
    assert_eq!(
        (found.records, found.set_aside.len()),
        (vec![b"second".to_vec()], 1)
    );
    drop(log);
    let file = inner.join("log-0000000000000002.djinn");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    Log::open(&inner).unwrap();
    let writer = ArchiveWriter::create(&inner.join("archive"), b"{}", 10, false).unwrap();
    writer.finish().unwrap();
    for _ in 0..2 {
        write_atomically(&inner.join("atomic"), b"text").unwrap();
    }
    println!("\ncreated");
}

/// Permissions of everything below a folder.
fn modes(folder: &Path) -> Vec<(PathBuf, bool, u32)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o7777;
        found.push((path.clone(), path.is_dir(), mode));
        if path.is_dir() {
            found.extend(modes(&path));
        }
    }
    found
}

#[test]
fn files_are_private_whatever_the_umask() {
    for umask in ["000", "022", "0777"] {
        let folder = tempfile::tempdir().unwrap();
        let shell = format!("umask {umask};");
        let output = child(&shell, "child_creates_every_kind_of_file", folder.path())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("created"), "{said}");
        let found = modes(folder.path());
        // Two folders, the lock, the log, the damaged log, an archive and an atomic file.
        assert_eq!(found.len(), 7, "{found:?}");
        for (path, is_folder, mode) in found {
            let expect = if is_folder { 0o700 } else { 0o600 };
            assert_eq!(mode, expect, "{} with umask {umask}", path.display());
        }
    }
}
