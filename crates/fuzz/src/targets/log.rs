//! The session log: an input is the content of a log file, or its records, one on each line.

use djinn_engine::{Request, RestoreScope, StateFolder};
use djinn_wal::Log;

use super::session::{identity, run_passes};
use crate::{fixtures, scratch};

/// First bytes of a log file.
const MAGIC: &[u8] = b"djinnlog";
/// Word that stands for the identity of the model in records.
const IDENTITY: &str = "IDENTITY";

/// Reads a log and restores its sessions.
pub fn run(data: &[u8]) {
    match data.starts_with(MAGIC) {
        true => read_file(data),
        false => read_records(data),
    }
}

/// Opens a folder that contains the input as its log file.
fn read_file(data: &[u8]) {
    let folder = scratch::folder();
    scratch::write(folder.path(), "log-0000000000000001.djinn", data);
    let inspected = Log::inspect(folder.path());
    let Ok((mut log, contents)) = Log::open(folder.path()) else {
        return;
    };
    log.append(b"next")
        .expect("the temporary folder is writable");
    drop(log);
    let records = contents.records;
    let inspected = inspected.expect("a log that opens can be read");
    assert_eq!(inspected.records, records);
    let (_, again) = Log::open(folder.path()).expect("the log was repaired");
    assert_eq!(again.records[..records.len()], records);
    assert_eq!(again.records[records.len()..], [b"next"]);
    assert!(again.damage.is_empty(), "a repaired log has no damage");
}

/// Writes each line of the input as a record, and restores the state folder.
fn read_records(data: &[u8]) {
    let folder = scratch::folder();
    let (mut log, _) = Log::open(folder.path()).expect("the temporary folder is writable");
    let text = String::from_utf8_lossy(data).replace(IDENTITY, &identity().1);
    for line in text.lines().filter(|line| !line.is_empty()) {
        log.append(line.as_bytes()).expect("the line is short");
    }
    drop(log);
    let Ok(state) = StateFolder::open(folder.path()) else {
        return;
    };
    for session in state.sessions() {
        let _ = (session.generated(), session.state.status());
        let _ = state.export(session.id);
    }
    let mut engine = fixtures::engine();
    let Ok(restored) = engine.attach_state(state, RestoreScope::All) else {
        return;
    };
    let request = Request {
        tokens: vec![1],
        ..Request::default()
    };
    // The restored sessions may have taken all the room.
    let new = engine.open(request).ok();
    run_passes(&mut engine);
    for id in restored.sessions.into_iter().chain(new) {
        engine.close(id);
    }
    engine.check_integrity();
    drop(engine);
    StateFolder::open(folder.path()).expect("an engine leaves a valid log");
}
