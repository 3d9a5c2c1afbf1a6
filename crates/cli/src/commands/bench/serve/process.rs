//! The server under test: a process of its own, so that its time and memory are its own.

use std::{fs, path::PathBuf};

use crate::{args::BenchServeArgs, commands::spawned::Spawned, failure::Failure};

/// A server that runs.
pub struct Server {
    spawned: Spawned,
    /// Where it keeps what is pushed.
    pushed: PathBuf,
    /// Where it listens.
    pub port: u16,
}

/// Time of the processor that a process has taken, in seconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuTime {
    /// By the threads that compute, read weights and move pages.
    pub engine: f64,
    /// By all others.
    pub outside: f64,
}

/// Ticks of the kernel's clock in a second.
const TICKS: f64 = 100.0;

impl Server {
    /// Starts one, and waits until it is ready.
    pub fn start(args: &BenchServeArgs) -> Result<Self, Failure> {
        let pushed = std::env::temp_dir().join(format!("djinn-bench-{}", std::process::id()));
        let mut flags = Vec::new();
        let mut flag = |name: &str, value: Option<String>| {
            flags.extend(value.map(|value| format!("--{name}={value}")));
        };
        let model = &args.model;
        flag(
            "model",
            model.model.as_ref().map(|model| format!("bench={model}")),
        );
        flag("device", Some(model.device.device.to_string()));
        flag("threads", model.device.threads.map(|n| n.to_string()));
        flag(
            "memory",
            model.memory.memory.map(|amount| amount.to_string()),
        );
        flag(
            "host-memory",
            model.memory.host_memory.map(|amount| amount.to_string()),
        );
        flag("rows", Some(model.rows.to_string()));
        flag("context", Some(args.context.to_string()));
        flag("batch", Some(args.batch.to_string()));
        flag("sessions", Some(args.clients.max(args.batch).to_string()));
        flag("kv", args.kv.map(|size| format!("{}B", size.0)));
        flag(
            "push-dir",
            args.push.as_ref().map(|_| pushed.display().to_string()),
        );
        flag("patience", Some("60".to_owned()));
        flag(
            "max-connections",
            Some((args.silent + args.clients + 64).to_string()),
        );
        let spawned = Spawned::start(&flags)?;
        Ok(Server {
            port: spawned.port,
            spawned,
            pushed,
        })
    }

    /// Bytes of memory it holds.
    pub fn rss(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.spawned.id()));
        let status = status.unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        kib.unwrap_or(0) << 10
    }

    /// Time of the processor that it has taken.
    pub fn cpu(&self) -> CpuTime {
        let mut time = CpuTime::default();
        let tasks = fs::read_dir(format!("/proc/{}/task", self.spawned.id()));
        for task in tasks.into_iter().flatten().flatten() {
            let Ok(stat) = fs::read_to_string(task.path().join("stat")) else {
                continue;
            };
            // The name is in brackets, and may have spaces.
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

    /// Tells it to stop, and waits.
    pub fn stop(self) -> Result<(), Failure> {
        let stopped = self.spawned.stop();
        let _ = fs::remove_dir_all(&self.pushed);
        stopped
    }
}
