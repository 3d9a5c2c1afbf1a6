//! Stores of sessions: a state folder, or a server.

use std::{collections::BTreeSet, path::Path};

use djinn_client::{Client, v1};
use djinn_engine::{
    FolderContents, SavedFile, SavedSession, SavedState, SessionId, StateDamage, StateFolder,
};
use djinn_model::Model;
use djinn_terminal::Failure;
use djinn_types::ParseSessionIdError;
use serde_json::{Value, json};

use super::session_repair::{model_folders, repair_notes};
use crate::bundled;

/// Store of sessions.
pub enum SessionStore {
    /// Folder of saved sessions.
    Folder(StateFolder),
    /// Folder that is read only: also while another process uses it, or while it is damaged.
    Contents(FolderContents),
    /// Server that keeps sessions.
    Server(Client),
}

/// Description of a session.
pub struct SessionEntry {
    /// Id of the session in a folder, or its name on a server.
    pub id: String,
    /// Name of the model.
    pub model: String,
    /// State of the session.
    pub state: String,
    /// Number of tokens.
    pub tokens: u64,
    /// Number of generated tokens.
    pub generated: u64,
    /// Owner of the session.
    pub owner: String,
    /// Number of KV pages, and of those on the device; only on a server.
    pub pages: Option<(u64, u64)>,
    /// Hook at which the session is paused; empty if the session is not paused.
    pub paused_at: String,
    /// Facts that only one kind of store has, for JSON.
    pub details: Value,
}

/// A session with its tokens.
pub struct SessionContent {
    /// Description of the session.
    pub entry: SessionEntry,
    /// All tokens.
    pub token_ids: Vec<u32>,
    /// Ranges of tokens that are input; none if the store does not tell input and output apart.
    pub inputs: Option<Vec<(usize, usize)>>,
    /// Reason why the session ended, if it did.
    pub ended: Option<String>,
}

/// Id of a session in a folder.
pub fn session_id(id: &str) -> Result<SessionId, Failure> {
    id.parse().map_err(|error: ParseSessionIdError| {
        Failure::Message(format!("{error}; djinn sessions list shows the ids"))
    })
}

/// Refuses a folder without sessions.
fn check_folder(folder: &Path) -> Result<(), Failure> {
    if StateFolder::is_in(folder) {
        return Ok(());
    }
    let below = model_folders(folder);
    let folder = folder.display();
    Err(Failure::Message(match below.first() {
        Some(one) => format!(
            "{folder} is the state folder of a server; give the folder of one of its models, for example \
             --state {}",
            one.display()
        ),
        None => format!(
            "{folder} has no saved sessions; check --state, or save one with djinn run --state {folder}"
        ),
    }))
}

/// Error of a change in a folder that was opened to be read.
fn read_only() -> Failure {
    Failure::Message("the folder was opened for reading only".to_owned())
}

impl SessionStore {
    /// Opens a folder that has sessions.
    pub fn open_folder(folder: &Path) -> Result<Self, Failure> {
        check_folder(folder)?;
        Self::open_or_create_folder(folder)
    }

    /// Opens a folder, or creates an empty one.
    pub fn open_or_create_folder(folder: &Path) -> Result<Self, Failure> {
        let opened = StateFolder::open(folder)?;
        eprint!("{}", repair_notes(&opened));
        Ok(SessionStore::Folder(opened))
    }

    /// Reads a folder that has sessions, and changes nothing there.
    pub fn read_folder(folder: &Path) -> Result<Self, Failure> {
        check_folder(folder)?;
        Ok(SessionStore::Contents(StateFolder::inspect(folder)?))
    }

    /// Name of the model that a folder belongs to; none for a server.
    pub fn model(&self) -> Option<&str> {
        match self {
            SessionStore::Folder(folder) => folder.model(),
            SessionStore::Contents(folder) => folder.model(),
            SessionStore::Server(_) => None,
        }
    }

    /// Losses of a damaged folder that was opened for reading.
    pub fn damaged(&self) -> Vec<StateDamage> {
        match self {
            SessionStore::Contents(folder) => folder.damaged(),
            SessionStore::Folder(_) | SessionStore::Server(_) => Vec::new(),
        }
    }

    /// Lists the sessions of a folder, or of the caller on a server; with `all_owners` those of everyone.
    pub async fn list(&self, all_owners: bool) -> Result<Vec<SessionEntry>, Failure> {
        Ok(match self {
            SessionStore::Folder(folder) => {
                let (sessions, model) = (folder.sessions(), folder.model());
                sessions.map(|saved| saved_entry(model, saved)).collect()
            }
            SessionStore::Contents(folder) => {
                let (sessions, model) = (folder.sessions(), folder.model());
                sessions.map(|saved| saved_entry(model, saved)).collect()
            }
            SessionStore::Server(client) => {
                let sessions = match all_owners {
                    true => client.sessions_of_all_owners(None).await?,
                    false => client.sessions(None).await?,
                };
                sessions.iter().map(server_entry).collect()
            }
        })
    }

    /// Reads one session.
    pub async fn get(&self, id: &str) -> Result<SessionContent, Failure> {
        match self {
            SessionStore::Folder(folder) => {
                let saved = folder.get(session_id(id)?)?;
                Ok(saved_content(folder.model(), saved))
            }
            SessionStore::Contents(folder) => {
                let saved = folder.get(session_id(id)?)?;
                Ok(saved_content(folder.model(), saved))
            }
            SessionStore::Server(client) => {
                let session = client.session(id).info().await?;
                Ok(SessionContent {
                    entry: server_entry(&session),
                    token_ids: session.token_ids,
                    inputs: None,
                    ended: None,
                })
            }
        }
    }

