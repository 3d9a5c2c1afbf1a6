//! `djinn bench serve`

mod client;
mod load;
mod process;
mod wire;

use std::time::Instant;

use djinn_engine::{Engine, KvMemory, Request};
use djinn_server::Layout;
use serde_json::{Value, json};

use self::{client::Stream, load::Load, process::Server};
use super::{median, some_tokens};
use crate::{
    args::BenchServeArgs,
    bundled,
    failure::{Failure, say, say_json},
    style::{seconds, table},
};

/// Tokens of one session that are timed.
const TOKENS: usize = 128;

/// A server under load.
pub fn serve(args: &BenchServeArgs) -> Result<(), Failure> {
    let (in_process, prompt) = in_process(args)?;
    let server = Server::start(args)?;
    let alone = streamed(args, &server, &prompt)?;
    let silent = client::silent(server.port, args.silent)?;
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
    match args.json {
        true => say_json(&report)?,
        false => say(&text(&report))?,
    }
    match load.is_some_and(|load| load.errors > 0) {
        true => Err(Failure::Told),
        false => Ok(()),
    }
}

/// Seconds from token to token with nobody between, in an engine laid out as the server's is.
fn in_process(args: &BenchServeArgs) -> Result<(f64, Vec<u32>), Failure> {
    let model = bundled::open(args.model.model.as_deref())?;
    let settled = args.model.settled()?;
    let layout = Layout {
        context: Some(args.context),
        batch: Some(args.batch),
        rows: Some(args.model.rows),
        sessions: Some(args.clients.max(args.batch)),
        ..Layout::default()
    };
    let kv = KvMemory::default();
    let blueprint = djinn_server::draw(&model, settled.backend(), layout, settled.memory, &kv)?;
    let prompt = some_tokens(&model.program, args.context / 4, 1);
    let mut engine = Engine::load(model, settled.backend(), blueprint, &mut |_| {})?;
    engine.open(Request {
        tokens: prompt.clone(),
        max_tokens: tokens(args),
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

/// Tokens of the session that is timed.
fn tokens(args: &BenchServeArgs) -> usize {
    TOKENS.min(args.context - args.context / 4)
}

/// The same over HTTP.
fn streamed(args: &BenchServeArgs, server: &Server, prompt: &[u32]) -> Result<f64, Failure> {
    let body = json!({
        "prompt": prompt, "max_tokens": tokens(args), "temperature": 0, "stream": true,
        "ignore_eos": true, "return_token_ids": true,
    });
    let mut stream = Stream::open(server.port, &body)?;
    let (mut times, mut last) = (Vec::new(), None::<Instant>);
    while stream.next()? {
        let now = Instant::now();
        times.extend(last.map(|before| (now - before).as_secs_f64()));
        last = Some(now);
    }
    match times.is_empty() {
        true => Err(Failure::Message("the server sent no tokens".into())),
        false => Ok(median(&mut times)),
    }
}

fn report(
    args: &BenchServeArgs,
    in_process: f64,
    alone: f64,
    beside_silent: Option<f64>,
    load: Option<&Load>,
) -> Value {
    let added = |time: f64| time / in_process - 1.0;
    json!({
        "model": args.model.model,
        "token_in_process_s": in_process,
        "token_served_s": alone,
        "added": added(alone),
        "silent": args.silent,
        "token_beside_silent_s": beside_silent,
        "added_beside_silent": beside_silent.map(added),
        "load": load.map(Load::report),
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
        &["over the protocol", "median · most", ""],
        &wire::rows(&report["wire"]),
    );
    if !report["load"].is_null() {
        text += "\n";
        text += &load::text(&report["load"]);
    }
    text
}
