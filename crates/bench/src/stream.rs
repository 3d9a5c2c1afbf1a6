//! Benchmark `stream`: a model that does not fit in memory.

use std::time::Duration;

use djinn_engine::{Blueprint, Engine, EngineError, Request, Settings};
use djinn_model::Model;
use djinn_types::Size;
use djinn_types::text::seconds;
use djinn_weights::{MemorySettings, PassStats, PlanError};
use serde_json::{Value, json};

use crate::{
    BenchError, BenchReport, BenchTarget, rates,
    sample::{check_context, median, median_of, some_tokens},
};

/// Time for which the link is measured in each round.
const MEASURE: Duration = Duration::from_secs(1);
/// Without --memory, the budget is the weights divided by this number.
const SHARE: u64 = 4;

/// Options of the benchmark `stream`.
pub struct StreamOptions {
    /// Number of rounds; the medians count.
    pub repeat: usize,
    /// Tokens of the prompt; by default as many as compute for as long as the weights are read.
    pub tokens: Option<usize>,
}

/// Two engines with the same layout, one with prefetch and one without.
struct StreamBench<'a> {
    target: &'a BenchTarget<'a>,
    with: Engine,
    without: Engine,
    /// Tokens of the longest prompt that fits in the layout.
    longest: usize,
}

/// Measurements of all rounds: the link in GB/s, and passes.
#[derive(Default)]
struct StreamMeasurement {
    link: Vec<f64>,
    token: Vec<PassStats>,
    prompt: Vec<PassStats>,
    prompt_without: Vec<PassStats>,
}

/// Measures a model that does not fit in memory: the link alone, a token, and a prompt with and without
/// prefetch.
pub fn stream(
    options: &StreamOptions,
    target: &BenchTarget<'_>,
) -> Result<BenchReport, BenchError> {
    if !target.memory.prefetch {
        return Err(BenchError::Option {
            option: "--prefetch off",
            limit: "this benchmark measures passes with and without prefetch; leave the flag out"
                .to_owned(),
        });
    }
    let mut bench = StreamBench::new(options, target)?;
    let tokens = match options.tokens {
        Some(tokens) => tokens,
        None => bench.balanced_tokens()?,
    };
    let mut measured = StreamMeasurement::default();
    for round in 0..options.repeat {
        let start = round as f64 / options.repeat as f64;
        measured.link.push(bench.link(start)?);
        measured.token.push(pass(&mut bench.with, 1)?);
        measured.prompt.push(pass(&mut bench.with, tokens)?);
        measured
            .prompt_without
            .push(pass(&mut bench.without, tokens)?);
    }
    let json = report(&bench, tokens, &mut measured);
    Ok(BenchReport::new(text(&bench, tokens, &json), json))
}

impl<'a> StreamBench<'a> {
    fn new(options: &StreamOptions, target: &'a BenchTarget<'a>) -> Result<Self, BenchError> {
        let model = target.host.open()?;
        let context = model.program.dims.context;
        let longest = options.tokens.unwrap_or(target.rows.min(context));
        check_context(&model.program, longest)?;
        let memory = budget(target, &model, longest)?;
        let load = |model: Model, prefetch: bool| -> Result<Engine, BenchError> {
            let memory = MemorySettings { prefetch, ..memory };
            let blueprint = draw(target, &model, longest, memory)?;
            if !blueprint.plan().streams() {
                return Err(BenchError::NothingStreams {
                    reason: blueprint.reason(),
                    model: model.name,
                });
            }
            target.host.load(model, blueprint)
        };
        Ok(StreamBench {
            with: load(model, true)?,
            without: load(target.host.open()?, false)?,
            longest,
            target,
        })
    }

    /// Bandwidth of the link alone in GB/s.
    fn link(&self, start: f64) -> Result<f64, BenchError> {
        let (model, blueprint) = (self.with.model(), self.with.blueprint());
        rates::link(self.target.backend, model, blueprint, MEASURE, start)
    }

    /// Tokens of a prompt that computes for about as long as the weights are read.
    fn balanced_tokens(&mut self) -> Result<usize, BenchError> {
        pass(&mut self.without, 1)?;
        let mut tokens = 32.min(self.longest);
        for _ in 0..3 {
            let link = self.link(0.0)? * 1e9;
            let stats = pass(&mut self.without, tokens)?;
            let read = stats.link_bytes as f64 / link;
            let next = (tokens as f64 * read / stats.compute_s()).round() as usize;
            tokens = next.clamp(1, self.longest);
        }
        Ok(tokens)
    }
}

fn draw(
    target: &BenchTarget<'_>,
    model: &Model,
    longest: usize,
    memory: MemorySettings,
) -> Result<Blueprint, EngineError> {
    let settings = Settings::for_sessions(&model.program, 1, longest, longest)?;
    Blueprint::draw(model, target.backend, settings, memory)
}

