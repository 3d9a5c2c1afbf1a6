//! The server under test: a `djinn serve` process that is killed, stopped and started again.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use djinn_client::{Client, Options};
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, ChildStdout, Command},
};

use crate::{error::ChaosError, shim::FaultShim};

/// Longest time that a server may take to start or to stop.
const START_LIMIT: Duration = Duration::from_secs(300);
/// Interval at which clients look for a server that is down.
const POLL: Duration = Duration::from_millis(20);
/// Timeout of calls with one reply.
const CALL_TIMEOUT: Duration = Duration::from_secs(120);
/// Seconds that turns may run on after SIGTERM.
const DRAIN_S: &str = "2";
/// Largest HTTP body that the server accepts.
pub const BODY_MAX: usize = 64 << 10;
/// Tokens of the longest session.
pub const CONTEXT: usize = 256;

/// Client of the server: an owner with its own API key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerKey {
    /// Name of the owner.
    pub name: &'static str,
    /// API key of the owner.
    pub key: &'static str,
}

/// Owners of sessions. The first one may manage models.
pub const OWNERS: [OwnerKey; 3] = [
    OwnerKey {
        name: "ada",
        key: "ada-0123456789abcdef",
    },
    OwnerKey {
        name: "bob",
        key: "bob-0123456789abcdef",
    },
    OwnerKey {
        name: "cyd",
        key: "cyd-0123456789abcdef",
    },
];

/// Way in which a server is started.
#[derive(Debug)]
pub struct Launch {
    /// Path of the `djinn` program.
    pub program: PathBuf,
    /// Folder of the model.
    pub model: PathBuf,
    /// Folder for everything that the server writes.
    pub home: PathBuf,
    /// Whether the server reads weights from their file in each pass, and has little KV memory.
    pub is_tight: bool,
    /// Library that makes the server's disks fail.
    pub shim: Option<FaultShim>,
}

impl Launch {
    /// Folder of saved sessions.
    pub fn state(home: &Path) -> PathBuf {
        home.join("state")
    }

    /// Folder of spilled KV pages.
    pub fn spill(home: &Path) -> PathBuf {
        home.join("spill")
    }

    /// Log of the server.
    pub fn log(&self) -> PathBuf {
        self.home.join("server.log")
    }

    fn command(&self) -> Result<Command, ChaosError> {
        let home = &self.home;
        let keys = home.join("keys.toml");
        let entry = |owner: &OwnerKey| {
            let admin = owner == &OWNERS[0];
            let OwnerKey { name, key } = owner;
            format!("[[key]]\nowner = \"{name}\"\nkey = \"{key}\"\nadmin = {admin}\n")
        };
        fs::write(&keys, OWNERS.iter().map(entry).collect::<String>())?;
        let mut command = Command::new(&self.program);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("DJINN_") {
                command.env_remove(name);
            }
        }
        let flag = |name: &str, value: &Path| format!("--{name}={}", value.display());
        command
            .env("DJINN_HOME", home.join("djinn"))
            .env("HF_HOME", home.join("hub"))
            .args(["serve", "--port=0", "--device=cpu", "--threads=1"])
            .arg(flag(
                "model",
                Path::new(&format!("stories={}", self.model.display())),
            ))
            .arg(flag("keys", &keys))
            .arg(flag("state", &Launch::state(home)))
            .args(["--batch=8", "--sessions=96", "--log-level=warn"])
            .arg(format!("--context={CONTEXT}"))
            .arg(format!("--max-body={BODY_MAX}B"))
            .arg(format!("--drain={DRAIN_S}"));
        match self.is_tight {
            true => command
                .args([
                    "--memory=60MB",
                    "--resident=none",
                    "--kv=2MB",
                    "--host-memory=4MB",
                ])
                .arg(flag("spill", &Launch::spill(home)))
                .arg("--spill-size=64MB"),
            false => command.arg("--memory=400MB"),
        };
        if let Some(shim) = &self.shim {
            command.envs(shim.environment());
        }
        let log = File::options().append(true).create(true).open(self.log())?;
        command
            .stderr(log)
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        Ok(command)
    }
}

/// Process of the server.
struct ServerChild {
    child: Child,
    /// The server may write to its output while it runs.
    _stdout: BufReader<ChildStdout>,
}

/// Address of a running server.
#[derive(Clone, Debug)]
pub struct ServerPlace {
    /// Number of starts before this one.
    pub start: u64,
    /// Address for HTTP and gRPC.
    pub address: String,
    /// Id of the process.
    pub process: u32,
}

/// Memory and open files of the server's process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessUsage {
    /// Resident memory in bytes.
    pub rss: u64,
    /// Number of open file descriptors.
    pub descriptors: usize,
}

