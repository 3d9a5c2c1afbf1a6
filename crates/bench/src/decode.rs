//! Benchmark `decode`: time of a generated token.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use djinn_device::host;
use djinn_engine::{Engine, Request};
use djinn_model::program::{Op, Program, TensorId};
use djinn_types::Size;
use djinn_types::text::seconds;
use djinn_weights::{PassStats, Prediction, Rates};
use serde_json::{Value, json};

use crate::{
    BenchError, BenchReport, BenchTarget, rates,
    sample::{BANDWIDTH_BYTES, check_context, median_of, some_tokens},
};

/// Time for which the link is measured.
const MEASURE: Duration = Duration::from_millis(500);

/// Options of the benchmark `decode`.
pub struct DecodeOptions {
    /// Number of decode passes to time.
    pub tokens: usize,
    /// Prompt tokens of each session.
    pub context: usize,
    /// Sessions that generate together.
    pub sessions: usize,
}

/// Times and rates of the decode passes.
struct DecodeMeasurement {
    /// Passes in which every session generates a token.
    passes: Vec<PassStats>,
    /// Seconds from the first pass to the first token of any session.
    first_token_s: f64,
    /// Bandwidth of the device's memory in GB/s.
    memory: f64,
    /// Bandwidth of the link in GB/s, if weights stream.
    link: Option<f64>,
    prediction: Prediction,
    /// Bytes of the device's memory in use, as its driver counts them.
    used_bytes: Option<u64>,
}

/// Times passes in which every session generates a token.
pub fn decode(
    options: &DecodeOptions,
    target: &BenchTarget<'_>,
) -> Result<BenchReport, BenchError> {
    let model = target.host.open()?;
    check_context(
        &model.program,
        options.context.saturating_add(options.tokens),
    )?;
    let sessions = options.sessions;
    // Untimed tokens: tokens that early sessions generate while prompts of late sessions still run, and
    // the first token of each session, which its prompt yields.
    let spare_rows = target.rows.saturating_sub(sessions).max(1);
    let untimed = (sessions * options.context).div_ceil(spare_rows) + 1;
    let read_bytes = bytes_read(&model.program);
    let requests = (0..sessions)
        .map(|i| Request {
            tokens: some_tokens(&model.program, options.context, i),
            max_tokens: options.tokens.saturating_add(untimed),
            ..Request::default()
        })
        .collect();
    // Memory is measured before loading: a tight budget leaves no room for the buffer afterwards.
    let memory = rates::memory(target.backend, BANDWIDTH_BYTES)?;
    let (mut engine, _) = target.start(model, requests)?;
    let measured = measure(target, &mut engine, sessions, options.tokens, memory)?;
    let json = report(options, &engine, read_bytes, &measured);
    Ok(BenchReport::new(text(target, &engine, &json), json))
}

fn measure(
    target: &BenchTarget<'_>,
    engine: &mut Engine,
    sessions: usize,
    count: usize,
    memory: f64,
) -> Result<DecodeMeasurement, BenchError> {
    let (first_token_s, passes) = timed_passes(engine, sessions, count)?;
    if passes.is_empty() {
        return Err(BenchError::NoDecodePass);
    }
    let used_bytes = match target.backend.card() {
        None => None,
        Some(card) => card.used(),
    };
    let (model, blueprint) = (engine.model(), engine.blueprint());
    let link = match blueprint.plan().streams() {
        true => Some(rates::link(target.backend, model, blueprint, MEASURE, 0.0)?),
        false => None,
    };
    let rates = Rates {
        link: link.unwrap_or(f64::INFINITY) * 1e9,
        compute: memory * 1e9,
        shared: djinn_engine::rates::link_shares_cores(target.backend, model),
    };
    let work = blueprint.work(model);
    Ok(DecodeMeasurement {
        prediction: blueprint.plan().predict(&work, &rates),
        passes,
        first_token_s,
        memory,
        link,
        used_bytes,
    })
}

/// Runs until `count` passes gave every session a token. Returns the seconds to the first token, and
/// the passes.
fn timed_passes(
    engine: &mut Engine,
    sessions: usize,
    count: usize,
) -> Result<(f64, Vec<PassStats>), BenchError> {
    let mut started = BTreeSet::new();
    let mut passes = Vec::new();
    let (begun, mut first) = (Instant::now(), None);
    while passes.len() < count && !engine.is_idle() {
        let all_started = started.len() == sessions;
        let clock = Instant::now();
        let outputs = engine.step()?;
        let time = clock.elapsed().as_secs_f64();
        let tokens = outputs.iter().filter(|output| output.token.is_some());
        if all_started && tokens.clone().count() == sessions {
            let stats = engine.last_pass().unwrap_or_default();
            passes.push(PassStats {
                seconds: time,
                ..stats
            });
        }
        if first.is_none() && tokens.clone().next().is_some() {
            first = Some(begun.elapsed().as_secs_f64());
        }
        started.extend(tokens.map(|output| output.session));
    }
    Ok((first.unwrap_or(0.0), passes))
}

