//! Chrome trace of a run, as Perfetto and chrome://tracing open it.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufWriter, Write},
    path::Path,
};

use djinn_client::v1::Span;
use djinn_terminal::Failure;
use serde_json::{Value, json};

/// Row of the trace that a span belongs to, with its name.
fn lane(span: &Span) -> (u64, String) {
    match span.lane.as_str() {
        "compute" => (0, "compute".to_owned()),
        "wait" => (1, "waiting for weights".to_owned()),
        _ => (2 + span.worker, format!("link worker {}", span.worker)),
    }
}

/// Writes spans to a file. Times are in microseconds, as the format requires.
pub fn write(path: &Path, model: &str, spans: &[Span]) -> Result<(), Failure> {
    let fault = |error| Failure::Message(format!("{}: {error}", path.display()));
    let mut out = BufWriter::new(File::create(path).map_err(fault)?);
    let lanes: BTreeMap<u64, String> = spans.iter().map(lane).collect();
    let process = json!({ "ph": "M", "pid": 1, "name": "process_name", "args": { "name": model } });
    let names = lanes.into_iter().flat_map(|(tid, name)| {
        [
            json!({ "ph": "M", "pid": 1, "tid": tid, "name": "thread_name",
                    "args": { "name": name } }),
            json!({ "ph": "M", "pid": 1, "tid": tid, "name": "thread_sort_index",
                    "args": { "sort_index": tid } }),
        ]
    });
    let events = spans.iter().map(event);
    let mut separator = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
    for event in std::iter::once(process).chain(names).chain(events) {
        write!(out, "{separator}{event}").map_err(fault)?;
        separator = ",\n";
    }
    writeln!(out, "\n]}}")
        .and_then(|()| out.flush())
        .map_err(fault)
}

fn event(span: &Span) -> Value {
    let mut event = json!({
        "ph": "X", "pid": 1, "tid": lane(span).0, "cat": span.lane, "name": span.name,
        "ts": span.start_s * 1e6, "dur": span.seconds * 1e6,
    });
    if span.lane == "copy" {
        let rate = span.bytes as f64 / span.seconds.max(1e-9) / 1e9;
        event["args"] = json!({ "bytes": span.bytes, "gb_per_s": rate });
    }
    event
}
