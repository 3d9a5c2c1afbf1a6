//! `djinn serve` in a child process, so that its time and memory can be measured.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use crate::BenchError;

/// Longest time that a server may take to start.
const START: Duration = Duration::from_secs(300);

/// `djinn serve` in a child process. Dropping the value kills the process.
pub struct ServerProcess {
    child: Child,
    /// Port of 127.0.0.1 that the server listens on.
    pub port: u16,
}

impl ServerProcess {
    /// Starts `PROGRAM serve` with these flags on a free port, and waits until it is ready.
    pub fn start(program: &Path, flags: &[String]) -> Result<Self, BenchError> {
        let mut child = Command::new(program)
            .args(["serve", "--port", "0", "--log-level", "warn"])
            .args(flags)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let stdout = child.stdout.take().expect("standard output is piped");
        let mut server = ServerProcess { child, port: 0 };
        let started = Instant::now();
        for line in BufReader::new(stdout).lines() {
            let line = line?;
            if let Some(port) = line.rsplit(':').next().and_then(|port| port.parse().ok()) {
                server.port = port;
                return Ok(server);
            }
            if started.elapsed() > START {
                break;
            }
        }
        Err(BenchError::ServerStart)
    }

    /// Process id of the server.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends SIGTERM and waits until the process has ended.
    pub fn stop(mut self) -> Result<(), BenchError> {
        let signalled = Command::new("kill")
            .arg(self.child.id().to_string())
            .status();
        if signalled.is_ok_and(|status| status.success()) {
            self.child.wait()?;
        }
        Ok(())
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