/// Memory from --memory, or a quarter of the weights, or the smallest budget that works.
fn budget(
    target: &BenchTarget<'_>,
    model: &Model,
    longest: usize,
) -> Result<MemorySettings, BenchError> {
    let memory = target.memory;
    if target.has_budget {
        return Ok(memory);
    }
    let quarter = MemorySettings {
        budget: model.program.weight_bytes() / SHARE,
        ..memory
    };
    match draw(target, model, longest, quarter) {
        Err(EngineError::Plan(PlanError::Budget { least, .. })) => Ok(MemorySettings {
            budget: least,
            ..memory
        }),
        drawn => Ok(drawn.map(|_| quarter)?),
    }
}

/// Runs one pass over a prompt. The ring still holds pieces of the pass before.
fn pass(engine: &mut Engine, tokens: usize) -> Result<PassStats, BenchError> {
    let request = Request {
        tokens: some_tokens(&engine.model().program, tokens, tokens),
        max_tokens: 1,
        ..Request::default()
    };
    let id = engine.open(request)?;
    engine.step()?;
    engine.close(id);
    Ok(engine.last_pass().expect("a pass has run"))
}

fn report(bench: &StreamBench<'_>, tokens: usize, measured: &mut StreamMeasurement) -> Value {
    let blueprint = bench.with.blueprint();
    let link = median(&mut measured.link);
    let read_bytes = median_of(&measured.prompt_without, |pass| pass.link_bytes as f64);
    let read_s = read_bytes / link / 1e9;
    let token = &measured.token;
    let (prompt, without) = (&measured.prompt, &measured.prompt_without);
    let rate = |passes: &[PassStats]| median_of(passes, PassStats::link_gb_per_s);
    let time = |passes: &[PassStats]| median_of(passes, |pass| pass.seconds);
    let compute_s = median_of(without, PassStats::compute_s);
    let longer = read_s.max(compute_s);
    json!({
        "model": bench.with.model().name,
        "device": bench.with.device().detail,
        "source": djinn_engine::rates::link_source(bench.target.backend, bench.with.model()),
        "weights_bytes": bench.with.model().program.weight_bytes(),
        "budget_bytes": blueprint.memory().budget,
        "streamed_bytes_per_token": median_of(token, |pass| pass.link_bytes as f64),
        "streamed_bytes_per_prompt": read_bytes,
        "ring_bytes": blueprint.plan().ring.bytes,
        "chunk_bytes": blueprint.weights().link_chunk(), "workers": blueprint.link().workers,
        "rounds": measured.link.len(),
        "link_gb_per_s": link, "all_link_gb_per_s": measured.link,
        "token": {
            "pass_s": time(token), "link_gb_per_s": rate(token),
            "share_of_link": rate(token) / link,
            "all_pass_s": token.iter().map(|p| p.seconds).collect::<Vec<_>>(),
            "stall_s": median_of(token, |p| p.stall_s),
        },
        "prompt": {
            "tokens": tokens,
            "read_s": read_s, "compute_s": compute_s,
            "pass_s": time(prompt), "pass_without_prefetch_s": time(without),
            "all_pass_s": prompt.iter().map(|p| p.seconds).collect::<Vec<_>>(),
            "all_pass_without_prefetch_s":
                without.iter().map(|p| p.seconds).collect::<Vec<_>>(),
            "of_the_longer": time(prompt) / longer,
            "faster_by_prefetch": time(without) / time(prompt),
            "link_gb_per_s": rate(prompt), "share_of_link": rate(prompt) / link,
            "overlap": median_of(prompt, PassStats::overlap),
        },
    })
}

fn text(bench: &StreamBench<'_>, tokens: usize, report: &Value) -> String {
    let number = |key: &str| report.pointer(key).and_then(Value::as_f64).unwrap_or(0.0);
    let size = |key: &str| Size(number(key) as u64);
    format!(
        "{}: {} of weights in {}, {} streams for a token\n\
         \x20 the link alone            {:.2} GB/s ({})\n\
         \x20 a token                   {}, {:.2} GB/s: {:.0} % of the link\n\
         \x20 a prompt of {tokens:<4} tokens    {}; reading takes {}, computing {}: {:.2} × the longer of both\n\
         \x20 without prefetch          {}: {:.2} × as long\n",
        bench.with.model().name,
        size("/weights_bytes"),
        size("/budget_bytes"),
        size("/streamed_bytes_per_token"),
        number("/link_gb_per_s"),
        report["source"].as_str().unwrap_or_default(),
        seconds(number("/token/pass_s")),
        number("/token/link_gb_per_s"),
        number("/token/share_of_link") * 100.0,
        seconds(number("/prompt/pass_s")),
        seconds(number("/prompt/read_s")),
        seconds(number("/prompt/compute_s")),
        number("/prompt/of_the_longer"),
        seconds(number("/prompt/pass_without_prefetch_s")),
        number("/prompt/faster_by_prefetch"),
    )
}
