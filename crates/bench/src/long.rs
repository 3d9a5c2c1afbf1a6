//! Benchmark `long`: a session whose KV pages exceed the device and stream in every pass.

use std::time::{Duration, Instant};

use djinn_engine::{
    Blueprint, Engine, KvMemory, Request, SessionId, Settings, rates::link_shares_cores,
};
use djinn_types::Size;
use djinn_types::text::seconds;
use djinn_weights::Rates;
use serde_json::{Value, json};

use crate::{
    BenchError, BenchReport, BenchTarget, rates,
    sample::{BANDWIDTH_BYTES, check_context, median_of, some_tokens},
};

/// Time for which the link is measured.
const MEASURE: Duration = Duration::from_millis(500);

/// Options of the benchmark `long`.
pub struct LongOptions {
    /// Prompt tokens of the session.
    pub context: usize,
    /// Number of generated tokens to time.
    pub tokens: usize,
    /// Bytes of device memory for KV pages; the default layout without them.
    pub kv: Option<u64>,
}

/// One pass: its duration, and the bytes that streamed.
#[derive(Clone, Copy, Default)]
struct LongPass {
    seconds: f64,
    /// Bytes of weights over the link.
    weights: u64,
    /// Bytes of KV pages through the window.
    pages: u64,
}

impl LongPass {
    fn and(self, other: LongPass) -> LongPass {
        LongPass {
            seconds: self.seconds + other.seconds,
            weights: self.weights + other.weights,
            pages: self.pages + other.pages,
        }
    }

    fn bytes(&self) -> f64 {
        (self.weights + self.pages) as f64
    }
}

/// Passes of the prompt and of the generated tokens, and the tokens.
struct LongMeasurement {
    prompt: Vec<LongPass>,
    decode: Vec<LongPass>,
    tokens: Vec<u32>,
    /// Bandwidth of the device's memory in GB/s.
    memory: f64,
    /// Bandwidth of the link in GB/s.
    link: f64,
    /// Predicted seconds of a pass at the end of the context.
    predicted_s: f64,
}

/// Runs a long session and times its prompt and its generated tokens.
pub fn long(options: &LongOptions, target: &BenchTarget<'_>) -> Result<BenchReport, BenchError> {
    let model = target.host.open()?;
    let context = options.context.saturating_add(options.tokens);
    check_context(&model.program, context)?;
    let request = Request {
        tokens: some_tokens(&model.program, options.context, 0),
        max_tokens: options.tokens + 1,
        ..Request::default()
    };
    let settings = Settings::for_sessions(&model.program, 1, context, target.rows)?;
    let kv = KvMemory {
        device: options.kv,
        spill: None,
    };
    let blueprint = Blueprint::for_sessions(&model, target.backend, settings, target.memory, &kv)?;
    // Memory is measured before loading: a tight budget leaves no room for the buffer afterwards.
    let memory = rates::memory(target.backend, BANDWIDTH_BYTES)?;
    let mut engine = target.host.load(model, blueprint)?;
    let id = engine.open(request)?;
    let measured = measure(&mut engine, id, target, memory)?;
    let json = report(options, &engine, &measured);
    Ok(BenchReport::new(text(&json), json))
}

fn measure(
    engine: &mut Engine,
    id: SessionId,
    target: &BenchTarget<'_>,
    memory: f64,
) -> Result<LongMeasurement, BenchError> {
    let (mut prompt, mut decode) = (Vec::new(), Vec::new());
    while !engine.is_idle() {
        let generates = engine.view(id).is_some_and(|view| view.generated() > 0);
        let pass = timed_pass(engine)?;
        match generates {
            true => decode.push(pass),
            false => prompt.push(pass),
        }
        if !generates {
            let step = format!("pass {} of the prompt", prompt.len());
            target.host.progress(&step);
        }
    }
    if decode.is_empty() {
        return Err(BenchError::NoDecodePass);
    }
    let transcript = engine.close(id).expect("the session is open");
    let (model, blueprint) = (engine.model(), engine.blueprint());
    let link = rates::link(target.backend, model, blueprint, MEASURE, 0.0)?;
    let rates = Rates {
        link: link * 1e9,
        compute: memory * 1e9,
        shared: link_shares_cores(target.backend, model),
    };
    let work = blueprint.work(model);
    Ok(LongMeasurement {
        prompt,
        decode,
        tokens: transcript.generated,
        memory,
        link,
        predicted_s: blueprint.plan().predict(&work, &rates).pass_s,
    })
}

