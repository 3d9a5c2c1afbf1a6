//! The server under test, and its processor time and memory.

use std::{fs, path::PathBuf};

use super::options::ServeOptions;
use crate::{BenchError, ServerProcess};

/// The server under test.
pub struct ServedProcess {
    process: ServerProcess,
    /// Folder for pushed models.
    pushed: PathBuf,
    /// Port of 127.0.0.1 that the server listens on.
    pub port: u16,
}

/// Processor time of a process in seconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuTime {
    /// Time of threads that compute, read weights and move pages.
    pub engine: f64,
    /// Time of all other threads.
    pub outside: f64,
}

/// Clock ticks a second in /proc.
const TICKS: f64 = 100.0;

impl ServedProcess {
    /// Starts the server and waits until it is ready.
    pub fn start(args: &ServeOptions) -> Result<Self, BenchError> {
        let pushed = std::env::temp_dir().join(format!("djinn-bench-{}", std::process::id()));
        let mut flags = args.flags.clone();
        let mut flag = |name: &str, value: Option<String>| {
            flags.extend(value.map(|value| format!("--{name}={value}")));
        };
        let model = args.model.as_ref();
        flag("model", model.map(|model| format!("bench={model}")));
        flag("rows", Some(args.rows.to_string()));
        flag("context", Some(args.context.to_string()));
        flag("batch", Some(args.batch.to_string()));
        flag("sessions", Some(args.clients.max(args.batch).to_string()));
        flag("kv", args.kv.map(|size| format!("{}B", size.0)));
        flag(
            "push-dir",
            args.push.as_ref().map(|_| pushed.display().to_string()),
        );
        flag("prefix-cache", Some("off".to_owned()));
        flag("patience", Some("60".to_owned()));
        flag(
            "max-connections",
            Some((args.silent + args.clients + 64).to_string()),
        );
        let process = ServerProcess::start(&args.program, &flags)?;
        Ok(ServedProcess {
            port: process.port,
            process,
            pushed,
        })
    }

    /// Resident memory in bytes.
    pub fn rss(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id()));
        let status = status.unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        kib.unwrap_or(0) << 10
    }

    /// Processor time so far.
    pub fn cpu(&self) -> CpuTime {
        let mut time = CpuTime::default();
        let tasks = fs::read_dir(format!("/proc/{}/task", self.process.id()));
        for task in tasks.into_iter().flatten().flatten() {
            let Ok(stat) = fs::read_to_string(task.path().join("stat")) else {
                continue;
            };
            // The thread's name is in brackets and may contain spaces.
            let Some((before, after)) = stat.rsplit_once(')') else {
                continue;
            };
            let name = before.split_once('(').map_or("", |(_, name)| name);
            let fields: Vec<&str> = after.split_whitespace().collect();
            let ticks = |at: usize| {
                fields
                    .get(at)
                    .and_then(|n| n.parse::<f64>().ok())
                    .unwrap_or(0.0)
            };
            let seconds = (ticks(11) + ticks(12)) / TICKS;
            match name.starts_with("engine") || name.starts_with("djinn-") {
                true => time.engine += seconds,
                false => time.outside += seconds,
            }
        }
        time
    }

    /// Stops the server and removes pushed models.
    pub fn stop(self) -> Result<(), BenchError> {
        let stopped = self.process.stop();
        let _ = fs::remove_dir_all(&self.pushed);
        stopped
    }
}
