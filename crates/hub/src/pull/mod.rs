//! Download of a model: requests the listing, selects files, downloads several at once, and marks
//! the folder as complete when all files are verified.

mod client;
mod fetch;
mod folder;
mod listing;
mod partial_file;
mod request;
mod response;
mod retry;

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::thread;

pub use request::Pull;
pub use retry::Retry;

use crate::checkpoint;
use crate::error::HubError;
use crate::progress::Progress;
use client::HubClient;
use fetch::FileFetcher;
use folder::ModelFolder;
use listing::{RemoteFile, RepoListing};
use retry::AbortSignal;

/// Number of files that are downloaded at the same time.
const FILES_AT_ONCE: usize = 4;

/// Downloads a model and returns its folder. The download keeps complete files and continues
/// partial files.
pub fn pull(request: &Pull, progress: &dyn Progress) -> Result<PathBuf, HubError> {
    let client = HubClient::new(request)?;
    let abort = AbortSignal::default();
    let listing = RepoListing::request(request, &client, &abort, progress)?;
    let chosen = checkpoint::choose(request.id.as_str(), &listing.names())?;
    let mut files = listing.pick(chosen)?;
    let download = ModelDownload {
        folder: ModelFolder::claim(request)?,
        fetch: FileFetcher {
            request,
            client: &client,
            sha: &listing.sha,
            abort: &abort,
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

/// Returns the shards that the downloaded index names. A name that leads out of the folder is an
/// error.
fn shards<'a>(
    request: &Pull,
    listing: &'a RepoListing,
    folder: &ModelFolder,
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

/// Download of one model into its folder.
struct ModelDownload<'a> {
    folder: ModelFolder,
    fetch: FileFetcher<'a>,
}

impl ModelDownload<'_> {
    /// Downloads the files that the folder does not have. The first failure stops the other
    /// downloads.
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
        self.fetch.abort.outcome()
    }

    fn work<'f>(&self, queue: &Mutex<impl Iterator<Item = &'f RemoteFile>>) {
        let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
        while !self.fetch.abort.is_set()
            && let Some(file) = next()
        {
            if let Err(error) = self.one(file) {
                self.fetch.abort.set(error);
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
