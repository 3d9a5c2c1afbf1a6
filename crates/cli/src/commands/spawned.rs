//! A server that is a process of its own, so that its time and memory are its own.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use crate::failure::Failure;

/// For how long a server may take to start.
const START: Duration = Duration::from_secs(300);

/// A server that runs, and ends with this.
pub struct Spawned {
    child: Child,
    /// Where it listens.
    pub port: u16,
}

impl Spawned {
    /// Starts `djinn serve` with these flags on a free port, and waits until it is ready.
    pub fn start(flags: &[String]) -> Result<Self, Failure> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["serve", "--port", "0", "--log-level", "warn"])
            .args(flags)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let stdout = child.stdout.take().expect("it is piped");
        let mut spawned = Spawned { child, port: 0 };
        let started = Instant::now();
        for line in BufReader::new(stdout).lines() {
            let line = line?;
            if let Some(port) = line.rsplit(':').next().and_then(|port| port.parse().ok()) {
                spawned.port = port;
                return Ok(spawned);
            }
            if started.elapsed() > START {
                break;
            }
        }
        Err(Failure::Message(
            "the server did not start: try djinn serve by itself".into(),
        ))
    }

    /// The number of its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Tells it to stop, and waits.
    pub fn stop(mut self) -> Result<(), Failure> {
        let told = Command::new("kill")
            .arg(self.child.id().to_string())
            .status();
        if told.is_ok_and(|status| status.success()) {
            self.child.wait()?;
        }
        Ok(())
    }
}

impl Drop for Spawned {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
