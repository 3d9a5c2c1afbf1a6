//! Fixture of the tests: a home folder, a server to pull from, and a log of progress.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use djinn_hub::{
    HubError, ModelPaths, NoProgress, Progress, Pull, Resolved, Retry, pull, resolve_in,
};
use tempfile::TempDir;

use crate::repo::{ID, Repo};
use crate::server::{Reply, Request, Server};

pub const SINGLE: &str = "model.safetensors";
pub const INDEX: &str = "model.safetensors.index.json";

/// Temporary home folder and a server to pull from.
pub struct PullFixture {
    pub home: TempDir,
    pub server: Server,
    pub request: Pull,
}

impl PullFixture {
    pub fn new(answer: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        let home = tempfile::tempdir().unwrap();
        let server = Server::start(answer);
        let request = Pull {
            id: ID.parse().unwrap(),
            revision: "main".to_owned(),
            endpoint: server.url.clone(),
            token: None,
            certificates: None,
            home: home.path().to_owned(),
            retry: Retry {
                tries: 3,
                backoff: Duration::from_millis(1),
            },
        };
        Self {
            home,
            server,
            request,
        }
    }

    /// Serves a repository without errors.
    pub fn healthy(repo: Repo) -> Self {
        Self::new(move |request| repo.answer(request))
    }

    pub fn pull(&self) -> Result<PathBuf, HubError> {
        pull(&self.request, &NoProgress)
    }

    /// Returns the error of a pull that must fail.
    pub fn error(&self) -> HubError {
        self.pull().unwrap_err()
    }

    pub fn folder(&self) -> PathBuf {
        self.home.path().join("models/org/name")
    }

    /// Returns the files in the model folder, without hidden ones.
    pub fn files(&self) -> BTreeSet<String> {
        let entries = fs::read_dir(self.folder()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| !name.starts_with('.')).collect()
    }

    pub fn resolves(&self) -> bool {
        let paths = ModelPaths {
            home: self.home.path().to_owned(),
            hf_cache: None,
        };
        resolve_in(ID, &paths).is_ok_and(|found| found == Resolved::Folder(self.folder()))
    }
}

/// Progress of one file since its last start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileProgress {
    pub total: Option<u64>,
    pub already: u64,
    pub received: u64,
    pub finished: bool,
}

/// Log of progress reports.
#[derive(Default)]
pub struct ProgressLog(Mutex<BTreeMap<String, FileProgress>>);

impl ProgressLog {
    pub fn of(&self, file: &str) -> FileProgress {
        self.0.lock().unwrap()[file]
    }

    fn change(&self, file: &str, change: impl FnOnce(&mut FileProgress)) {
        change(self.0.lock().unwrap().get_mut(file).unwrap());
    }
}

impl Progress for ProgressLog {
    fn start(&self, file: &str, total: Option<u64>, already: u64) {
        let seen = FileProgress {
            total,
            already,
            received: 0,
            finished: false,
        };
        self.0.lock().unwrap().insert(file.to_owned(), seen);
    }
    fn advance(&self, file: &str, bytes: u64) {
        self.change(file, |seen| seen.received += bytes);
    }
    fn finish(&self, file: &str) {
        self.change(file, |seen| seen.finished = true);
    }
}