fn report(
    options: &DecodeOptions,
    engine: &Engine,
    read_bytes: u64,
    measured: &DecodeMeasurement,
) -> Value {
    let passes = &measured.passes;
    let pass = median_of(passes, |p| p.seconds);
    let fastest = passes
        .iter()
        .map(|p| p.seconds)
        .fold(f64::INFINITY, f64::min);
    let rate = read_bytes as f64 / pass / 1e9;
    let weights = engine.model().program.weight_bytes();
    let mut report = json!({
        "model": engine.model().name, "device": engine.device().detail,
        "sessions": options.sessions, "context": options.context, "passes": passes.len(),
        "first_token_s": measured.first_token_s,
        "pass_s": pass, "fastest_pass_s": fastest,
        "predicted_pass_s": measured.prediction.pass_s,
        "prediction_off": measured.prediction.pass_s / pass - 1.0,
        "tokens_per_s": options.sessions as f64 / pass,
        "weights_bytes": weights, "weights_bytes_per_pass": read_bytes, "weights_gb_per_s": rate,
        "memory_gb_per_s": measured.memory, "share_of_memory": rate / measured.memory,
        "budget_bytes": engine.blueprint().memory().budget,
        "slab_bytes": engine.footprint().slab(), "device_used_bytes": measured.used_bytes,
        "peak_rss_bytes": host::peak_rss_bytes(),
    });
    if let Some(link) = measured.link {
        let streamed = median_of(passes, |p| p.link_bytes as f64);
        // The rate is over the whole pass, so time without a copy in flight lowers it.
        let through = streamed / pass / 1e9;
        report["link"] = json!({
            "gb_per_s": link, "bytes_per_pass": streamed, "through_gb_per_s": through,
            "share": through / link, "stall_s": median_of(passes, |p| p.stall_s),
            "model_bytes_over_pass_gb_per_s": weights as f64 / pass / 1e9,
            "ring_bytes": engine.footprint().ring,
        });
    }
    report
}

fn text(target: &BenchTarget<'_>, engine: &Engine, report: &Value) -> String {
    let number = |key: &str| report.pointer(key).and_then(Value::as_f64).unwrap_or(0.0);
    let size = |key: &str| Size(number(key) as u64);
    let how = match target.backend.card() {
        None => "reading with the same threads",
        Some(_) => "bytes read plus written by a copy on the card",
    };
    let mut text = format!(
        "{} on {}\n\
         \x20 first token     {}\n\
         \x20 a pass          {} (median of {}; fastest {}; predicted {}, {:+.1} %)\n\
         \x20 tokens          {:.1}/s\n\
         \x20 weights read    {:.1} GB/s\n\
         \x20 memory          {:.1} GB/s (median, {how})\n\
         \x20 share           {:.0} %\n",
        engine.model().name,
        engine.device().detail,
        seconds(number("/first_token_s")),
        seconds(number("/pass_s")),
        number("/passes"),
        seconds(number("/fastest_pass_s")),
        seconds(number("/predicted_pass_s")),
        number("/prediction_off") * 100.0,
        number("/tokens_per_s"),
        number("/weights_gb_per_s"),
        number("/memory_gb_per_s"),
        number("/share_of_memory") * 100.0,
    );
    if report.get("link").is_some() {
        text.push_str(&format!(
            "  over the link   {} per pass, {:.2} GB/s: {:.1} % of {:.2} GB/s without compute\n",
            size("/link/bytes_per_pass"),
            number("/link/through_gb_per_s"),
            number("/link/share") * 100.0,
            number("/link/gb_per_s"),
        ));
    }
    if report["device_used_bytes"].is_u64() {
        text.push_str(&format!(
            "  card memory     {} of {}, as the driver counts\n",
            size("/device_used_bytes"),
            size("/budget_bytes"),
        ));
    }
    text
}

/// Bytes of weights that a pass over one token reads: every dense tensor except embedding tables, and
/// the chosen experts.
fn bytes_read(program: &Program) -> u64 {
    let mut dense: BTreeSet<TensorId> = BTreeSet::new();
    let mut routed = 0;
    for op in program.ops() {
        match op {
            Op::Linear { weight, bias, .. } | Op::Norm { weight, bias, .. } => {
                dense.extend([Some(*weight), *bias].into_iter().flatten());
            }
            Op::Experts {
                chosen, experts, ..
            } => {
                let one = experts.first().map_or(0, |e| {
                    let tensors = [e.gate, e.up, e.down];
                    tensors.iter().map(|&id| program.tensor(id).bytes()).sum()
                });
                routed += one * *chosen as u64;
            }
            _ => {}
        }
    }
    let dense: u64 = dense.iter().map(|&id| program.tensor(id).bytes()).sum();
    dense + routed
}
