//! Calls over gRPC: signals that a session waits, and pushes of a model.

use std::{path::Path, time::Duration};

use djinn_client::{Client, Options};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::{options::ServeOptions, process::ServedProcess};
use crate::{BenchError, sample::median};

/// Number of signals.
const SIGNALS: usize = 40;
/// Time in which prefetched pages arrive.
const PREFETCH: Duration = Duration::from_millis(120);

/// Measures signals, alone and beside another session, and a push.
pub fn run(
    args: &ServeOptions,
    server: &ServedProcess,
    prompt: &[u32],
) -> Result<Value, BenchError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let address = format!("127.0.0.1:{}", server.port);
        let client = Client::connect(&address, Options::default()).await?;
        let alone = signals(args, &client, prompt, false).await?;
        let beside = signals(args, &client, prompt, true).await?;
        let push = match &args.push {
            Some(folder) => Some(push(&client, folder).await?),
            None => None,
        };
        Ok(json!({ "signal_alone": alone, "signal_beside": beside, "push": push }))
    })
}

/// Measures the seconds from the signal that a session waits to its first page copied out, alone or
/// beside a session that generates.
async fn signals(
    args: &ServeOptions,
    client: &Client,
    prompt: &[u32],
    beside: bool,
) -> Result<Value, BenchError> {
    let model = client.model("");
    let session = model
        .session()
        .tokens(prompt.to_vec())
        .max_tokens(1)
        .ignore_eos()
        .keep();
    let turn = session.open().await?.collect().await?;
    let session = client.session(turn.opened.session.clone());
    // The other session has different tokens, since shared pages would stay.
    let others = prompt.iter().rev().copied().collect();
    let other = beside.then(|| generate(args, client.clone(), others));
    let (mut times, mut moved) = (Vec::new(), Vec::new());
    for _ in 0..SIGNALS {
        session.resuming().await?;
        tokio::time::sleep(PREFETCH).await;
        let before = session.info().await?.pages_away;
        times.push(session.waiting(None).await?.as_secs_f64());
        moved.push(session.info().await?.pages_away - before);
    }
    if let Some(other) = other {
        other.abort();
    }
    session.delete().await?;
    let most = times.iter().copied().fold(0.0, f64::max);
    Ok(json!({
        "median_s": median(&mut times), "most_s": most,
        "pages": moved.iter().max(), "pages_least": moved.iter().min(),
    }))
}

/// Starts a task that generates one session after another.
fn generate(args: &ServeOptions, client: Client, prompt: Vec<u32>) -> JoinHandle<()> {
    let most = args.timed_tokens() as u64;
    tokio::spawn(async move {
        loop {
            let session = client
                .model("")
                .session()
                .tokens(prompt.clone())
                .max_tokens(most)
                .ignore_eos();
            let Ok(events) = session.open().await else {
                return;
            };
            let _ = events.collect().await;
        }
    })
}

/// Pushes a folder twice. The second push sends nothing.
async fn push(client: &Client, folder: &Path) -> Result<Value, BenchError> {
    let clock = std::time::Instant::now();
    let first = client.push(folder, |_| {}).await?;
    let seconds = clock.elapsed().as_secs_f64();
    let clock = std::time::Instant::now();
    let again = client.push(folder, |_| {}).await?;
    Ok(json!({
        "bytes": first.bytes, "sent": first.sent, "seconds": seconds,
        "gb_per_s": first.bytes as f64 / seconds / 1e9,
        "again_sent": again.sent, "again_seconds": clock.elapsed().as_secs_f64(),
    }))
}

/// Rows of the report's table.
pub fn rows(wire: &Value) -> Vec<Vec<String>> {
    let us = |value: &Value| {
        value
            .as_f64()
            .map_or("-".to_owned(), |s| format!("{:.0} µs", s * 1e6))
    };
    let signal = |what: &str, times: &Value| {
        let both = format!("{} · {}", us(&times["median_s"]), us(&times["most_s"]));
        vec![what.to_owned(), both, format!("{} pages", times["pages"])]
    };
    let mut rows = vec![
        signal("wait signal, no other session", &wire["signal_alone"]),
        signal(
            "wait signal, another session generates",
            &wire["signal_beside"],
        ),
    ];
    let push = &wire["push"];
    if !push.is_null() {
        let number = |name: &str| push[name].as_f64().unwrap_or(0.0);
        rows.push(vec![
            format!("push of {:.2} GB with hashing", number("bytes") / 1e9),
            format!("{:.2} s", number("seconds")),
            format!("{:.2} GB/s", number("gb_per_s")),
        ]);
        rows.push(vec![
            "second push of the folder".to_owned(),
            format!("{:.2} s", number("again_seconds")),
            format!("{} bytes sent", push["again_sent"]),
        ]);
    }
    rows
}
