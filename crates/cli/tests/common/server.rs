//! Server in a separate process, started with `djinn serve`.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Child, ChildStdout, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use djinn_client::{Client, Options, v1};
use serde_json::Value;

/// Flags that suffice for the bundled model and let several servers run at the same time.
const SMALL_SERVER: [&str; 8] = [
    "--device",
    "cpu",
    "--memory",
    "600MB",
    "--context",
    "512",
    "--batch",
    "8",
];

/// Running server; dropping it kills the process.
pub struct Server {
    child: Child,
    pub address: String,
    _stdout: BufReader<ChildStdout>,
}

impl Server {
    /// Starts a server and waits until it prints its address.
    pub fn start(args: &[&str]) -> Self {
        Self::start_with_log(&[args, &["--log-level", "warn"]].concat(), Stdio::null())
    }

    /// Starts a server whose log goes to `log`.
    pub fn start_with_log(args: &[&str], log: Stdio) -> Self {
        Self::spawn(&[&SMALL_SERVER[..], args].concat(), log)
    }

    /// Starts a server with these flags only.
    pub fn start_plain(args: &[&str]) -> Self {
        Self::spawn(&[args, &["--log-level", "warn"]].concat(), Stdio::null())
    }

    /// Process id of the server.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    fn spawn(args: &[&str], log: Stdio) -> Self {
        let home = std::env::temp_dir().join("djinn-tests-have-no-home");
        let mut command = Command::new(env!("CARGO_BIN_EXE_djinn"));
        command.args(["serve", "--port", "0"]).args(args);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("DJINN_") {
                command.env_remove(name);
            }
        }
        command.env("DJINN_HOME", &home).env("HF_HOME", &home);
        let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
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

    /// Connects a client without an API key.
    pub async fn client(&self) -> Client {
        Client::connect(&self.address, Options::default())
            .await
            .unwrap()
    }

    /// Connects a client with an API key.
    pub async fn client_with(&self, key: &str) -> Client {
        let options = Options {
            key: Some(key.to_owned()),
            ..Options::default()
        };
        Client::connect(&self.address, options).await.unwrap()
    }

    /// Sends SIGTERM and waits until the process ends.
    pub fn terminate(mut self) -> ExitStatus {
        let id = self.child.id().to_string();
        let kill = Command::new("kill").args(["-TERM", &id]).status().unwrap();
        assert!(kill.success());
        self.child.wait().unwrap()
    }

    /// Sends a signal by its name.
    pub fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let kill = Command::new("kill").args([name, &id]).status().unwrap();
        assert!(kill.success());
    }

    /// Kills the process, as a crash would.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Fetches a page over plain HTTP and returns the response with its headers.
    pub fn page(&self, path: &str) -> String {
        self.page_as("", path)
    }

    /// Fetches a page with an API key.
    pub fn page_as(&self, key: &str, path: &str) -> String {
        self.send(&format!(
            "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{}\r\n",
            authorization(key)
        ))
    }

    /// Posts JSON over plain HTTP and returns the response with its headers.
    pub fn post(&self, path: &str, body: &str) -> String {
        self.post_as("", path, body)
    }

    /// Posts JSON with an API key.
    pub fn post_as(&self, key: &str, path: &str, body: &str) -> String {
        self.send(&format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{}\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            authorization(key),
            body.len()
        ))
    }

    /// Generates a completion with an API key, and returns the answer.
    pub fn complete(&self, key: &str, body: &Value) -> Value {
        let answer = self.post_as(key, "/v1/completions", &body.to_string());
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{answer}");
        serde_json::from_str(body).unwrap()
    }

    /// Streams a completion, and returns the data of its events without the end mark.
    pub fn stream(&self, body: &Value) -> Vec<Value> {
        let answer = self.post("/v1/completions", &body.to_string());
        let data = answer
            .lines()
            .filter_map(|line| line.strip_prefix("data: "));
        let mut data: Vec<&str> = data.collect();
        assert_eq!(data.pop(), Some("[DONE]"), "{answer}");
        let parse = |data: &str| serde_json::from_str(data).unwrap();
        data.into_iter().map(parse).collect()
    }

    fn send(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        response
    }

    /// Value of the first metric whose line contains all these words.
    pub fn metric(&self, words: &[&str]) -> f64 {
        self.metric_as("", words)
    }

    /// Value of the first metric whose line contains all these words, read with an API key.
    pub fn metric_as(&self, key: &str, words: &[&str]) -> f64 {
        let page = self.page_as(key, "/metrics");
        let matches = |line: &&str| words.iter().all(|word| line.contains(word));
        let line = page.lines().find(matches);
        let line = line.unwrap_or_else(|| panic!("no metric with {words:?} in {page}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }
}

/// Header with an API key; empty without one.
fn authorization(key: &str) -> String {
    match key {
        "" => String::new(),
        key => format!("authorization: Bearer {key}\r\n"),
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Killing fails if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Location at which a session paused, without the time that it took to reach it.
pub fn pause_location(at: Option<&v1::Paused>) -> Option<v1::Paused> {
    let at = at.cloned()?;
    Some(v1::Paused {
        took_us: None,
        ..at
    })
}

/// Waits until a condition holds, for at most 300 s.
pub fn within(condition: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(300);
    while !holds() {
        assert!(Instant::now() < deadline, "{condition}: not within 300 s");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until a condition holds, for at most 300 s.
pub async fn wait_until(condition: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(300);
    while !holds().await {
        assert!(Instant::now() < deadline, "{condition}: not within 300 s");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
