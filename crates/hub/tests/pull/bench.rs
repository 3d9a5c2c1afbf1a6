//! A home of one's own, a server to pull from, and a watcher.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use djinn_hub::{HubError, Places, Progress, Pull, Resolved, Retry, Silent, pull, resolve_in};
use tempfile::TempDir;

use crate::repo::{ID, Repo};
use crate::server::{Reply, Request, Server};

pub const SINGLE: &str = "model.safetensors";
pub const INDEX: &str = "model.safetensors.index.json";

/// A home of its own and a server to pull from.
pub struct Bench {
    pub home: TempDir,
    pub server: Server,
    pub request: Pull,
}

impl Bench {
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

    pub fn healthy(repo: Repo) -> Self {
        Self::new(move |request| repo.answer(request))
    }

    pub fn pull(&self) -> Result<PathBuf, HubError> {
        pull(&self.request, &Silent)
    }

    /// The error as a person reads it.
    pub fn refused(&self) -> String {
        self.pull().unwrap_err().to_string()
    }

    pub fn folder(&self) -> PathBuf {
        self.home.path().join("models/org/name")
    }

    /// What lies in the model's folder, hidden files aside.
    pub fn files(&self) -> BTreeSet<String> {
        let entries = fs::read_dir(self.folder()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| !name.starts_with('.')).collect()
    }

    pub fn resolves(&self) -> bool {
        let places = Places {
            home: self.home.path().to_owned(),
            hf_cache: None,
        };
        resolve_in(ID, &places).is_ok_and(|found| found == Resolved::Folder(self.folder()))
    }
}

/// What a watcher saw of one file since it last started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    pub total: Option<u64>,
    pub already: u64,
    pub came: u64,
    pub finished: bool,
}

/// A watcher that remembers.
#[derive(Default)]
pub struct Watcher(Mutex<BTreeMap<String, Seen>>);

impl Watcher {
    pub fn saw(&self, file: &str) -> Seen {
        self.0.lock().unwrap()[file]
    }

    fn change(&self, file: &str, change: impl FnOnce(&mut Seen)) {
        change(self.0.lock().unwrap().get_mut(file).unwrap());
    }
}

impl Progress for Watcher {
    fn start(&self, file: &str, total: Option<u64>, already: u64) {
        let seen = Seen {
            total,
            already,
            came: 0,
            finished: false,
        };
        self.0.lock().unwrap().insert(file.to_owned(), seen);
    }
    fn advance(&self, file: &str, bytes: u64) {
        self.change(file, |seen| seen.came += bytes);
    }
    fn finish(&self, file: &str) {
        self.change(file, |seen| seen.finished = true);
    }
}
