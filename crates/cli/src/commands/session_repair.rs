//! `djinn sessions repair`, and the words for damage of a state folder.

use std::{
    fs,
    path::{Path, PathBuf},
};

use djinn_engine::{RepairReport, StateDamage, StateFolder};
use djinn_terminal::{Failure, say, say_json};
use serde_json::{Value, json};

/// Repairs a folder, or the folder of every model in a server's state folder.
pub fn repair(folder: &Path, is_json: bool) -> Result<(), Failure> {
    let folders = match StateFolder::is_in(folder) {
        true => vec![folder.to_owned()],
        false => model_folders(folder),
    };
    if folders.is_empty() {
        let folder = folder.display();
        return Err(Failure::Message(format!(
            "{folder} has no saved sessions; check --state"
        )));
    }
    let mut reports = Vec::with_capacity(folders.len());
    for folder in folders {
        let report = StateFolder::repair(&folder)?;
        reports.push((folder, report));
    }
    match is_json {
        true => {
            let all: Vec<Value> = reports.iter().map(report_json).collect();
            say_json(&json!({ "folders": all }))
        }
        false => say(&reports.iter().map(report_text).collect::<String>()),
    }
}

/// Folders of the models of a server's state folder, in order of their names.
pub fn model_folders(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let folders = entries.map(|entry| entry.path());
    let mut folders: Vec<PathBuf> = folders.filter(|path| StateFolder::is_in(path)).collect();
    folders.sort();
    folders
}

fn report_json((folder, report): &(PathBuf, RepairReport)) -> Value {
    json!({
        "folder": folder, "sessions": report.sessions, "damaged": damage_json(&report.damaged),
        "kept_files": report.set_aside, "torn_bytes": report.torn,
    })
}

fn report_text((folder, report): &(PathBuf, RepairReport)) -> String {
    let (folder, sessions) = (folder.display(), count(report.sessions));
    let mut text = match report.damaged.is_empty() {
        true => format!("{folder}: not damaged, {sessions}\n"),
        false => format!(
            "{folder}: repaired, {sessions} readable\ndamaged:\n{}",
            damage_text(&report.damaged)
        ),
    };
    if report.torn > 0 {
        let torn = report.torn;
        text += &format!(
            "dropped: {torn} bytes that a crash left half written; no client received them\n"
        );
    }
    for file in &report.set_aside {
        let file = file.display();
        text +=
            &format!("the damaged log is kept as {file}; delete it when you no longer need it\n");
    }
    text
}

fn count(sessions: usize) -> String {
    match sessions {
        1 => "1 session".to_owned(),
        more => format!("{more} sessions"),
    }
}

/// Losses as JSON.
pub fn damage_json(damaged: &[StateDamage]) -> Value {
    let one = |loss: &StateDamage| {
        let session = loss.session.map(|id| id.to_string());
        json!({ "session": session, "lost": loss.lost })
    };
    damaged.iter().map(one).collect()
}

/// Losses as text, one line each.
pub fn damage_text(damaged: &[StateDamage]) -> String {
    let line = |loss: &StateDamage| match loss.session {
        Some(id) => format!("  session {id}: {}\n", loss.lost),
        None => format!("  {}\n", loss.lost),
    };
    damaged.iter().map(line).collect()
}

/// Notes about damage that opening a folder has repaired; empty if there was none.
pub fn repair_notes(folder: &StateFolder) -> String {
    let damaged = folder.damaged();
    if damaged.is_empty() {
        return String::new();
    }
    let kept = folder
        .set_aside()
        .iter()
        .map(|file| file.display().to_string());
    let kept: Vec<String> = kept.collect();
    format!(
        "note: the folder was damaged and has been repaired; the damaged log is kept as {}\n{}",
        kept.join(", "),
        damage_text(&damaged)
    )
}
