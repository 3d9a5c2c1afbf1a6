//! Downloading a model: ask the hub what there is, choose, fetch several files at once, and say that
//! the folder is complete only when all have arrived.

mod answer;
mod client;
mod fetch;
mod folder;
mod listing;
mod part;
mod retry;

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::thread;

pub use retry::Retry;

use crate::env::Environment;
use crate::{HubError, ModelId, Progress, Token, checkpoint};
use client::Client;
use fetch::Fetch;
use folder::Folder;
use listing::{Listing, RemoteFile};
use retry::Halt;

/// Enough to fill a link when one connection does not; few enough to be no burden on the hub.
const FILES_AT_ONCE: usize = 4;

/// A model to download, from where and to where.
#[derive(Debug, Clone)]
pub struct Pull {
    /// The model.
    pub id: ModelId,
    /// A branch, a tag or a commit.
    pub revision: String,
    /// The hub, as `https://host`.
    pub endpoint: String,
    /// For private and gated models.
    pub token: Option<Token>,
    /// Certificates (PEM) to trust instead of the ones compiled in.
    pub certificates: Option<PathBuf>,
    /// Djinn's home: the model comes to lie in `models/{id}` under it.
    pub home: PathBuf,
    /// How often, and after how long, to try again.
    pub retry: Retry,
}

impl Pull {
    /// The model's main branch, with all else as the environment says: `HF_ENDPOINT`, `HF_TOKEN` (or
    /// the file `$HF_HOME/token`), `SSL_CERT_FILE` and `DJINN_HOME`.
    pub fn from_env(id: &str) -> Result<Self, HubError> {
        let env = Environment::process();
        Ok(Self {
            id: id.parse()?,
            revision: "main".to_owned(),
            endpoint: env.endpoint(),
            token: env.token()?,
            certificates: env.certificates(),
            home: env.places()?.home,
            retry: Retry::default(),
        })
    }

    /// The endpoint as URLs are built on it.
    fn base(&self) -> &str {
        self.endpoint.trim_end_matches('/')
    }
}

/// Downloads a model and returns its folder. What is already there is kept, and what was interrupted
/// goes on where it stopped.
pub fn pull(request: &Pull, progress: &dyn Progress) -> Result<PathBuf, HubError> {
    let client = Client::new(request)?;
    let halt = Halt::default();
    let listing = Listing::ask(request, &client, &halt, progress)?;
    let chosen = checkpoint::choose(request.id.as_str(), &listing.names())?;
    let mut files = listing.pick(chosen)?;
    let download = Download {
        folder: Folder::claim(request)?,
        fetch: Fetch {
            request,
            client: &client,
            sha: &listing.sha,
            halt: &halt,
            progress,
        },
    };
    download.all(&files)?;
    if files.iter().any(|file| file.name == checkpoint::INDEX) {
        let shards = shards(request, &listing, &download.folder)?;
        download.all(&shards)?;
        files.extend(shards);
    }
    download.folder.complete(request, &listing.sha, &files)
}

/// The shards that the index just downloaded names, none of which may leave the folder.
fn shards<'a>(
    request: &Pull,
    listing: &'a Listing,
    folder: &Folder,
) -> Result<Vec<&'a RemoteFile>, HubError> {
    let named = checkpoint::shards(&folder.path.join(checkpoint::INDEX))?;
    match named.iter().find(|name| !checkpoint::is_safe_shard(name)) {
        Some(name) => Err(HubError::UnsafeName {
            id: request.id.to_string(),
            name: name.clone(),
        }),
        None => listing.pick(named.iter().map(String::as_str)),
    }
}

/// One model on its way into its folder.
struct Download<'a> {
    folder: Folder,
    fetch: Fetch<'a>,
}

impl Download<'_> {
    /// Fetches those of `files` that the folder does not hold. The first failure ends the others.
    fn all(&self, files: &[&RemoteFile]) -> Result<(), HubError> {
        let mut wanted = Vec::new();
        for &file in files {
            if !self.folder.holds(file)? {
                wanted.push(file);
            }
        }
        if wanted.is_empty() {
            return Ok(());
        }
        self.folder.begin(&wanted)?;
        let workers = wanted.len().min(FILES_AT_ONCE);
        let queue = Mutex::new(wanted.into_iter());
        thread::scope(|scope| {
            for _ in 0..workers {
                scope.spawn(|| self.work(&queue));
            }
        });
        self.fetch.halt.outcome()
    }

    fn work<'f>(&self, queue: &Mutex<impl Iterator<Item = &'f RemoteFile>>) {
        let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
        while !self.fetch.halt.is_set()
            && let Some(file) = next()
        {
            if let Err(error) = self.one(file) {
                self.fetch.halt.set(error);
            }
        }
    }

    fn one(&self, file: &RemoteFile) -> Result<(), HubError> {
        let bytes = self.fetch.file(file, &self.folder)?;
        self.folder.keep(file, bytes)?;
        self.fetch.progress.finish(&file.name);
        Ok(())
    }
}
