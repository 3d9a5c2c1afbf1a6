//! `djinn sessions`

use djinn_engine::SavedFile;
use djinn_terminal::{Failure, id_list, say, say_json};
use djinn_types::text::table;
use serde_json::{Value, json};

use super::{
    connection::{on_server, runtime},
    session_repair::{damage_json, damage_text, repair},
    session_store::{SessionContent, SessionEntry, SessionStore},
};
use crate::args::{Sessions, SessionsArgs};

/// Lists, shows, saves, loads, deletes or repairs sessions of a folder or of a server.
pub fn sessions(args: &SessionsArgs) -> Result<(), Failure> {
    check(args)?;
    // The file is read before a folder is created.
    let saved = match &args.action {
        Sessions::Load { file, .. } => Some(SavedFile::read(file)?),
        _ => None,
    };
    match &args.state {
        Some(folder) => {
            let store = match &args.action {
                Sessions::Repair => return repair(folder, args.json),
                Sessions::Load { .. } => SessionStore::open_or_create_folder(folder)?,
                Sessions::Delete { .. } => SessionStore::open_folder(folder)?,
                _ => SessionStore::read_folder(folder)?,
            };
            runtime()?.block_on(run(args, store, saved))
        }
        None => on_server(&args.server, async |client| {
            run(args, SessionStore::Server(client), saved).await
        }),
    }
}

/// Refuses flags that the store does not use.
fn check(args: &SessionsArgs) -> Result<(), Failure> {
    let message = match (&args.state, &args.server.server, &args.action) {
        (None, None, _) => {
            "no session store named: give --state DIR, as with 'djinn run --state DIR', or --server ADDR"
        }
        (Some(_), Some(_), _) => "--state and --server cannot be combined; give one of them",
        (Some(_), None, Sessions::Load { model: Some(_), .. }) => {
            "--model works only with --server, since a folder belongs to one model"
        }
        (None, Some(_), Sessions::Show { model: Some(_), .. }) => {
            "--model works only with --state, since the server has the tokenizer"
        }
        (None, Some(_), Sessions::Repair) => {
            "repair works on a folder of this machine: give --state DIR instead of --server"
        }
        _ => return Ok(()),
    };
    Err(Failure::Message(message.into()))
}

async fn run(
    args: &SessionsArgs,
    mut store: SessionStore,
    saved: Option<SavedFile>,
) -> Result<(), Failure> {
    match &args.action {
        Sessions::List { all_owners } => list(args, &store, &store.list(*all_owners).await?),
        Sessions::Show { id, model } => {
            let session = store.get(id).await?;
            match args.json {
                true => say_json(&content_json(&session)),
                false => say(&content_text(&store, &session, model.as_deref()).await?),
            }
        }
        Sessions::Save { id, file, force } => {
            store.save(id).await?.write(file, *force)?;
            let text = format!("session {id} saved to {}", file.display());
            print(args, &text, std::slice::from_ref(id))
        }
        Sessions::Load { model, .. } => {
            let saved = saved.expect("the file was read");
            let model = model.as_deref().unwrap_or_default();
            let id = store.load(saved, model).await?;
            print(args, &format!("loaded as session {id}"), &[id])
        }
        Sessions::Delete { ids } => {
            let ids = store.delete(ids).await?;
            print(args, &format!("deleted: {}", ids.join(", ")), &ids)
        }
        Sessions::Repair => Err(Failure::Message("repair needs --state DIR".into())),
    }
}

/// Prints a line, or the ids as JSON.
fn print(args: &SessionsArgs, text: &str, ids: &[String]) -> Result<(), Failure> {
    match args.json {
        true => say_json(&json!({ "sessions": ids })),
        false => say(&format!("{text}\n")),
    }
}

fn list(
    args: &SessionsArgs,
    store: &SessionStore,
    sessions: &[SessionEntry],
) -> Result<(), Failure> {
    let damaged = store.damaged();
    if args.json {
        let all: Vec<Value> = sessions.iter().map(entry_json).collect();
        let mut report = json!({ "sessions": all });
        if let Some(model) = store.model() {
            report["model"] = json!(model);
        }
        if !damaged.is_empty() {
            report["damaged"] = damage_json(&damaged);
        }
        return say_json(&report);
    }
    let row = |entry: &SessionEntry| {
        let pages = entry.pages;
        vec![
            entry.id.clone(),
            entry.model.clone(),
            entry.state.clone(),
            entry.tokens.to_string(),
            entry.generated.to_string(),
            entry.owner.clone(),
            pages.map_or("-".to_owned(), |(all, here)| format!("{here} of {all}")),
            entry.paused_at.clone(),
        ]
    };
    let rows: Vec<Vec<String>> = sessions.iter().map(row).collect();
    let header = [
        "session",
        "model",
        "state",
        "tokens",
        "generated",
        "owner",
        "pages on device",
        "at",
    ];
    let mut text = match rows.is_empty() {
        true => "no sessions\n".to_owned(),
        false => table(&header, &rows),
    };
    if let (Some(folder), false) = (&args.state, damaged.is_empty()) {
        text += &format!(
            "\ndamaged:\n{}run djinn sessions repair --state {} to keep the readable sessions\n",
            damage_text(&damaged),
            folder.display()
        );
    }
    say(&text)
}

fn entry_json(entry: &SessionEntry) -> Value {
    let mut all = json!({
        "id": entry.id, "model": entry.model, "owner": entry.owner,
        "state": entry.state, "tokens": entry.tokens, "generated": entry.generated,
    });
    for (key, value) in entry.details.as_object().into_iter().flatten() {
        all[key] = value.clone();
    }
    all
}

fn content_json(session: &SessionContent) -> Value {
    let mut all = entry_json(&session.entry);
    all["token_ids"] = json!(session.token_ids);
    all
}

/// Description of a session, then its input and output in order.
async fn content_text(
    store: &SessionStore,
    session: &SessionContent,
    model: Option<&str>,
) -> Result<String, Failure> {
    let entry = &session.entry;
    let paused = match entry.paused_at.as_str() {
        "" => String::new(),
        hook => format!(" at {hook}"),
    };
    let mut text = format!(
        "session {} of {}: {}{paused}, {} tokens, {} of them generated\n",
        entry.id, entry.model, entry.state, entry.tokens, entry.generated,
    );
    if let Some(reason) = &session.ended {
        text += &format!("ended: {reason}\n");
    }
    let (labels, parts) = parts(session);
    let texts = store.texts(entry, model, &parts).await?;
    let texts = texts.unwrap_or_else(|| parts.iter().map(|part| id_list(part)).collect());
    for (label, part) in labels.into_iter().zip(texts) {
        let part = part.trim().replace('\n', "\n           ");
        text += &format!("{label:>9}: {part}\n");
    }
    Ok(text)
}

/// Input and output of a session in order, without empty parts, with a label for each.
fn parts(session: &SessionContent) -> (Vec<&'static str>, Vec<&[u32]>) {
    let all = &session.token_ids[..];
    let Some(inputs) = &session.inputs else {
        return (vec!["text"], vec![all]);
    };
    let mut parts = Vec::new();
    let mut end = 0;
    for &(start, stop) in inputs {
        parts.push(("generated", &all[end..start]));
        parts.push(("given", &all[start..stop]));
        end = stop;
    }
    parts.push(("generated", &all[end..]));
    parts.retain(|(_, part)| !part.is_empty());
    parts.into_iter().unzip()
}
