//! `djinn sessions`

use std::{collections::BTreeSet, path::Path};

use djinn_engine::{SavedFile, SavedSession, SavedState, SessionId, StateFolder};
use djinn_model::Model;
use serde_json::{Value, json};

use super::remote;
use crate::{
    args::{Sessions, SessionsArgs},
    bundled,
    failure::{Failure, say, say_json},
    style::{id_list, table},
};

/// Does something with the sessions of a folder.
pub fn sessions(args: &SessionsArgs) -> Result<(), Failure> {
    if args.server.server.is_some() {
        return remote::sessions::sessions(args);
    }
    let Some(folder) = &args.state else {
        return Err(Failure::Message(
            "which folder? give --state DIR, as 'djinn run --state DIR' was given it, or --server ADDR"
                .into(),
        ));
    };
    match &args.what {
        Sessions::List => list(args, &kept(folder)?),
        Sessions::Show { id, model } => {
            let state = kept(folder)?;
            show(args, &state, SessionId(number(id)?), model.as_deref())
        }
        Sessions::Save { id, file, force } => {
            let state = kept(folder)?;
            let id = number(id)?;
            state.export(SessionId(id))?.write(file, *force)?;
            let text = format!("session {id} is in {}", file.display());
            tell(args, &text, &[id])
        }
        Sessions::Load { file, model } => {
            if model.is_some() {
                return Err(Failure::Message(
                    "--model is for --server: a folder has one model".into(),
                ));
            }
            let file = SavedFile::read(file)?;
            let id = StateFolder::open(folder)?.import(file)?.0;
            tell(args, &format!("it is session {id} here"), &[id])
        }
        Sessions::Delete { ids } => {
            let ids: Result<Vec<u64>, Failure> = ids.iter().map(|id| number(id)).collect();
            delete(args, &mut kept(folder)?, &ids?)
        }
    }
}

/// A session of a folder, as it is typed.
pub(super) fn number(id: &str) -> Result<u64, Failure> {
    let number = id.parse();
    number.map_err(|_| Failure::Message(format!("'{id}' is not the number of a session")))
}

/// A folder that has sessions.
fn kept(folder: &Path) -> Result<StateFolder, Failure> {
    match StateFolder::is_in(folder) {
        true => Ok(StateFolder::open(folder)?),
        false => {
            let folder = folder.display();
            Err(Failure::Message(format!(
                "no sessions are kept in {folder}"
            )))
        }
    }
}

fn delete(args: &SessionsArgs, state: &mut StateFolder, ids: &[u64]) -> Result<(), Failure> {
    let ids: Vec<u64> = BTreeSet::from_iter(ids).into_iter().copied().collect();
    // All or none: a number that is wrong is said before anything is gone.
    for id in &ids {
        state.get(SessionId(*id))?;
    }
    for id in &ids {
        state.delete(SessionId(*id))?;
    }
    let names: Vec<String> = ids.iter().map(u64::to_string).collect();
    tell(args, &format!("deleted: {}", names.join(", ")), &ids)
}

/// One line for who reads, one object for what does.
fn tell(args: &SessionsArgs, text: &str, ids: &[u64]) -> Result<(), Failure> {
    match args.json {
        true => say_json(&json!({ "sessions": ids })),
        false => say(&format!("{text}\n")),
    }
}

fn list(args: &SessionsArgs, state: &StateFolder) -> Result<(), Failure> {
    if args.json {
        let all: Vec<Value> = state.sessions().map(told).collect();
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

fn told(session: &SavedSession) -> Value {
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
        let mut all = told(session);
        all["token_ids"] = json!(session.tokens);
        all["given"] = json!(session.given);
        all["sampling"] = json!(session.sampling);
        return say_json(&all);
    }
    // The words are those of the model at hand, where there is one.
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

/// Tokens as text, or as numbers where nobody has the words.
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