    /// Saves a session as a file that any store can load.
    pub async fn save(&self, id: &str) -> Result<SavedFile, Failure> {
        Ok(match self {
            SessionStore::Folder(folder) => folder.export(session_id(id)?)?,
            SessionStore::Contents(folder) => folder.export(session_id(id)?)?,
            SessionStore::Server(client) => {
                SavedFile::from_bytes(&client.session(id).save().await?)?
            }
        })
    }

    /// Loads a saved session, on a server for this model. Returns its id.
    pub async fn load(&mut self, file: SavedFile, model: &str) -> Result<String, Failure> {
        Ok(match self {
            SessionStore::Folder(folder) => folder.import(file)?.to_string(),
            SessionStore::Server(client) => {
                let loaded = client.model(model).load(file.to_bytes()).await?;
                loaded.name().to_owned()
            }
            SessionStore::Contents(_) => return Err(read_only()),
        })
    }

    /// Deletes sessions. An unknown one fails before any is deleted. Returns the ids.
    pub async fn delete(&mut self, ids: &[String]) -> Result<Vec<String>, Failure> {
        let known = |id: &String| match self {
            SessionStore::Folder(_) => Ok(session_id(id)?.to_string()),
            SessionStore::Contents(_) => Err(read_only()),
            SessionStore::Server(_) => Ok(id.clone()),
        };
        let ids: BTreeSet<String> = ids.iter().map(known).collect::<Result<_, Failure>>()?;
        for id in &ids {
            self.get(id).await?;
        }
        for id in &ids {
            match self {
                SessionStore::Folder(folder) => folder.delete(session_id(id)?)?,
                SessionStore::Contents(_) => return Err(read_only()),
                SessionStore::Server(client) => client.session(id.as_str()).delete().await?,
            }
        }
        Ok(ids.into_iter().collect())
    }

    /// Converts tokens of a session to text, if its tokenizer is known. A folder uses the tokenizer of the
    /// given model, or of the bundled model if the folder belongs to it.
    pub async fn texts(
        &self,
        entry: &SessionEntry,
        model: Option<&str>,
        parts: &[&[u32]],
    ) -> Result<Option<Vec<String>>, Failure> {
        match self {
            SessionStore::Folder(_) | SessionStore::Contents(_) => {
                let model = match model {
                    Some(_) => Some(bundled::open(model)?),
                    None => bundled::open(None)
                        .ok()
                        .filter(|bundled| bundled.name == entry.model),
                };
                Ok(model.and_then(|model| decode(&model, parts)))
            }
            SessionStore::Server(client) => {
                let model = client.model(&entry.model);
                let mut texts = Vec::with_capacity(parts.len());
                for part in parts {
                    let Ok(text) = model.detokenize(part, false).await else {
                        return Ok(None);
                    };
                    texts.push(text);
                }
                Ok(Some(texts))
            }
        }
    }
}

fn decode(model: &Model, parts: &[&[u32]]) -> Option<Vec<String>> {
    let tokenizer = model.tokenizer.as_ref()?;
    let decoded = parts.iter().map(|part| tokenizer.decode(part, true).ok());
    decoded.collect()
}

/// Reason why a saved session ended, and its failure.
fn saved_end(saved: &SavedSession) -> Option<(String, Option<String>)> {
    match &saved.state {
        SavedState::Done { finish, failure } => Some((finish.to_string(), failure.clone())),
        _ => None,
    }
}

fn saved_content(model: Option<&str>, saved: &SavedSession) -> SessionContent {
    SessionContent {
        entry: saved_entry(model, saved),
        token_ids: saved.tokens.clone(),
        inputs: Some(saved.given.clone()),
        ended: saved_end(saved).map(|(finish, failure)| failure.unwrap_or(finish)),
    }
}

fn saved_entry(model: Option<&str>, saved: &SavedSession) -> SessionEntry {
    let (finish, failure) = saved_end(saved).unzip();
    SessionEntry {
        id: saved.id.to_string(),
        model: model.unwrap_or_default().to_owned(),
        state: saved.state.status().name().to_owned(),
        tokens: saved.tokens.len() as u64,
        generated: saved.generated() as u64,
        owner: saved.owner.clone(),
        pages: None,
        paused_at: String::new(),
        details: json!({
            "class": saved.class, "finish": finish, "failure": failure.flatten(),
            "given": saved.given, "sampling": saved.sampling,
        }),
    }
}

fn server_entry(session: &v1::Session) -> SessionEntry {
    let paused = session.paused.as_ref();
    let on_device = session.pages - session.pages_away.min(session.pages);
    SessionEntry {
        id: session.session.clone(),
        model: session.model.clone(),
        state: session.state.clone(),
        tokens: session.tokens,
        generated: session.generated,
        owner: session.owner.clone(),
        pages: Some((session.pages, on_device)),
        paused_at: paused.map_or(String::new(), |at| at.hook.clone()),
        details: json!({
            "pages": session.pages, "pages_away": session.pages_away,
            "paused": paused.map(|at| json!({
                "hook": at.hook, "position": at.position, "rows": at.rows, "shape": at.shape,
            })),
        }),
    }
}
