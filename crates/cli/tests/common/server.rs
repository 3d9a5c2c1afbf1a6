//! A server in a process of its own, as a user starts one.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Child, ChildStdout, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use djinn_client::{Client, Options, v1};

/// What is enough for the bundled model, so that several servers fit side by side.
const SMALL: [&str; 10] = [
    "--device",
    "cpu",
    "--memory",
    "600MB",
    "--context",
    "512",
    "--batch",
    "8",
    "--log-level",
    "warn",
];

pub struct Server {
    child: Child,
    pub address: String,
    _stdout: BufReader<ChildStdout>,
}

impl Server {
    /// Starts one and waits until it says where it is.
    pub fn start(args: &[&str]) -> Self {
        let nowhere = std::env::temp_dir().join("djinn-tests-have-no-home");
        let mut command = Command::new(env!("CARGO_BIN_EXE_djinn"));
        command
            .args(["serve", "--port", "0"])
            .args(SMALL)
            .args(args);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("DJINN_") {
                command.env_remove(name);
            }
        }
        command.env("DJINN_HOME", &nowhere).env("HF_HOME", &nowhere);
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("Server ready, listening on ");
        let address = address.unwrap_or_else(|| panic!("{args:?}: '{line}'"));
        Server {
            child,
            address: address.to_owned(),
            _stdout: stdout,
        }
    }

    pub async fn client(&self) -> Client {
        Client::connect(&self.address, Options::default())
            .await
            .unwrap()
    }

    pub async fn client_with(&self, key: &str) -> Client {
        let options = Options {
            key: Some(key.to_owned()),
            ..Options::default()
        };
        Client::connect(&self.address, options).await.unwrap()
    }

    /// Asks it to end, and waits until it has.
    pub fn terminate(mut self) -> ExitStatus {
        let id = self.child.id().to_string();
        let told = Command::new("kill").args(["-TERM", &id]).status().unwrap();
        assert!(told.success());
        self.child.wait().unwrap()
    }

    /// Ends it as a crash would.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// A page of it over plain HTTP.
    pub fn page(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let asked = format!("GET {path} HTTP/1.1\r\nhost: djinn\r\nconnection: close\r\n\r\n");
        stream.write_all(asked.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// What a gauge or a counter with these words in its name and labels shows.
    pub fn metric(&self, words: &[&str]) -> f64 {
        let page = self.page("/metrics");
        let is_it = |line: &&str| words.iter().all(|word| line.contains(word));
        let line = page.lines().find(is_it);
        let line = line.unwrap_or_else(|| panic!("{words:?} is not in {page}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // One that has ended already is fine.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where a session stopped, without how long it took.
pub fn place(at: Option<&v1::Paused>) -> Option<v1::Paused> {
    let at = at.cloned()?;
    Some(v1::Paused {
        took_us: None,
        ..at
    })
}

/// Waits until something is so.
pub async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(300);
    while !is_so().await {
        assert!(Instant::now() < deadline, "{what}: not within 300 s");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
