//! Benchmark `restore`: a session whose KV returns from host memory.

use std::time::{Duration, Instant};

use djinn_engine::{Blueprint, Engine, KvMemory, Request, SessionId, Settings};
use djinn_types::Size;
use djinn_types::text::{seconds, table};
use serde_json::{Value, json};

use crate::{
    BenchError, BenchReport, BenchTarget, rates,
    sample::{check_context, median, some_tokens},
};

/// Time for which the link is measured.
const MEASURE: Duration = Duration::from_millis(500);

/// Options of the benchmark `restore`.
pub struct RestoreOptions {
    /// Tokens of the session.
    pub context: usize,
    /// Number of measurements; the median counts.
    pub repeat: usize,
}

/// Medians in seconds, and bytes.
struct RestoreMeasurement {
    /// Time of a token when all pages are on the device.
    compute: f64,
    /// Time of copying the pages to the device.
    page_in: f64,
    /// Bytes of these pages.
    bytes: u64,
    /// Time from resume to the next token when blocks compute as their pages arrive.
    staged: f64,
    /// Time from resume to the next token when all pages are copied first.
    whole: f64,
}

/// Measures a session whose KV returns from host memory, and the copy and the token alone.
pub fn restore(
    options: &RestoreOptions,
    target: &BenchTarget<'_>,
) -> Result<BenchReport, BenchError> {
    let model = target.host.open()?;
    let steps = 4 * options.repeat + 4;
    let context = options.context.saturating_add(steps);
    check_context(&model.program, context)?;
    let request = Request {
        tokens: some_tokens(&model.program, options.context, 0),
        max_tokens: steps,
        ..Request::default()
    };
    // There are pages for two sessions: one on the device, one on the host.
    let one = Settings::for_sessions(&model.program, 1, context, target.rows)?;
    let settings = Settings {
        pages: 2 * one.pages,
        ..one
    };
    let bytes = model
        .program
        .kv_bytes_per_token(djinn_engine::kv_dtype(&target.memory, &model.program));
    let kv = KvMemory {
        device: Some(context.next_multiple_of(settings.page_tokens) as u64 * bytes),
        spill: None,
    };
    let blueprint = Blueprint::for_sessions(&model, target.backend, settings, target.memory, &kv)?;
    let mut engine = target.host.load(model, blueprint)?;
    let id = engine.open(request)?;
    let measured = measure(&mut engine, id, options.repeat)?;
    let json = report(options, target, &engine, &measured)?;
    Ok(BenchReport::new(text(&json), json))
}

fn measure(
    engine: &mut Engine,
    id: SessionId,
    repeat: usize,
) -> Result<RestoreMeasurement, BenchError> {
    // The prompt and one token warm up the engine.
    while engine.step()?.iter().all(|output| output.token.is_none()) {}
    engine.step()?;
    let mut times = [const { Vec::new() }; 4];
    let mut bytes = 0;
    for _ in 0..repeat {
        let start = Instant::now();
        engine.step()?;
        times[0].push(start.elapsed().as_secs_f64());

        // All pages first: announcing the return prefetches every page before the session resumes.
        leave(engine, id)?;
        let (before, start) = (engine.paging_stats()?, Instant::now());
        engine.any_session(id)?.wait(Some(start))?;
        engine.maintain(start);
        let back = engine.paging_stats()?.copied_in;
        engine.any_session(id)?.resume()?;
        engine.step()?;
        times[3].push(start.elapsed().as_secs_f64());
        times[1].push(back.seconds - before.copied_in.seconds);
        bytes = back.bytes - before.copied_in.bytes;

        leave(engine, id)?;
        let start = Instant::now();
        engine.any_session(id)?.resume()?;
        engine.step()?;
        times[2].push(start.elapsed().as_secs_f64());
    }
    let [compute, page_in, staged, whole] = times.map(|mut times| median(&mut times));
    Ok(RestoreMeasurement {
        compute,
        page_in,
        bytes,
        staged,
        whole,
    })
}

/// Marks the session as waiting and moves all its pages to the host.
fn leave(engine: &mut Engine, id: SessionId) -> Result<(), BenchError> {
    engine.any_session(id)?.wait(None)?;
    engine.paging_stats()?;
    Ok(())
}

fn report(
    options: &RestoreOptions,
    target: &BenchTarget<'_>,
    engine: &Engine,
    measured: &RestoreMeasurement,
) -> Result<Value, BenchError> {
    let (model, blueprint) = (engine.model(), engine.blueprint());
    let link = match target.backend.card() {
        None => None,
        Some(_) => Some(rates::link(target.backend, model, blueprint, MEASURE, 0.0)?),
    };
    let rate = measured.bytes as f64 / measured.page_in / 1e9;
    Ok(json!({
        "model": model.name, "device": engine.device().detail, "context": options.context,
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
        line("page-in", "page_in_s"),
        line("compute of a token", "compute_s"),
        line("resume to token, block by block", "resume_to_token_s"),
        line("resume to token, all pages first", "everything_first_s"),
    ];
    format!(
        "{}: {} of KV of a session with {} tokens page in at {:.1} GB/s\n{}\
         \x20 block by block takes {:.2} × the larger of page-in and compute\n",
        report["model"].as_str().unwrap_or_default(),
        Size(number("bytes") as u64),
        report["context"],
        number("gb_per_s"),
        table(&["", "median"], &lines),
        number("times_the_larger"),
    )
}
