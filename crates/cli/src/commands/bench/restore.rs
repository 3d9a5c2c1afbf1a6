//! `djinn bench restore`

use std::time::{Duration, Instant};

use djinn_engine::{Blueprint, Engine, KvMemory, Request, SessionId, Settings, kv_dtype};
use djinn_memory::Size;
use serde_json::{Value, json};

use super::{check_context, median, rates, some_tokens};
use crate::{
    args::{BenchRestoreArgs, Settled},
    bundled, commands,
    commands::watch::Watch,
    failure::{Failure, say, say_json},
    style::{seconds, table},
};

/// How long the link is measured.
const MEASURE: Duration = Duration::from_millis(500);

/// Seconds, each the median of several times.
struct Measured {
    /// A token whose session's pages are all there.
    compute: f64,
    /// Its pages on their way back, and their bytes.
    page_in: f64,
    bytes: u64,
    /// From resume to the next token: block after block as pages arrive, and with all of
    /// them first.
    staged: f64,
    whole: f64,
}

/// A session that comes back, beside what its parts take alone.
pub fn restore(args: &BenchRestoreArgs) -> Result<(), Failure> {
    let model = bundled::open(args.model.model.as_deref())?;
    let steps = 4 * args.repeat + 4;
    let context = args.context.saturating_add(steps);
    check_context(&model.program, context)?;
    let settled = args.model.settled()?;
    let request = Request {
        tokens: some_tokens(&model.program, args.context, 0),
        max_tokens: steps,
        ..Request::default()
    };
    // Pages for two, of which the host takes one.
    let one = Settings::for_sessions(&model.program, 1, context, args.model.rows)?;
    let settings = Settings {
        pages: 2 * one.pages,
        ..one
    };
    let bytes = model
        .program
        .kv_bytes_per_token(kv_dtype(settled.backend(), &model.program));
    let kv = KvMemory {
        device: Some(context.next_multiple_of(settings.page_tokens) as u64 * bytes),
        spill: None,
    };
    let blueprint =
        Blueprint::for_sessions(&model, settled.backend(), settings, settled.memory, &kv)?;
    let mut engine = commands::load(&settled, model, blueprint, &mut Watch::default())?;
    let id = engine.open(request)?;
    let measured = measure(&mut engine, id, args.repeat)?;
    let report = report(args, &settled, &engine, &measured)?;
    match args.json {
        true => say_json(&report),
        false => say(&text(&report)),
    }
}

fn measure(engine: &mut Engine, id: SessionId, repeat: usize) -> Result<Measured, Failure> {
    // The prompt, and a token to warm up.
    while engine.step()?.iter().all(|output| output.token.is_none()) {}
    engine.step()?;
    let mut times = [const { Vec::new() }; 4];
    let mut bytes = 0;
    for _ in 0..repeat {
        let start = Instant::now();
        engine.step()?;
        times[0].push(start.elapsed().as_secs_f64());

        // Everything first: it is expected, and comes in one go before it is resumed.
        leave(engine, id)?;
        let (before, start) = (engine.paging_stats()?, Instant::now());
        engine.wait(id, Some(start))?;
        engine.tend(start);
        let back = engine.paging_stats()?.copied_in;
        engine.resume(id)?;
        engine.step()?;
        times[3].push(start.elapsed().as_secs_f64());
        times[1].push(back.seconds - before.copied_in.seconds);
        bytes = back.bytes - before.copied_in.bytes;

        leave(engine, id)?;
        let start = Instant::now();
        engine.resume(id)?;
        engine.step()?;
        times[2].push(start.elapsed().as_secs_f64());
    }
    let [compute, page_in, staged, whole] = times.map(|mut times| median(&mut times));
    Ok(Measured {
        compute,
        page_in,
        bytes,
        staged,
        whole,
    })
}

/// The session waits, with all its pages on the host alone.
fn leave(engine: &mut Engine, id: SessionId) -> Result<(), Failure> {
    engine.wait(id, None)?;
    engine.paging_stats()?;
    Ok(())
}

fn report(
    args: &BenchRestoreArgs,
    settled: &Settled<'_>,
    engine: &Engine,
    measured: &Measured,
) -> Result<Value, Failure> {
    let (model, blueprint) = (engine.model(), engine.blueprint());
    let link = match settled.backend().card() {
        None => None,
        Some(_) => Some(rates::link(settled, model, blueprint, MEASURE, 0.0)?),
    };
    let rate = measured.bytes as f64 / measured.page_in / 1e9;
    Ok(json!({
        "model": model.name, "device": engine.device().detail, "context": args.context,
        "bytes": measured.bytes, "page_in_s": measured.page_in, "gb_per_s": rate,
        "link_gb_per_s": link, "share_of_link": link.map(|link| rate / link),
        "compute_s": measured.compute,
        "resume_to_token_s": measured.staged, "everything_first_s": measured.whole,
        "times_the_larger": measured.staged / measured.page_in.max(measured.compute),
    }))
}

fn text(report: &Value) -> String {
    let number = |key: &str| report[key].as_f64().unwrap_or(0.0);
    let line = |name: &str, key: &str| vec![name.to_owned(), seconds(number(key))];
    let lines = [
        line("pages come back", "page_in_s"),
        line("a token is computed", "compute_s"),
        line("resume to token, block after block", "resume_to_token_s"),
        line("resume to token, everything first", "everything_first_s"),
    ];
    format!(
        "{}: a session of {} tokens, {} of KV, comes back at {:.1} GB/s\n{}\
         \x20 {:.2} times the larger of both\n",
        report["model"].as_str().unwrap_or_default(),
        report["context"],
        Size(number("bytes") as u64),
        number("gb_per_s"),
        table(&["", "median"], &lines),
        number("times_the_larger"),
    )
}