/// Server that restarts, with clients that find it again.
pub struct RestartingServer {
    launch: Launch,
    child: tokio::sync::Mutex<Option<ServerChild>>,
    place: Mutex<Option<ServerPlace>>,
    clients: Mutex<Vec<(u64, OwnerKey, Client)>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RestartingServer {
    /// Starts a server and waits until it is ready.
    pub async fn start(launch: Launch) -> Result<Self, ChaosError> {
        fs::create_dir_all(&launch.home)?;
        let server = RestartingServer {
            launch,
            child: tokio::sync::Mutex::default(),
            place: Mutex::default(),
            clients: Mutex::default(),
        };
        server.start_again(0).await?;
        Ok(server)
    }

    /// Way in which the server is started.
    pub fn launch(&self) -> &Launch {
        &self.launch
    }

    async fn start_again(&self, start: u64) -> Result<(), ChaosError> {
        let mut child = self.launch.command()?.spawn()?;
        let mut stdout = BufReader::new(child.stdout.take().expect("standard output is piped"));
        let mut line = String::new();
        let ready = tokio::time::timeout(START_LIMIT, stdout.read_line(&mut line)).await;
        let address = line.trim().strip_prefix("Server ready, listening on ");
        let (Ok(Ok(_)), Some(address)) = (ready, address) else {
            let log = self.launch.log();
            return Err(ChaosError::Start {
                tail: last_lines(&log),
                log,
            });
        };
        let place = ServerPlace {
            start,
            address: address.to_owned(),
            process: child.id().unwrap_or_default(),
        };
        *self.child.lock().await = Some(ServerChild {
            child,
            _stdout: stdout,
        });
        *locked(&self.place) = Some(place);
        Ok(())
    }

    /// Address of the server. Waits while the server is down.
    pub async fn place(&self) -> ServerPlace {
        loop {
            if let Some(place) = locked(&self.place).clone() {
                return place;
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Client of an owner. Waits while the server is down.
    pub async fn client(&self, owner: OwnerKey) -> Result<Client, djinn_client::Error> {
        let place = self.place().await;
        let known = |(start, of, client): &(u64, OwnerKey, Client)| {
            (*start == place.start && *of == owner).then(|| client.clone())
        };
        if let Some(client) = locked(&self.clients).iter().find_map(known) {
            return Ok(client);
        }
        let client = self.connect(&place, owner.key).await?;
        let mut clients = locked(&self.clients);
        clients.retain(|(start, _, _)| *start == place.start);
        clients.push((place.start, owner, client.clone()));
        Ok(client)
    }

    /// Connects a client of its own with any key.
    pub async fn connect(
        &self,
        place: &ServerPlace,
        key: &str,
    ) -> Result<Client, djinn_client::Error> {
        let options = Options {
            key: Some(key.to_owned()),
            timeout: Some(CALL_TIMEOUT),
            ..Options::default()
        };
        Client::connect(&place.address, options).await
    }

    /// Ends the process with SIGKILL.
    pub async fn kill(&self) -> Result<u64, ChaosError> {
        let start = self.leave();
        if let Some(mut server) = self.child.lock().await.take() {
            server.child.kill().await?;
        }
        Ok(start)
    }

    /// Ends the process with SIGTERM. Turns may run on until the server's drain time is over.
    pub async fn terminate(&self) -> Result<(u64, ExitStatus), ChaosError> {
        let start = self.leave();
        let mut server = self.child.lock().await.take().expect("the server runs");
        if let Some(id) = server.child.id().and_then(|id| Pid::from_raw(id as i32)) {
            kill_process(id, Signal::TERM).map_err(std::io::Error::from)?;
        }
        let ended = tokio::time::timeout(START_LIMIT, server.child.wait()).await;
        let late = || std::io::Error::other("the server did not end after SIGTERM");
        Ok((start, ended.map_err(|_| late())??))
    }

    /// Hides the address from clients. Returns the number of the next start.
    fn leave(&self) -> u64 {
        let place = locked(&self.place).take();
        place.map_or(0, |place| place.start + 1)
    }

    /// Starts the server after it ended.
    pub async fn restart(&self, start: u64) -> Result<(), ChaosError> {
        self.start_again(start).await
    }

    /// Memory and open files of the process.
    pub async fn usage(&self) -> ProcessUsage {
        let process = self.place().await.process;
        let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        let files = fs::read_dir(format!("/proc/{process}/fd"));
        ProcessUsage {
            rss: kib.unwrap_or(0) << 10,
            descriptors: files.map_or(0, Iterator::count),
        }
    }
}

/// Last lines of a log.
fn last_lines(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(5)..].join(" | ")
}
