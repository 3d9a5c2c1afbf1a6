//! Benchmark `hooks`: cost of captures, edits and breakpoints.

use std::time::Instant;

use djinn_engine::{
    Blueprint, BreakSpec, EditSpec, Engine, KvMemory, Positions, Probe, ProbeLimits, Request,
    RunUntil, SessionId, Settings,
};
use djinn_model::{Model, program::Program};
use serde_json::{Value, json};

use crate::{
    BenchError, BenchReport, BenchTarget,
    sample::{check_context, median, some_tokens},
};
use djinn_types::text::{seconds, table};

/// Number of untimed tokens at the start, during which a card captures its graphs.
const WARM: usize = 4;

/// Options of the benchmark `hooks`.
pub struct HookOptions {
    /// Prompt tokens of the session.
    pub context: usize,
    /// Blocks after which the session stops, counted from 1; five of them by default.
    pub blocks: Vec<usize>,
    /// Tokens to time with each kind of capture and edit.
    pub tokens: usize,
    /// Number of measurements of each stop; the median counts.
    pub repeat: usize,
}

/// Measures what captures, edits and breakpoints cost.
pub fn hooks(options: &HookOptions, target: &BenchTarget<'_>) -> Result<BenchReport, BenchError> {
    let model = target.host.open()?;
    let count = model.program.dims.blocks;
    let blocks = match &options.blocks[..] {
        [] => [1, count / 4, count / 2, 3 * count / 4, count]
            .map(|block| block.max(1))
            .to_vec(),
        some => some.to_vec(),
    };
    if let Some(block) = blocks.iter().find(|block| !(1..=count).contains(*block)) {
        return Err(BenchError::Option {
            option: "--blocks",
            limit: format!("block {block} does not exist; the model has blocks 1 to {count}"),
        });
    }
    let blueprint = layout(options, target, &model)?;
    let mut engine = target.host.load(model, blueprint)?;
    let mut bench = HookBench {
        engine: &mut engine,
        options,
        salt: 0,
    };
    let tokens = bench.tokens()?;
    let mut stops = Vec::new();
    for block in blocks {
        stops.push(bench.stops(block)?);
    }
    let report = json!({
        "model": engine.model().name, "device": engine.device().detail,
        "context": options.context, "tokens": tokens, "stops": stops,
    });
    Ok(BenchReport::new(text(&report), report))
}

/// Lays out an engine with pages for three sessions: two on the device, one on the host.
fn layout(
    options: &HookOptions,
    target: &BenchTarget<'_>,
    model: &Model,
) -> Result<Blueprint, BenchError> {
    let steps = options.tokens.max(3 * options.repeat) + 2 * WARM;
    let context = options.context.saturating_add(steps);
    check_context(&model.program, context)?;
    let one = Settings::for_sessions(&model.program, 1, context, target.rows)?;
    let settings = Settings {
        open: 3,
        pages: 3 * one.pages,
        probe_limits: ProbeLimits {
            operand_width: model.program.dims.d_model,
            ..ProbeLimits::default()
        },
        ..one
    };
    let dtype = djinn_engine::kv_dtype(&target.memory, &model.program);
    let bytes = model.program.kv_bytes_per_token(dtype);
    let kv = KvMemory {
        device: Some(2 * context.next_multiple_of(settings.page_tokens) as u64 * bytes),
        spill: None,
    };
    Ok(Blueprint::for_sessions(
        model,
        target.backend,
        settings,
        target.memory,
        &kv,
    )?)
}

/// An engine and the options of the benchmark.
struct HookBench<'a> {
    engine: &'a mut Engine,
    options: &'a HookOptions,
    /// Number that makes each prompt unique, so that none reuses another's pages.
    salt: usize,
}

