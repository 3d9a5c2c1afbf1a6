//! Benchmark `serve`: a server under load, and what serving adds to a token.

mod client;
mod load;
mod options;
mod process;
mod wire;

use std::time::Instant;

use djinn_engine::{Engine, KvMemory, PrefixCacheSettings, Request};
use djinn_server::LoadOptions;
use serde_json::{Value, json};

use self::{client::CompletionStream, load::LoadResult, process::ServedProcess};
use crate::{
    BenchError, BenchReport, BenchTarget,
    sample::{median, some_tokens},
};
use djinn_types::text::{seconds, table};

pub use options::ServeOptions;

/// Measures a server in a process of its own: one session, silent connections, and many clients.
pub fn serve(args: &ServeOptions, target: &BenchTarget<'_>) -> Result<BenchReport, BenchError> {
    let (in_process, prompt) = in_process(args, target)?;
    let server = ServedProcess::start(args)?;
    let alone = streamed(args, &server, &prompt)?;
    let silent = client::open_silent(server.port, args.silent)?;
    let beside_silent = match args.silent {
        0 => None,
        _ => Some(streamed(args, &server, &prompt)?),
    };
    drop(silent);
    let wire = wire::run(args, &server, &prompt)?;
    let load = match args.clients {
        0 => None,
        _ => Some(load::run(args, &server)?),
    };
    let mut report = report(args, in_process, alone, beside_silent, load.as_ref());
    report["wire"] = wire;
    server.stop()?;
    Ok(BenchReport {
        passed: load.is_none_or(|load| load.errors == 0),
        ..BenchReport::new(text(&report), report)
    })
}

/// Returns the median seconds between two tokens of an engine in this process, laid out as the server's
/// engine, and the prompt.
fn in_process(
    args: &ServeOptions,
    target: &BenchTarget<'_>,
) -> Result<(f64, Vec<u32>), BenchError> {
    let model = target.host.open()?;
    let layout = LoadOptions {
        context: Some(args.context),
        batch: Some(args.batch),
        rows: Some(target.rows),
        sessions: Some(args.clients.max(args.batch)),
        ..LoadOptions::default()
    };
    let kv = KvMemory::default();
    let blueprint = djinn_server::draw(&model, target.backend, layout, target.memory, &kv)?;
    let prompt = some_tokens(&model.program, args.context / 4, 1);
    let mut engine = Engine::load(model, target.backend, blueprint, &mut |_| {})?;
    engine.set_prefix_cache(PrefixCacheSettings::OFF);
    engine.open(Request {
        tokens: prompt.clone(),
        max_tokens: args.timed_tokens(),
        ..Request::default()
    })?;
    let (mut times, mut last) = (Vec::new(), None::<Instant>);
    while !engine.is_idle() {
        for output in engine.step()? {
            let now = Instant::now();
            if let (Some(_), Some(before)) = (output.token, last) {
                times.push((now - before).as_secs_f64());
            }
            last = output.token.map(|_| now).or(last);
        }
    }
    Ok((median(&mut times), prompt))
}

/// Median seconds between two tokens of one session over HTTP.
fn streamed(
    args: &ServeOptions,
    server: &ServedProcess,
    prompt: &[u32],
) -> Result<f64, BenchError> {
    let body = json!({
        "prompt": prompt, "max_tokens": args.timed_tokens(), "temperature": 0, "stream": true,
        "ignore_eos": true, "return_token_ids": true,
    });
    let mut stream = CompletionStream::open(server.port, &body)?;
    let (mut times, mut last) = (Vec::new(), None::<Instant>);
    while stream.next()? {
        let now = Instant::now();
        times.extend(last.map(|before| (now - before).as_secs_f64()));
        last = Some(now);
    }
    match times.is_empty() {
        true => Err(BenchError::StreamEnded),
        false => Ok(median(&mut times)),
    }
}

fn report(
    args: &ServeOptions,
    in_process: f64,
    alone: f64,
    beside_silent: Option<f64>,
    load: Option<&LoadResult>,
) -> Value {
    let added = |time: f64| time / in_process - 1.0;
    json!({
        "model": args.model,
        "token_in_process_s": in_process,
        "token_served_s": alone,
        "added": added(alone),
        "silent": args.silent,
        "token_beside_silent_s": beside_silent,
        "added_beside_silent": beside_silent.map(added),
        "load": load.map(LoadResult::report),
    })
}

fn text(report: &Value) -> String {
    let time = |name: &str| report[name].as_f64().map_or("-".to_owned(), seconds);
    let share = |name: &str| {
        let share = report[name].as_f64();
        share.map_or("-".to_owned(), |share| format!("{:+.2} %", share * 100.0))
    };
    let silent = format!("beside {} silent connections", report["silent"]);
    let row = |what: &str, time: String, added: String| vec![what.to_owned(), time, added];
    let rows = [
        row("in process", time("token_in_process_s"), String::new()),
        row("over HTTP", time("token_served_s"), share("added")),
        row(
            &silent,
            time("token_beside_silent_s"),
            share("added_beside_silent"),
        ),
    ];
    let mut text = table(&["one session", "a token", "added"], &rows);
    text += "\n";
    text += &table(
        &["over gRPC", "median · longest", ""],
        &wire::rows(&report["wire"]),
    );
    if !report["load"].is_null() {
        text += "\n";
        text += &load::text(&report["load"]);
    }
    text
}
