//! Tests of outages: an engine that hangs, a device that is lost, threads that are busy. Health checks,
//! metrics, deadlines and the end of the server keep working.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::{
    fs,
    io::Read,
    net::{SocketAddr, TcpStream},
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use common::{Server, config, folder, grpc::block_on, send_completion, soon, stories};
use djinn_device::{
    Backend,
    cuda::CudaBackend,
    testing::{Fault, FaultSwitch, FaultyBackend},
};
use djinn_server::{FATAL_EXIT_CODE, LoadOptions, ServeError, ServedModel};
use djinn_weights::Keep;
use djinn_wire::v1::sessions_client::SessionsClient;
use serde_json::{Value, json};

/// Story with as many tokens as a test wants.
fn story(max_tokens: usize, keep: bool) -> Value {
    json!({ "prompt": "Once upon a time", "max_tokens": max_tokens, "temperature": 0, "ignore_eos": true,
            "djinn": { "keep": keep } })
}

/// Server whose device hangs while the switch says so.
fn that_can_hang(change: impl FnOnce(&mut djinn_server::ServerConfig)) -> (Server, FaultSwitch) {
    let switch = FaultSwitch::default();
    let server = Server::with(|config| {
        let inner = Arc::clone(&config.backend);
        config.backend = Arc::new(FaultyBackend::new(inner, switch.clone()));
        change(config);
    });
    (server, switch)
}

#[test]
fn a_hung_engine_blinds_neither_health_nor_metrics_nor_deadlines() {
    let (server, switch) = that_can_hang(|config| {
        config.limits.stall = Duration::from_millis(100);
        config.limits.deadline = Duration::from_secs(1);
    });
    assert_eq!(server.get("/readyz"), (200, "ready\n".to_owned()));
    switch.set(Fault::Hang);
    let (status, reply) = server.post("/v1/completions", &story(8, false));
    assert_eq!(status, 504, "{reply}");
    assert_eq!(server.get("/healthz").0, 200);
    soon("readiness fails", || server.get("/readyz").0 == 503);
    assert!(server.get("/readyz").1.contains("does not respond"));
    assert_eq!(server.metric("djinn_ready{}"), 0.0);
    assert!(server.metric("djinn_engine_busy_seconds{model=\"stories\"}") > 0.0);
    assert_eq!(server.get("/v1/models").0, 200);
    switch.clear();
    soon("the server is ready again", || {
        server.get("/readyz").0 == 200
    });
    server.check_alive();
}

#[test]
fn a_hung_engine_does_not_hold_up_the_end_of_the_server() {
    let (mut server, switch) = that_can_hang(|config| {
        config.drain = Duration::from_millis(200);
    });
    switch.set(Fault::Hang);
    let address = server.address;
    let asked = thread::spawn(move || stream_of(address, &story(8, true)));
    soon("the engine hangs", || {
        server.metric("djinn_engine_busy_seconds{model=\"stories\"}") > 0.05
    });
    // The end returns although the engine thread cannot be stopped.
    server.stop();
    let stream = asked.join().unwrap();
    assert!(stream.contains("\"code\":\"unavailable\""), "{stream}");
    switch.clear();
}

/// Reads a streamed answer to its end.
fn stream_of(address: SocketAddr, body: &Value) -> String {
    let mut body = body.clone();
    body["stream"] = json!(true);
    let mut stream = TcpStream::connect(address).unwrap();
    let timeout = Some(Duration::from_secs(60));
    stream.set_read_timeout(timeout).unwrap();
    send_completion(&mut stream, &body);
    let mut text = String::new();
    let _ = stream.read_to_string(&mut text);
    text
}

/// Environment variables of the child: its folder, and the fault of its device.
const CHILD: &str = "DJINN_TEST_FOLDER";
const FAULT: &str = "DJINN_TEST_FAULT";

