//! What goes over the protocol: owners that are away, and models that are pushed.

use std::{path::Path, time::Duration};

use djinn_client::{Client, Options};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::{median, process::Server, tokens};
use crate::{args::BenchServeArgs, failure::Failure};

/// Times an owner says that it is away.
const SIGNALS: usize = 40;
/// Until pages that were called back are there.
const BACK: Duration = Duration::from_millis(120);

/// Measures both.
pub fn run(args: &BenchServeArgs, server: &Server, prompt: &[u32]) -> Result<Value, Failure> {
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

/// Seconds from when the server has the signal to when pages begin to leave: of one session alone, or
/// beside another that generates.
async fn signals(
    args: &BenchServeArgs,
    client: &Client,
    prompt: &[u32],
    beside: bool,
) -> Result<Value, Failure> {
    let model = client.model("");
    let session = model
        .session()
        .tokens(prompt.to_vec())
        .max_tokens(1)
        .ignore_eos()
        .keep();
    let turn = session.open().await?.collect().await?;
    let session = client.session(turn.opened.session.clone());
    // With tokens of its own: pages that both hold would stay.
    let others = prompt.iter().rev().copied().collect();
    let other = beside.then(|| generate(args, client.clone(), others));
    let (mut times, mut moved) = (Vec::new(), Vec::new());
    for _ in 0..SIGNALS {
        session.resuming().await?;
        tokio::time::sleep(BACK).await;
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

/// A session that generates, again and again.
fn generate(args: &BenchServeArgs, client: Client, prompt: Vec<u32>) -> JoinHandle<()> {
    let most = tokens(args) as u64;
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

/// Sends a folder, twice: the second time there is nothing to send.
async fn push(client: &Client, folder: &Path) -> Result<Value, Failure> {
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

/// As people read it.
pub fn rows(wire: &Value) -> Vec<Vec<String>> {
    let us = |value: &Value| {
        value
            .as_f64()
            .map_or("-".to_owned(), |s| format!("{:.0} µs", s * 1e6))
    };
    let signal = |what: &str, told: &Value| {
        let times = format!("{} · {}", us(&told["median_s"]), us(&told["most_s"]));
        vec![what.to_owned(), times, format!("{} pages", told["pages"])]
    };
    let mut rows = vec![
        signal("away, nobody else runs", &wire["signal_alone"]),
        signal("away, beside one that generates", &wire["signal_beside"]),
    ];
    let push = &wire["push"];
    if !push.is_null() {
        let number = |name: &str| push[name].as_f64().unwrap_or(0.0);
        rows.push(vec![
            format!("push of {:.2} GB, hashes included", number("bytes") / 1e9),
            format!("{:.2} s", number("seconds")),
            format!("{:.2} GB/s", number("gb_per_s")),
        ]);
        rows.push(vec![
            "the same again".to_owned(),
            format!("{:.2} s", number("again_seconds")),
            format!("{} bytes sent", push["again_sent"]),
        ]);
    }
    rows
}
