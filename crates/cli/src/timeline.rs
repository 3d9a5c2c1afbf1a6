//! A run as a Chrome trace: what Perfetto and chrome://tracing open.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{BufWriter, Write},
    path::Path,
};

use serde_json::{Value, json};

use crate::failure::Failure;
use djinn_weights::{TimelineEvent, TimelineLane};

/// Lanes in the order they are shown.
fn thread(lane: TimelineLane) -> usize {
    match lane {
        TimelineLane::Compute => 0,
        TimelineLane::Wait => 1,
        TimelineLane::Link(worker) => 2 + worker,
    }
}

fn name(lane: TimelineLane) -> String {
    match lane {
        TimelineLane::Compute => "compute".to_owned(),
        TimelineLane::Wait => "waiting for weights".to_owned(),
        TimelineLane::Link(worker) => format!("link worker {worker}"),
    }
}

/// Writes events; times are in microseconds, as the format wants.
pub fn write(path: &Path, model: &str, events: &[TimelineEvent]) -> Result<(), Failure> {
    let fault = |error| Failure::Message(format!("{}: {error}", path.display()));
    let mut out = BufWriter::new(File::create(path).map_err(fault)?);
    let lanes: BTreeSet<TimelineLane> = events.iter().map(|event| event.lane).collect();
    let process = json!({ "ph": "M", "pid": 1, "name": "process_name", "args": { "name": model } });
    let names = lanes.into_iter().flat_map(|lane| {
        let tid = thread(lane);
        [
            json!({ "ph": "M", "pid": 1, "tid": tid, "name": "thread_name",
                    "args": { "name": name(lane) } }),
            json!({ "ph": "M", "pid": 1, "tid": tid, "name": "thread_sort_index",
                    "args": { "sort_index": tid } }),
        ]
    });
    let spans = events.iter().map(span);
    let mut separator = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
    for event in std::iter::once(process).chain(names).chain(spans) {
        write!(out, "{separator}{event}").map_err(fault)?;
        separator = ",\n";
    }
    writeln!(out, "\n]}}")
        .and_then(|()| out.flush())
        .map_err(fault)
}

fn span(event: &TimelineEvent) -> Value {
    let category = match event.lane {
        TimelineLane::Compute => "compute",
        TimelineLane::Wait => "wait",
        TimelineLane::Link(_) => "copy",
    };
    let mut span = json!({
        "ph": "X", "pid": 1, "tid": thread(event.lane), "cat": category, "name": event.name,
        "ts": event.start_s * 1e6, "dur": event.seconds * 1e6,
    });
    if let TimelineLane::Link(_) = event.lane {
        let rate = event.bytes as f64 / event.seconds.max(1e-9) / 1e9;
        span["args"] = json!({ "bytes": event.bytes, "gb_per_s": rate });
    }
    span
}
