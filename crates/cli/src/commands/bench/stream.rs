//! `djinn bench stream`

use std::time::Duration;

use djinn_engine::{Blueprint, Engine, EngineError, Request, Settings};
use djinn_memory::Size;
use djinn_model::Model;
use djinn_weights::{MemorySettings, PassStats, PlanError};
use serde_json::{Value, json};

use super::{check_context, median, rates, some_tokens};
use crate::{
    args::{BenchStreamArgs, Settled},
    bundled,
    commands::{self, watch::Watch},
    failure::{Failure, say, say_json},
    style::seconds,
};

/// How long the link is measured in each round.
const MEASURE: Duration = Duration::from_secs(1);
/// Without --memory: a model of four times the budget.
const SHARE: u64 = 4;
/// The same passes, with prefetch and without, and the link between them.
struct Bench<'a> {
    settled: Settled<'a>,
    with: Engine,
    without: Engine,
    /// The longest prompt they have room for.
    longest: usize,
}

/// Everything measured, in seconds and GB/s.
#[derive(Default)]
struct Measured {
    link: Vec<f64>,
    token: Vec<PassStats>,
    prompt: Vec<PassStats>,
    prompt_without: Vec<PassStats>,
}

/// Measures a model that does not fit.
pub fn stream(args: &BenchStreamArgs) -> Result<(), Failure> {
    let settled = args.model.settled()?;
    if !settled.memory.prefetch {
        return Err(Failure::Message(
            "--prefetch off: both are measured, with and without".into(),
        ));
    }
    let mut bench = Bench::new(args, settled)?;
    let tokens = match args.tokens {
        Some(tokens) => tokens,
        None => bench.balanced_tokens()?,
    };
    let mut measured = Measured::default();
    for round in 0..args.repeat {
        let start = round as f64 / args.repeat as f64;
        measured.link.push(bench.link(start)?);
        measured.token.push(pass(&mut bench.with, 1)?);
        measured.prompt.push(pass(&mut bench.with, tokens)?);
        measured
            .prompt_without
            .push(pass(&mut bench.without, tokens)?);
    }
    let report = report(&bench, tokens, &mut measured);
    if args.json {
        return say_json(&report);
    }
    say(&text(&bench, tokens, &report))
}

impl<'a> Bench<'a> {
    fn new(args: &BenchStreamArgs, settled: Settled<'a>) -> Result<Self, Failure> {
        let name = args.model.model.as_deref();
        let model = bundled::open(name)?;
        let context = model.program.dims.context;
        let longest = args.tokens.unwrap_or(args.model.rows.min(context));
        check_context(&model.program, longest)?;
        let memory = budget(&settled, &model, longest)?;
        let load = |model: Model, prefetch: bool| -> Result<Engine, Failure> {
            let memory = MemorySettings { prefetch, ..memory };
            let blueprint = draw(&settled, &model, longest, memory)?;
            if !blueprint.plan().streams() {
                return Err(Failure::Message(format!(
                    "{}: {}; give less --memory",
                    model.name,
                    blueprint.reason()
                )));
            }
            commands::load(&settled, model, blueprint, &mut Watch::default())
        };
        Ok(Bench {
            with: load(model, true)?,
            without: load(bundled::open(name)?, false)?,
            longest,
            settled,
        })
    }

    /// GB/s of reading alone.
    fn link(&self, start: f64) -> Result<f64, Failure> {
        let (model, blueprint) = (self.with.model(), self.with.blueprint());
        rates::link(&self.settled, model, blueprint, MEASURE, start)
    }

    /// A prompt that computes for about as long as its weights are read.
    fn balanced_tokens(&mut self) -> Result<usize, Failure> {
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
    settled: &Settled<'_>,
    model: &Model,
    longest: usize,
    memory: MemorySettings,
) -> Result<Blueprint, EngineError> {
    let settings = Settings::for_sessions(&model.program, 1, longest, longest)?;
    Blueprint::draw(model, settled.backend(), settings, memory)
}

/// What the flags say, or a quarter of the weights, or the least that works.
fn budget(settled: &Settled<'_>, model: &Model, longest: usize) -> Result<MemorySettings, Failure> {
    let memory = settled.memory;
    if settled.args.memory.memory.is_some() {
        return Ok(memory);
    }
    let quarter = MemorySettings {
        budget: model.program.weight_bytes() / SHARE,
        ..memory
    };
    match draw(settled, model, longest, quarter) {
        Err(EngineError::Plan(PlanError::Budget { least, .. })) => Ok(MemorySettings {
            budget: least,
            ..memory
        }),
        drawn => Ok(drawn.map(|_| quarter)?),
    }
}

/// One pass over a prompt of so many tokens, with the ring as the last pass left it.
fn pass(engine: &mut Engine, tokens: usize) -> Result<PassStats, Failure> {
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

fn middle(passes: &[PassStats], of: impl Fn(&PassStats) -> f64) -> f64 {
    median(&mut passes.iter().map(of).collect::<Vec<_>>())
}

fn report(bench: &Bench<'_>, tokens: usize, measured: &mut Measured) -> Value {
    let blueprint = bench.with.blueprint();
    let link = median(&mut measured.link);
    let read_bytes = middle(&measured.prompt_without, |pass| pass.link_bytes as f64);
    let read_s = read_bytes / link / 1e9;
    let token = &measured.token;
    let (prompt, without) = (&measured.prompt, &measured.prompt_without);
    let rate = |passes: &[PassStats]| middle(passes, PassStats::link_gb_per_s);
    let time = |passes: &[PassStats]| middle(passes, |pass| pass.seconds);
    let compute_s = middle(without, PassStats::compute_s);
    let longer = read_s.max(compute_s);
    json!({
        "model": bench.with.model().name,
        "device": bench.with.device().detail,
        "source": rates::source(bench.settled.backend(), bench.with.model()),
        "weights_bytes": bench.with.model().program.weight_bytes(),
        "budget_bytes": blueprint.memory().budget,
        "streamed_bytes_per_token": middle(token, |pass| pass.link_bytes as f64),
        "streamed_bytes_per_prompt": read_bytes,
        "ring_bytes": blueprint.plan().ring.bytes,
        "chunk_bytes": blueprint.weights().link_chunk(), "workers": blueprint.link().workers,
        "rounds": measured.link.len(),
        "link_gb_per_s": link, "all_link_gb_per_s": measured.link,
        "token": {
            "pass_s": time(token), "link_gb_per_s": rate(token),
            "share_of_link": rate(token) / link,
            "all_pass_s": token.iter().map(|p| p.seconds).collect::<Vec<_>>(),
            "stall_s": middle(token, |p| p.stall_s),
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
            "overlap": middle(prompt, PassStats::overlap),
        },
    })
}

fn text(bench: &Bench<'_>, tokens: usize, report: &Value) -> String {
    let number = |key: &str| report.pointer(key).and_then(Value::as_f64).unwrap_or(0.0);
    let size = |key: &str| Size(number(key) as u64);
    format!(
        "{}: {} of weights in {}, {} streams for a token\n\
         \x20 the link alone            {:.2} GB/s ({})\n\
         \x20 a token                   {}, {:.2} GB/s over the link: {:.0} % of it\n\
         \x20 a prompt of {tokens:<4} tokens    {}; reading takes {}, computing {}: {:.2} × the longer\n\
         \x20 the same, no prefetch     {}: {:.2} × as long\n",
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