impl HookBench<'_> {
    fn program(&self) -> &Program {
        &self.engine.model().program
    }

    fn request(&mut self, probe: Probe, tokens: usize) -> Request {
        self.salt += 1;
        Request {
            tokens: some_tokens(self.program(), self.options.context, self.salt),
            max_tokens: tokens,
            probe,
            ..Request::default()
        }
    }

    /// Times a token with several kinds of captures and edits.
    fn tokens(&mut self) -> Result<Vec<Value>, BenchError> {
        let dims = self.program().dims;
        let middle = format!("blocks.{}.hook_resid_post", dims.blocks / 2);
        let vector = vec!["0.001"; dims.d_model].join(",");
        let ways: [(&str, &[&str], Option<String>); 5] = [
            ("plain", &[], None),
            (
                "scale at one block",
                &[],
                Some(format!("{middle}:scale=0.9@generated")),
            ),
            (
                "add at one block",
                &[],
                Some(format!("{middle}:add=[{vector}]@generated")),
            ),
            ("read one block", &[&middle], None),
            ("read all blocks", &["blocks.*.hook_resid_post"], None),
        ];
        let mut plain = 0.0;
        let mut rows = Vec::new();
        for (name, captures, edit) in ways {
            let edits: Result<Vec<EditSpec>, _> = edit.iter().map(|edit| edit.parse()).collect();
            let probe = Probe::new(self.program(), captures, Positions::Generated, &edits?)?;
            let seconds = self.token(probe)?;
            if name == "plain" {
                plain = seconds;
            }
            rows.push(json!({
                "what": name, "seconds": seconds, "more": seconds / plain - 1.0,
            }));
        }
        Ok(rows)
    }

    /// Median seconds of a generated token.
    fn token(&mut self, probe: Probe) -> Result<f64, BenchError> {
        let count = self.options.tokens + WARM;
        let request = self.request(probe, count + 1);
        let id = self.engine.open(request)?;
        while self
            .engine
            .step()?
            .iter()
            .all(|output| output.token.is_none())
        {}
        let mut times = Vec::with_capacity(count);
        for _ in 0..count {
            let start = Instant::now();
            self.engine.step()?;
            times.push(start.elapsed().as_secs_f64());
        }
        self.engine.close(id);
        Ok(median(&mut times[WARM..]))
    }

    /// Times a session that stops after a block at every generated token.
    fn stops(&mut self, block: usize) -> Result<Value, BenchError> {
        let hook = format!("blocks.{}.hook_resid_post", block - 1);
        let spec =
            |at: &str| -> Result<BreakSpec, BenchError> { Ok(format!("{hook}{at}").parse()?) };
        let generated = Probe::default().with_breaks(self.program(), &[spec("@generated")?])?;
        let request = self.request(generated, 3 * self.options.repeat + WARM);
        let id = self.engine.open(request)?;
        let mut times = [const { Vec::new() }; 4];
        let [taken, here, away, first] = &mut times;
        for round in 0..=self.options.repeat {
            let mut one = [0.0; 4];
            self.run_to_stop()?;
            one[0] = self.engine.pause_seconds();
            one[1] = self.next_block(id, |_| Ok(()))?;
            self.engine.any_session(id)?.resume()?;
            self.run_to_stop()?;
            self.leave(id)?;
            one[2] = self.next_block(id, |_| Ok(()))?;
            self.engine.any_session(id)?.resume()?;
            self.run_to_stop()?;
            self.leave(id)?;
            one[3] = self.next_block(id, |engine| {
                let now = Instant::now();
                engine.any_session(id)?.wait(Some(now))?;
                engine.maintain(now);
                engine.paging_stats()?;
                Ok(())
            })?;
            self.engine.any_session(id)?.resume()?;
            // The first round warms up.
            if round > 0 {
                taken.push(one[0]);
                here.push(one[1]);
                away.push(one[2]);
                first.push(one[3]);
            }
        }
        self.engine.close(id);
        let again = self.recompute(&spec(",step=0")?)?;
        let [taken, here, away, first] = times.map(|mut times| median(&mut times));
        Ok(json!({
            "block": block, "checkpoint_host_s": taken, "resume_s": here,
            "resume_from_host_s": away, "everything_first_s": first, "recompute_s": again,
        }))
    }

    /// Runs until a session stops at a breakpoint.
    fn run_to_stop(&mut self) -> Result<(), BenchError> {
        loop {
            let outputs = self.engine.step()?;
            if outputs.iter().any(|output| output.paused.is_some()) {
                return Ok(());
            }
            if let Some(ended) = outputs.into_iter().find(|output| output.finish.is_some()) {
                let why = ended.failure.map_or_else(
                    || "no breakpoint was reached".to_owned(),
                    |failure| failure.message,
                );
                return Err(BenchError::SessionEnded(why));
            }
        }
    }

    /// Seconds from a stopped session to the next hook, where the next block begins.
    fn next_block(
        &mut self,
        id: SessionId,
        before: impl FnOnce(&mut Engine) -> Result<(), BenchError>,
    ) -> Result<f64, BenchError> {
        let start = Instant::now();
        before(self.engine)?;
        self.engine
            .any_session(id)?
            .resume_with(&[], RunUntil::Hook)?;
        self.run_to_stop()?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// Moves all pages of a session to the host.
    fn leave(&mut self, id: SessionId) -> Result<(), BenchError> {
        self.engine.any_session(id)?.wait(None)?;
        self.engine.paging_stats()?;
        Ok(())
    }

    /// Seconds until a new session reaches the breakpoint.
    fn recompute(&mut self, spec: &BreakSpec) -> Result<f64, BenchError> {
        let mut times = Vec::with_capacity(self.options.repeat);
        for _ in 0..self.options.repeat {
            let probe = Probe::default().with_breaks(self.program(), std::slice::from_ref(spec))?;
            let request = self.request(probe, 1);
            let start = Instant::now();
            let id = self.engine.open(request)?;
            self.run_to_stop()?;
            times.push(start.elapsed().as_secs_f64());
            self.engine.close(id);
        }
        Ok(median(&mut times))
    }
}

fn text(report: &Value) -> String {
    let number = |value: &Value| value.as_f64().unwrap_or(0.0);
    let all = |key: &str| report[key].as_array().cloned().unwrap_or_default();
    let tokens: Vec<_> = all("tokens")
        .iter()
        .map(|row| {
            let name = row["what"].as_str().unwrap_or_default().to_owned();
            let more = format!("{:+.1} %", 100.0 * number(&row["more"]));
            vec![name, seconds(number(&row["seconds"])), more]
        })
        .collect();
    let keys = [
        "checkpoint_host_s",
        "resume_s",
        "resume_from_host_s",
        "everything_first_s",
        "recompute_s",
    ];
    let stops: Vec<_> = all("stops")
        .iter()
        .map(|row| {
            let block = std::iter::once(row["block"].to_string());
            let times = keys.iter().map(|key| seconds(number(&row[key])));
            block.chain(times).collect::<Vec<_>>()
        })
        .collect();
    let names = [
        "after block",
        "checkpoint",
        "resume",
        "KV on the host",
        "all KV first",
        "recompute",
    ];
    format!(
        "{}: a session of {} tokens\n{}\nUntil the next block begins:\n{}",
        report["model"].as_str().unwrap_or_default(),
        report["context"],
        table(&["a token", "median", "more"], &tokens),
        table(&names, &stops),
    )
}