/// Device of these tests: the CPU, or the card that `DJINN_TEST_CARD` names.
fn backend() -> Arc<dyn Backend> {
    match std::env::var("DJINN_TEST_CARD") {
        Ok(card) => Arc::new(CudaBackend::new(card.parse().unwrap()).unwrap()),
        Err(_) => config(Path::new("")).backend,
    }
}

/// Server of a child process. Its device breaks in the second turn, and the process ends.
#[test]
fn child_with_a_device_that_breaks() {
    let Some(home) = std::env::var_os(CHILD).map(PathBuf::from) else {
        return;
    };
    let fault = match std::env::var(FAULT).unwrap().as_str() {
        "trap" => Fault::Trap,
        _ => Fault::Hang,
    };
    let switch = FaultSwitch::default();
    let mut config = config(&home);
    config.backend = Arc::new(FaultyBackend::new(backend(), switch.clone()));
    config.state = Some(home.join("state"));
    config.operation.watchdog = Some(Duration::from_secs(2));
    let (ready, started) = mpsc::channel();
    let tell = move |running: &djinn_server::Running| ready.send(running.addresses[0]).unwrap();
    thread::spawn(move || {
        let address: SocketAddr = started.recv().unwrap();
        let first = stream_of(address, &story(4, true));
        assert!(first.contains("[DONE]"), "{first}");
        switch.set(fault);
        let cut = stream_of(address, &story(8, true));
        assert!(cut.contains("\"error\""), "{cut}");
        fs::write(home.join("cut"), cut).unwrap();
    });
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let ended = runtime.block_on(async {
        let running = djinn_server::start(config).await.unwrap();
        running.run_until_signal(tell).await
    });
    match ended {
        Err(ServeError::Fatal(reason)) => djinn_server::exit_after_fatal(&reason),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_lost_or_hung_device_ends_the_process_and_no_session_is_lost() {
    for fault in ["trap", "hang"] {
        let home = tempfile::tempdir().unwrap();
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_with_a_device_that_breaks", "--nocapture"])
            .env(CHILD, home.path())
            .env(FAULT, fault)
            .output()
            .unwrap();
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        // The driver of a card may hang in its cleanup, and then the process kills itself.
        let (code, signal) = (output.status.code(), output.status.signal());
        let is_expected = code == Some(FATAL_EXIT_CODE) || signal == Some(9);
        assert!(is_expected, "{fault}: {code:?} {signal:?}\n{log}");
        assert!(log.contains("device"), "{fault}: {log}");
        let server = Server::with(|config| {
            config.backend = backend();
            config.state = Some(home.path().join("state"));
        });
        block_on(async {
            let endpoint = tonic::transport::Channel::from_shared(server.url("")).unwrap();
            let mut sessions = SessionsClient::new(endpoint.connect().await.unwrap());
            let listed = sessions
                .list(djinn_wire::v1::ListSessionsRequest::default())
                .await;
            let listed = listed.unwrap().into_inner().sessions;
            assert_eq!(listed.len(), 2, "{fault}");
            println!(
                "{fault}: ended with {code:?} {signal:?}, {} sessions continue",
                listed.len()
            );
        });
    }
}

#[test]
fn busy_worker_threads_do_not_silence_health_checks() {
    let home = tempfile::tempdir().unwrap();
    let config = config(home.path());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let running = runtime.block_on(async {
        let running = djinn_server::start(config).await.unwrap();
        running.load().await.unwrap();
        running
    });
    let address = running.addresses[0];
    let (releases, blocked): (Vec<_>, Vec<_>) = (0..2).map(|_| mpsc::channel::<()>()).unzip();
    for one in blocked {
        // A handler that blocks its thread, as none should.
        runtime.spawn(async move { one.recv() });
    }
    for path in ["/healthz", "/readyz"] {
        let reply = ureq::get(format!("http://{address}{path}")).call().unwrap();
        assert_eq!(reply.status(), 200);
    }
    drop(releases);
    runtime.block_on(running.stop());
}

/// Copies the story model to a folder.
fn copy_stories(to: &Path) -> PathBuf {
    fs::create_dir_all(to).unwrap();
    for file in fs::read_dir(folder("models/stories-7m")).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
    to.join("model.safetensors")
}

fn streaming(path: &Path) -> impl FnOnce(&mut djinn_server::ServerConfig) + use<> {
    let model = ServedModel {
        reference: path.to_string_lossy().into_owned(),
        layout: LoadOptions::default(),
        ..stories()
    };
    move |config| {
        config.memory.overrides.keep = Keep::Nothing;
        config.models = vec![model];
    }
}

#[test]
fn a_kept_session_survives_a_turn_that_cannot_read_its_weights() {
    let home = tempfile::tempdir().unwrap();
    let weights = copy_stories(&home.path().join("model"));
    let content = fs::read(&weights).unwrap();
    let state = home.path().join("state");
    let serve = || {
        let model = streaming(&home.path().join("model"));
        let state = state.clone();
        Server::with(|config| {
            model(config);
            config.state = Some(state);
        })
    };
    let server = serve();
    let (_, first) = server.post("/v1/completions", &story(4, true));
    let session = first["djinn"]["session"].as_str().unwrap().to_owned();
    let next = json!({ "prompt": " and then", "max_tokens": 4, "djinn": { "session": session } });
    let file = fs::OpenOptions::new().write(true).open(&weights).unwrap();
    file.set_len(1000).unwrap();
    let (status, failed) = server.post("/v1/completions", &next);
    assert_eq!(status, 500, "{failed}");
    fs::write(&weights, &content).unwrap();
    drop(server);
    let server = serve();
    let go_on = json!({ "prompt": "", "max_tokens": 4, "djinn": { "session": session } });
    let (status, reply) = server.post("/v1/completions", &go_on);
    assert_eq!(
        status, 200,
        "the session is there after the restart: {reply}"
    );
    // The tokens are those of a run without the fault.
    let quiet = Server::start();
    let (_, first) = quiet.post("/v1/completions", &story(4, true));
    let session = first["djinn"]["session"].as_str().unwrap();
    let next = json!({ "prompt": " and then", "max_tokens": 4, "djinn": { "session": session } });
    let (_, expected) = quiet.post("/v1/completions", &next);
    assert_eq!(reply["choices"][0]["text"], expected["choices"][0]["text"]);
}

#[test]
fn one_damaged_record_costs_at_most_one_session() {
    let home = tempfile::tempdir().unwrap();
    let state = home.path().join("state");
    let serve = || Server::with(|config| config.state = Some(state.clone()));
    let server = serve();
    for _ in 0..4 {
        assert_eq!(server.post("/v1/completions", &story(4, true)).0, 200);
    }
    drop(server);
    let entries = fs::read_dir(state.join("stories")).unwrap();
    let mut names = entries.map(|entry| entry.unwrap().path());
    let log = names
        .find(|path| path.extension().is_some_and(|end| end == "djinn"))
        .unwrap();
    let mut bytes = fs::read(&log).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 40].fill(0);
    fs::write(&log, bytes).unwrap();
    let server = serve();
    server.check_alive();
    assert!(server.sessions() >= 3.0, "the other sessions are there");
}

#[test]
fn a_model_that_failed_for_good_makes_the_server_unready() {
    let home = tempfile::tempdir().unwrap();
    let weights = copy_stories(&home.path().join("model"));
    let server = Server::with(streaming(&home.path().join("model")));
    let file = fs::OpenOptions::new().write(true).open(&weights).unwrap();
    file.set_len(1000).unwrap();
    soon("the engine gives up", || {
        let (status, reply) = server.post("/v1/completions", &story(1, false));
        assert!(
            status >= 500,
            "the server's fault is not the client's: {status} {reply}"
        );
        assert!(
            !reply.to_string().contains(home.path().to_str().unwrap()),
            "{reply}"
        );
        server.get("/readyz").0 == 503
    });
    assert!(server.get("/readyz").1.contains("failed"));
}
