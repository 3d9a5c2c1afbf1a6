//! `djinn sessions`: saved sessions of a folder, or sessions of a server.

mod on_server;

use std::{collections::BTreeSet, path::Path};

use djinn_engine::{SavedFile, SavedSession, SavedState, SessionId, StateFolder};
use djinn_model::Model;
use serde_json::{Value, json};

use crate::{
    args::{Sessions, SessionsArgs},
    bundled,
    failure::{Failure, say, say_json},
    style::{id_list, table},
};

/// Lists, shows, saves, loads or deletes sessions.
pub fn sessions(args: &SessionsArgs) -> Result<(), Failure> {
    if args.server.server.is_some() {
        return on_server::sessions(args);
    }
    let Some(folder) = &args.state else {
        return Err(Failure::Message(
            "no place for sessions: give --state DIR, as with 'djinn run --state DIR', or --server ADDR"
                .into(),
        ));
    };
    match &args.what {
        Sessions::List => list(args, &open_folder(folder)?),
        Sessions::Show { id, model } => {
            let state = open_folder(folder)?;
            show(args, &state, SessionId(number(id)?), model.as_deref())
        }
        Sessions::Save { id, file, force } => {
            let state = open_folder(folder)?;
            let id = number(id)?;
            state.export(SessionId(id))?.write(file, *force)?;
            let text = format!("session {id} saved to {}", file.display());
            print(args, &text, &[id])
        }
        Sessions::Load { file, model } => {
            if model.is_some() {
                return Err(Failure::Message(
                    "--model works only with --server, since a folder belongs to one model".into(),
                ));
            }
            let file = SavedFile::read(file)?;
            let id = StateFolder::open(folder)?.import(file)?.0;
            print(args, &format!("loaded as session {id}"), &[id])
        }
        Sessions::Delete { ids } => {
            let ids: Result<Vec<u64>, Failure> = ids.iter().map(|id| number(id)).collect();
            delete(args, &mut open_folder(folder)?, &ids?)
        }
    }
}

/// Number of a session in a folder, from its flag.
pub fn number(id: &str) -> Result<u64, Failure> {
    let number = id.parse();
    number.map_err(|_| Failure::Message(format!("'{id}' is not the number of a session")))
}

/// Opens a folder that has sessions.
fn open_folder(folder: &Path) -> Result<StateFolder, Failure> {
    match StateFolder::is_in(folder) {
        true => Ok(StateFolder::open(folder)?),
        false => {
            let folder = folder.display();
            Err(Failure::Message(format!("{folder} has no saved sessions")))
        }
    }
}

fn delete(args: &SessionsArgs, state: &mut StateFolder, ids: &[u64]) -> Result<(), Failure> {
    let ids: Vec<u64> = BTreeSet::from_iter(ids).into_iter().copied().collect();
    // A wrong number fails before anything is deleted.
    for id in &ids {
        state.get(SessionId(*id))?;
    }
    for id in &ids {
        state.delete(SessionId(*id))?;
    }
    let names: Vec<String> = ids.iter().map(u64::to_string).collect();
    print(args, &format!("deleted: {}", names.join(", ")), &ids)
}

/// Prints a line, or the numbers as JSON.
fn print(args: &SessionsArgs, text: &str, ids: &[u64]) -> Result<(), Failure> {
    match args.json {
        true => say_json(&json!({ "sessions": ids })),
        false => say(&format!("{text}\n")),
    }
}

fn list(args: &SessionsArgs, state: &StateFolder) -> Result<(), Failure> {
    if args.json {
        let all: Vec<Value> = state.sessions().map(to_json).collect();
        return say_json(&json!({ "model": state.model(), "sessions": all }));
    }
    let line = |s: &SavedSession| {
        vec![
            s.id.to_string(),
            s.state.status().name().to_owned(),
            s.tokens.len().to_string(),
            s.generated().to_string(),
            s.owner.clone(),
        ]
    };
    let lines: Vec<Vec<String>> = state.sessions().map(line).collect();
    match (state.model(), lines.is_empty()) {
        (Some(model), false) => {
            let head = ["session", "state", "tokens", "generated", "owner"];
            say(&format!("{model}\n{}", table(&head, &lines)))
        }
        _ => say("no sessions\n"),
    }
}

fn to_json(session: &SavedSession) -> Value {
    let (finish, failure) = match &session.state {
        SavedState::Done { finish, failure } => (Some(finish.to_string()), failure.clone()),
        _ => (None, None),
    };
    json!({
        "id": session.id, "owner": session.owner, "state": session.state.status().name(),
        "class": session.class, "tokens": session.tokens.len(),
        "generated": session.generated(), "finish": finish, "failure": failure,
    })
}

fn show(
    args: &SessionsArgs,
    state: &StateFolder,
    id: SessionId,
    model: Option<&str>,
) -> Result<(), Failure> {
    let session = state.get(id)?;
    if args.json {
        let mut all = to_json(session);
        all["token_ids"] = json!(session.tokens);
        all["given"] = json!(session.given);
        all["sampling"] = json!(session.sampling);
        return say_json(&all);
    }
    // The tokenizer is that of the named model, or of the bundled one if the folder belongs to it.
    let model = match model {
        Some(_) => Some(bundled::open(model)?),
        None => bundled::open(None)
            .ok()
            .filter(|model| Some(model.name.as_str()) == state.model()),
    };
    let mut text = format!(
        "session {} of {}: {}, {} tokens, {} of them generated\n",
        session.id,
        state.model().unwrap_or_default(),
        session.state.status().name(),
        session.tokens.len(),
        session.generated(),
    );
    if let SavedState::Done { finish, failure } = &session.state {
        let why = failure.clone().unwrap_or_else(|| finish.to_string());
        text += &format!("ended: {why}\n");
    }
    let mut at = 0;
    for &(start, end) in &session.given {
        text += &part("generated", &session.tokens[at..start], model.as_ref());
        text += &part("given", &session.tokens[start..end], model.as_ref());
        at = end;
    }
    text += &part("generated", &session.tokens[at..], model.as_ref());
    say(&text)
}

/// Tokens as text, or as ids without a tokenizer.
fn part(what: &str, tokens: &[u32], model: Option<&Model>) -> String {
    if tokens.is_empty() {
        return String::new();
    }
    let words = model.and_then(|model| model.tokenizer.as_ref()?.decode(tokens, true).ok());
    let text = words.unwrap_or_else(|| id_list(tokens));
    format!(
        "{what:>9}: {}\n",
        text.trim().replace('\n', "\n           ")
    )
}
