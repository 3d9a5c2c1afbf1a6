//! Report of the benchmark `sessions`.

use std::time::Duration;

use djinn_engine::{Engine, PagingStats, Traffic};
use djinn_report::percentile;
use djinn_types::Size;
use djinn_types::text::{seconds, table};
use serde_json::{Value, json};

use super::{load::SessionMeasurement, options::SessionLoadOptions};
use crate::{BenchError, BenchTarget, rates};

/// Time for which the link is measured.
const MEASURE: Duration = Duration::from_millis(500);

/// Report as JSON.
pub fn report(
    options: &SessionLoadOptions,
    target: &BenchTarget<'_>,
    engine: &Engine,
    wanted: usize,
    measured: &SessionMeasurement,
    paged: PagingStats,
) -> Result<Value, BenchError> {
    let (model, blueprint) = (engine.model(), engine.blueprint());
    let (used, link) = match target.backend.card() {
        None => (None, None),
        Some(card) => {
            let used = card.used();
            let link = rates::link(target.backend, model, blueprint, MEASURE, 0.0)?;
            (used, Some(link))
        }
    };
    let over_link = (measured.streamed + paged.copied_in.bytes) as f64;
    let tokens = measured.first.len() + measured.next.len() + measured.resumed.len();
    let way = |traffic: Traffic| {
        json!({
            "bytes": traffic.bytes, "seconds": traffic.seconds, "gb_per_s": traffic.gb_per_s(),
            "share_of_link": link.map(|link| traffic.gb_per_s() / link),
        })
    };
    let rate = |traffic: Traffic| json!({"bytes": traffic.bytes, "gb_per_s": traffic.gb_per_s()});
    Ok(json!({
        "model": model.name, "seed": options.seed,
        "sessions": options.sessions, "completed": measured.generated.len(),
        "failed": measured.failed, "seconds": measured.seconds, "tokens": tokens,
        "tokens_per_s": tokens as f64 / measured.seconds,
        "passes": measured.passes,
        "pass_seconds": measured.pass_seconds,
        "scheduling_seconds": measured.busy - measured.pass_seconds,
        "steps": measured.steps.iter().map(|step| json!([
            step.at, step.seconds, step.pass_seconds, step.rows, step.tokens, step.pages_in_transit,
        ])).collect::<Vec<_>>(),
        "tokens_per_pass": tokens as f64 / measured.passes.max(1) as f64,
        "first_token_s": percentiles(&measured.first),
        "token_s": percentiles(&measured.next),
        "resume_to_token_s": percentiles(&measured.resumed),
        "resume_without_queue_s": percentiles(&measured.served),
        "kv_wanted_bytes": wanted as u64 * blueprint.page_bytes(),
        "device": {
            "name": engine.device().detail, "budget_bytes": blueprint.memory().budget,
            "kv_bytes": engine.footprint().kv, "kv_peak_bytes": paged.device_peak,
            "used_bytes": used,
        },
        "host": {
            "kv_bytes": blueprint.host_page_bytes(), "kv_peak_bytes": paged.host_peak,
        },
        "disk": {
            "kv_bytes": blueprint.disk_page_bytes(), "kv_peak_bytes": paged.disk_peak,
        },
        "shared_tokens": engine.prefix_tokens_reused(),
        "link_gb_per_s": link, "paged_out": way(paged.copied_out), "paged_back": way(paged.copied_in),
        "spilled": rate(paged.spilled), "fetched": rate(paged.fetched),
        "streamed_bytes": measured.streamed,
        "link_share": link.map(|link| over_link / measured.busy / link / 1e9),
    }))
}

/// Percentiles of times.
fn percentiles(times: &[f64]) -> Value {
    let at = |percent: usize| percentile(times, percent);
    json!({"count": times.len(), "p50": at(50), "p90": at(90), "p99": at(99), "max": at(100)})
}

/// Report as text.
pub fn text(report: &Value) -> String {
    let number = |key: &str| report.pointer(key).and_then(Value::as_f64);
    let size = |key: &str| Size(number(key).unwrap_or(0.0) as u64);
    let time = |key: String| number(&key).map_or_else(|| "–".to_owned(), seconds);
    let line = |name: &str, key: &str| {
        let of = |what: &str| time(format!("/{key}/{what}"));
        vec![name.to_owned(), of("p50"), of("p90"), of("p99"), of("max")]
    };
    let lines = [
        line("arrival to first token", "first_token_s"),
        line("a token", "token_s"),
        line("resume to next token", "resume_to_token_s"),
        line("without queueing", "resume_without_queue_s"),
    ];
    let moved = |key: &str| {
        let rate = number(&format!("/{key}/gb_per_s")).unwrap_or(0.0);
        let share = number(&format!("/{key}/share_of_link"));
        let share = share.map_or_else(String::new, |s| format!(", {:.0} % of the link", s * 100.0));
        let bytes = size(&format!("/{key}/bytes"));
        format!("{bytes} at {rate:.1} GB/s{share}")
    };
    let mut text = format!(
        "{}: {} of {} sessions complete in {}, {:.1} tokens/s, {:.1} tokens per pass\n{}\
         \x20 KV needed     {} by all sessions\n\
         \x20 on the device {} at most of {}\n\
         \x20 on the host   {} at most of {}\n\
         \x20 paged out     {}\n\
         \x20 paged in      {}\n",
        report["model"].as_str().unwrap_or_default(),
        report["completed"],
        report["sessions"],
        time("/seconds".into()),
        number("/tokens_per_s").unwrap_or(0.0),
        number("/tokens_per_pass").unwrap_or(0.0),
        table(&["", "p50", "p90", "p99", "longest"], &lines),
        size("/kv_wanted_bytes"),
        size("/device/kv_peak_bytes"),
        size("/device/kv_bytes"),
        size("/host/kv_peak_bytes"),
        size("/host/kv_bytes"),
        moved("paged_out"),
        moved("paged_back"),
    );
    if number("/disk/kv_bytes") > Some(0.0) {
        let (peak, all) = (size("/disk/kv_peak_bytes"), size("/disk/kv_bytes"));
        let (out, back) = (size("/spilled/bytes"), size("/fetched/bytes"));
        text += &format!("  on disk       {peak} at most of {all}; {out} written, {back} read\n");
    }
    if number("/shared_tokens") > Some(0.0) {
        let shared = &report["shared_tokens"];
        text += &format!("  shared        {shared} tokens reused from other sessions\n");
    }
    for (number, why) in report["failed"].as_object().into_iter().flatten() {
        let why = why.as_str().unwrap_or_default();
        text += &format!("  FAILED        session {number}: {why}\n");
    }
    let (checked, differ) = (&report["checked"], &report["differ"]);
    if checked.as_u64().unwrap_or(0) > 0 {
        let differ = differ.as_array().map_or(0, Vec::len);
        text += &match differ {
            0 => format!("  alone         same tokens in {checked} of {checked} sessions\n"),
            n => format!(
                "  alone         TOKENS DIFFER in {n} of {checked} sessions: numbers {}, from tokens {}\n",
                report["differ"], report["differ_from"]
            ),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::percentiles;

    #[test]
    fn percentiles_are_measured_times() {
        let times: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        let expect = json!({"count": 200, "p50": 100.0, "p90": 180.0, "p99": 198.0, "max": 200.0});
        assert_eq!(percentiles(&times), expect);
        assert_eq!(percentiles(&[7.0])["p99"], 7.0);
        assert!(percentiles(&[])["p50"].is_null());
    }
}