/// Runs a pass. The traffic of pages is read after the clock stops.
fn timed_pass(engine: &mut Engine) -> Result<LongPass, BenchError> {
    let (before, clock) = (engine.paging_stats()?, Instant::now());
    engine.step()?;
    let seconds = clock.elapsed().as_secs_f64();
    let stats = engine.last_pass().unwrap_or_default();
    Ok(LongPass {
        seconds,
        weights: stats.link_bytes,
        pages: engine.paging_stats()?.streamed.bytes - before.streamed.bytes,
    })
}

fn report(options: &LongOptions, engine: &Engine, measured: &LongMeasurement) -> Value {
    let (blueprint, footprint) = (engine.blueprint(), engine.footprint());
    let settings = blueprint.settings();
    let all = |passes: &[LongPass]| {
        passes
            .iter()
            .copied()
            .fold(LongPass::default(), LongPass::and)
    };
    let (prompt, decode) = (all(&measured.prompt), all(&measured.decode));
    let pass_s = median_of(&measured.decode, |pass| pass.seconds);
    let bytes = median_of(&measured.decode, LongPass::bytes);
    let share = |bytes: f64, seconds: f64| bytes / seconds / 1e9 / measured.link;
    let session = options.context.div_ceil(settings.page_tokens) as u64 * blueprint.page_bytes();
    json!({
        "model": engine.model().name, "device": engine.device().detail,
        "context": options.context, "rows": settings.rows,
        "budget_bytes": blueprint.memory().budget,
        "session_kv_bytes": session, "device_kv_bytes": footprint.kv - footprint.kv_window,
        "window_bytes": footprint.kv_window, "host_kv_bytes": blueprint.host_page_bytes(),
        "prompt": {
            "seconds": prompt.seconds, "passes": measured.prompt.len(),
            "tokens_per_s": options.context as f64 / prompt.seconds,
            "weights_bytes": prompt.weights, "kv_bytes": prompt.pages,
            "share_of_link": share(prompt.bytes(), prompt.seconds),
        },
        "token_s": pass_s, "predicted_token_s": measured.predicted_s,
        "prediction_off": measured.predicted_s / pass_s - 1.0,
        "tokens": measured.decode.len(),
        "weights_bytes_per_token": median_of(&measured.decode, |pass| pass.weights as f64),
        "kv_bytes_per_token": median_of(&measured.decode, |pass| pass.pages as f64),
        "kv_bytes": decode.pages,
        "link_gb_per_s": measured.link, "through_gb_per_s": bytes / pass_s / 1e9,
        "share_of_link": share(bytes, pass_s),
        "memory_gb_per_s": measured.memory,
        "tokens_hash": format!("{:016x}", hash(&measured.tokens)),
    })
}

/// FNV-1a hash of token ids, to compare runs.
fn hash(tokens: &[u32]) -> u64 {
    let bytes = tokens.iter().flat_map(|token| token.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn text(report: &Value) -> String {
    let number = |key: &str| report.pointer(key).and_then(Value::as_f64).unwrap_or(0.0);
    let size = |key: &str| Size(number(key) as u64);
    let word = |key: &str| report[key].as_str().unwrap_or_default().to_owned();
    format!(
        "{} on {}: {} tokens with {} of KV, {} of it on the device and a window of {}\n\
         \x20 prompt          {} in {} passes, {:.0} tokens/s, {:.1} % of the link\n\
         \x20 a token         {} (median of {}; predicted {}, {:+.1} %)\n\
         \x20 over the link   {} of weights and {} of KV per token, {:.2} GB/s: {:.1} % of {:.2} GB/s\n\
         \x20 tokens' hash    {}\n",
        word("model"),
        word("device"),
        number("/context"),
        size("/session_kv_bytes"),
        size("/device_kv_bytes"),
        size("/window_bytes"),
        seconds(number("/prompt/seconds")),
        number("/prompt/passes"),
        number("/prompt/tokens_per_s"),
        number("/prompt/share_of_link") * 100.0,
        seconds(number("/token_s")),
        number("/tokens"),
        seconds(number("/predicted_token_s")),
        number("/prediction_off") * 100.0,
        size("/weights_bytes_per_token"),
        size("/kv_bytes_per_token"),
        number("/through_gb_per_s"),
        number("/share_of_link") * 100.0,
        number("/link_gb_per_s"),
        word("tokens_hash"),
    )
}

#[cfg(test)]
mod tests {
    use super::hash;

    #[test]
    fn hashes_depend_on_every_token_and_the_order() {
        assert_eq!(hash(&[]), 0xcbf2_9ce4_8422_2325);
        let hashes = [hash(&[1, 2]), hash(&[2, 1]), hash(&[1]), hash(&[1, 3])];
        for (at, one) in hashes.iter().enumerate() {
            assert!(hashes[at + 1..].iter().all(|other| other != one));
        }
    }
}
