//! Sessions of a server.

use std::{collections::BTreeSet, path::Path};

use djinn_client::{Client, v1};
use djinn_engine::SavedFile;
use serde_json::{Value, json};

use crate::{
    args::{Sessions, SessionsArgs},
    commands::connection::on_server,
    failure::{Failure, say, say_json},
    style::{id_list, table},
};

/// Lists, shows, saves, loads or deletes sessions of a server.
pub fn sessions(args: &SessionsArgs) -> Result<(), Failure> {
    if args.state.is_some() {
        return Err(Failure::Message(
            "--state and --server exclude each other: give one of them".into(),
        ));
    }
    on_server(&args.server, async |client| match &args.what {
        Sessions::List => list(args, client.sessions(None).await?),
        Sessions::Show { id, model } => {
            if model.is_some() {
                return Err(Failure::Message(
                    "--model works only with --state, since the server has the tokenizer".into(),
                ));
            }
            show(args, &client, id).await
        }
        Sessions::Save { id, file, force } => {
            save(&client, id, file, *force).await?;
            let text = format!("session {id} saved to {}", file.display());
            print(args, &text, std::slice::from_ref(id))
        }
        Sessions::Load { file, model } => {
            let model = client.model(model.clone().unwrap_or_default());
            let saved = SavedFile::read(file)?.to_bytes();
            let name = model.load(saved).await?.name().to_owned();
            print(args, &format!("loaded as session {name}"), &[name])
        }
        Sessions::Delete { ids } => delete(args, &client, ids).await,
    })
}

/// Prints a line, or the names as JSON.
fn print(args: &SessionsArgs, text: &str, names: &[String]) -> Result<(), Failure> {
    match args.json {
        true => say_json(&json!({ "sessions": names })),
        false => say(&format!("{text}\n")),
    }
}

fn list(args: &SessionsArgs, sessions: Vec<v1::Session>) -> Result<(), Failure> {
    if args.json {
        let all: Vec<Value> = sessions.iter().map(to_json).collect();
        return say_json(&json!({ "sessions": all }));
    }
    let line = |s: &v1::Session| {
        vec![
            s.session.clone(),
            s.state.clone(),
            s.tokens.to_string(),
            s.generated.to_string(),
            s.owner.clone(),
            format!("{} of {}", s.pages - s.pages_away.min(s.pages), s.pages),
            s.paused.as_ref().map_or("", |at| &at.hook).to_owned(),
        ]
    };
    let lines: Vec<Vec<String>> = sessions.iter().map(line).collect();
    let head = [
        "session",
        "state",
        "tokens",
        "generated",
        "owner",
        "pages on device",
        "at",
    ];
    match lines.is_empty() {
        true => say("no sessions\n"),
        false => say(&table(&head, &lines)),
    }
}

fn to_json(session: &v1::Session) -> Value {
    let paused = session.paused.as_ref().map(|at| {
        json!({ "hook": at.hook, "position": at.position, "rows": at.rows, "shape": at.shape })
    });
    json!({
        "id": session.session, "model": session.model, "owner": session.owner,
        "state": session.state, "tokens": session.tokens, "generated": session.generated,
        "pages": session.pages, "pages_away": session.pages_away, "paused": paused,
    })
}

async fn show(args: &SessionsArgs, client: &Client, id: &str) -> Result<(), Failure> {
    let session = client.session(id).info().await?;
    if args.json {
        let mut all = to_json(&session);
        all["token_ids"] = json!(session.token_ids);
        return say_json(&all);
    }
    let words = client.model(&session.model);
    let words = words.detokenize(&session.token_ids, false).await;
    let text = words.unwrap_or_else(|_| id_list(&session.token_ids));
    let at = session.paused.as_ref();
    let at = at.map_or(String::new(), |at| format!(" at {}", at.hook));
    say(&format!(
        "session {} of {}: {}{at}, {} tokens, {} of them generated\n{}\n",
        session.session,
        session.model,
        session.state,
        session.tokens,
        session.generated,
        text.trim()
    ))
}

/// Saves a session in the format of a state folder's sessions, so that both can load it.
async fn save(client: &Client, id: &str, file: &Path, force: bool) -> Result<(), Failure> {
    let saved = client.session(id).save().await?;
    Ok(SavedFile::from_bytes(&saved)?.write(file, force)?)
}

async fn delete(args: &SessionsArgs, client: &Client, ids: &[String]) -> Result<(), Failure> {
    let names: Vec<String> = BTreeSet::from_iter(ids).into_iter().cloned().collect();
    // A wrong name fails before anything is deleted.
    for name in &names {
        client.session(name).info().await?;
    }
    for name in &names {
        client.session(name).delete().await?;
    }
    print(args, &format!("deleted: {}", names.join(", ")), &names)
}
