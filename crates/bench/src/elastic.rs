//! Benchmark `elastic`: the number of sessions rises and falls while weights and KV pages share
//! one budget. Each phase is compared with an engine whose plan was made for it.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    time::Instant,
};

use djinn_engine::{Blueprint, Engine, EngineError, KvMemory, Request, SessionId, Settings};
use djinn_model::Model;
use djinn_types::{Size, text::table};
use djinn_weights::MemorySettings;
use serde_json::{Value, json};

use crate::{
    BenchError, BenchReport, BenchTarget,
    sample::{check_context, median_of, some_tokens},
};

/// Options of the benchmark.
#[derive(Clone, Debug)]
pub struct ElasticOptions {
    /// Number of sessions of each phase.
    pub phases: Vec<usize>,
    /// Tokens of a session, prompt included.
    pub tokens: usize,
    /// Tokens that a session generates.
    pub output: usize,
    /// Number of passes to measure at the end of a phase.
    pub measure: usize,
    /// Whether to compare with fixed plans.
    pub compare: bool,
}

/// One pass in which every session of the phase generated a token.
struct MeasuredPass {
    seconds: f64,
    tokens: usize,
}

/// Measurement of one phase.
struct LoadPhase {
    sessions: usize,
    failed: usize,
    /// Division of the memory at the end of the phase.
    resident_bytes: u64,
    streamed_bytes: u64,
    frames: usize,
    switches: u64,
    passes: Vec<MeasuredPass>,
    /// Tokens of each session.
    generated: Vec<Vec<u32>>,
}

impl LoadPhase {
    fn pass_s(&self) -> f64 {
        match self.passes.is_empty() {
            true => 0.0,
            false => median_of(&self.passes, |pass| pass.seconds),
        }
    }

    fn tokens_per_s(&self) -> f64 {
        let seconds: f64 = self.passes.iter().map(|pass| pass.seconds).sum();
        let tokens: usize = self.passes.iter().map(|pass| pass.tokens).sum();
        tokens as f64 / seconds.max(1e-9)
    }

    fn json(&self) -> Value {
        json!({
            "sessions": self.sessions, "failed": self.failed,
            "resident_bytes": self.resident_bytes, "streamed_bytes": self.streamed_bytes,
            "kv_frames": self.frames, "switches": self.switches,
            "pass_s": self.pass_s(), "tokens_per_s": self.tokens_per_s(),
            "measured_passes": self.passes.len(),
        })
    }
}

/// Measures phases with different numbers of sessions.
pub fn elastic(
    options: &ElasticOptions,
    target: &BenchTarget<'_>,
) -> Result<BenchReport, BenchError> {
    if options.output >= options.tokens || options.phases.contains(&0) {
        return Err(BenchError::Option {
            option: "--phases, --tokens and --output",
            limit: "at least one session, and a prompt of at least one token".to_owned(),
        });
    }
    let elastic = elastic_phases(options, target)?;
    let mut planned = BTreeMap::new();
    let mut off = Vec::new();
    if options.compare {
        for &sessions in &options.phases {
            let Entry::Vacant(entry) = planned.entry(sessions) else {
                continue;
            };
            let text = format!("plan for {sessions} sessions");
            target.host.progress(&text);
            if let Some(phase) = planned_phase(options, target, sessions)? {
                entry.insert(phase);
            }
        }
        off = fixed_phases(options, target)?;
    }
    let (first, last) = (&elastic[0], &elastic[elastic.len() - 1]);
    let returned = options.phases.first() != options.phases.last()
        || (first.resident_bytes, first.frames) == (last.resident_bytes, last.frames);
    let failed: usize = elastic.iter().map(|phase| phase.failed).sum();
    let differ = differing(&elastic, &planned);
    let report = json!({
        "tokens": options.tokens, "output": options.output,
        "budget_bytes": target.memory.budget,
        "phases": elastic.iter().enumerate().map(|(i, phase)| json!({
            "elastic": phase.json(),
            "planned": planned.get(&phase.sessions).map(LoadPhase::json),
            "off": off.get(i).map(LoadPhase::json),
            "pass_ratio": planned.get(&phase.sessions).map(|p| phase.pass_s() / p.pass_s()),
        })).collect::<Vec<_>>(),
        "failed": failed, "weights_returned": returned, "differing_sessions": differ,
    });
    Ok(BenchReport {
        passed: failed == 0 && returned && differ == 0,
        ..BenchReport::new(text(&report), report)
    })
}

/// Number of sessions whose tokens differ between an elastic and a fixed layout.
fn differing(elastic: &[LoadPhase], planned: &BTreeMap<usize, LoadPhase>) -> usize {
    let differs = |phase: &LoadPhase| {
        let Some(fixed) = planned.get(&phase.sessions) else {
            return 0;
        };
        let pairs = phase.generated.iter().zip(&fixed.generated);
        pairs.filter(|(a, b)| a != b).count()
    };
    elastic.iter().map(differs).sum()
}

fn settings(
    options: &ElasticOptions,
    target: &BenchTarget<'_>,
    model: &Model,
    sessions: usize,
) -> Result<Settings, BenchError> {
    check_context(&model.program, options.tokens)?;
    let rows = target.rows.max(sessions);
    let one = Settings::for_sessions(&model.program, 1, options.tokens, rows)?;
    Ok(Settings {
        rows,
        sessions,
        open: sessions,
        logit_rows: sessions,
        pages: sessions * one.pages,
        ..one
    })
}

/// Runs all phases on one engine with an elastic layout.
fn elastic_phases(
    options: &ElasticOptions,
    target: &BenchTarget<'_>,
) -> Result<Vec<LoadPhase>, BenchError> {
    phases(options, target, true)
}

/// Runs all phases on one engine whose plan does not change: pages that do not fit take turns.
fn fixed_phases(
    options: &ElasticOptions,
    target: &BenchTarget<'_>,
) -> Result<Vec<LoadPhase>, BenchError> {
    phases(options, target, false)
}

fn phases(
    options: &ElasticOptions,
    target: &BenchTarget<'_>,
    elastic: bool,
) -> Result<Vec<LoadPhase>, BenchError> {
    let model = target.host.open()?;
    let most = options.phases.iter().copied().max().unwrap_or(1);
    let settings = settings(options, target, &model, most)?;
    let memory = MemorySettings {
        elastic,
        ..target.memory
    };
    let kv = KvMemory::default();
    let blueprint = Blueprint::for_sessions(&model, target.backend, settings, memory, &kv)?;
    if elastic && blueprint.levels().is_none() {
        return Err(BenchError::Option {
            option: "--memory",
            limit: format!("with this memory nothing yields: {}", blueprint.reason()),
        });
    }
    let mut engine = target.host.load(model, blueprint)?;
    let name = if elastic { "elastic" } else { "fixed" };
    let numbered = options.phases.iter().enumerate();
    numbered
        .map(|(number, &sessions)| {
            let of = options.phases.len();
            let text = format!("{name}: phase {} of {of}, {sessions} sessions", number + 1);
            target.host.progress(&text);
            phase(options, &mut engine, sessions)
        })
        .collect()
}

/// Runs one phase on an engine whose plan has KV pages for all its sessions on the device. Returns
/// `None` if there is too little memory for such a plan.
fn planned_phase(
    options: &ElasticOptions,
    target: &BenchTarget<'_>,
    sessions: usize,
) -> Result<Option<LoadPhase>, BenchError> {
    let model = target.host.open()?;
    let settings = settings(options, target, &model, sessions)?;
    let blueprint = match Blueprint::draw(&model, target.backend, settings, target.memory) {
        Err(EngineError::Plan(_)) => return Ok(None),
        drawn => drawn?,
    };
    let mut engine = target.host.load(model, blueprint)?;
    phase(options, &mut engine, sessions).map(Some)
}

/// Runs one phase, and measures the last passes before its first session ends.
fn phase(
    options: &ElasticOptions,
    engine: &mut Engine,
    sessions: usize,
) -> Result<LoadPhase, BenchError> {
    let before = engine.memory_split().switches;
    let prompt = options.tokens - options.output;
    let ids = (0..sessions)
        .map(|salt| {
            let tokens = some_tokens(&engine.model().program, prompt, salt);
            engine.open(Request {
                tokens,
                max_tokens: options.output,
                ..Request::default()
            })
        })
        .collect::<Result<Vec<SessionId>, _>>()?;
    let (mut passes, mut failed, mut has_ended) = (Vec::new(), 0, false);
    let mut split = engine.memory_split();
    while !engine.is_idle() {
        let start = Instant::now();
        let outputs = engine.step()?;
        let tokens = outputs.iter().filter(|output| output.token.is_some());
        let tokens = tokens.count();
        failed += outputs.iter().filter(|o| o.failure.is_some()).count();
        if !has_ended {
            passes.push(MeasuredPass {
                seconds: start.elapsed().as_secs_f64(),
                tokens,
            });
            split = engine.memory_split();
        }
        has_ended |= outputs.iter().any(|output| output.finish.is_some());
    }
    passes.drain(..passes.len().saturating_sub(options.measure));
    let close = |id| engine.close(id).map_or_else(Vec::new, |t| t.generated);
    let generated = ids.into_iter().map(close).collect();
    let now = split;
    Ok(LoadPhase {
        sessions,
        failed,
        resident_bytes: now.resident_bytes,
        streamed_bytes: now.streamed_bytes,
        frames: now.frames,
        switches: now.switches.saturating_sub(before),
        passes,
        generated,
    })
}

/// Report as text.
fn text(report: &Value) -> String {
    let phases = report["phases"].as_array().into_iter().flatten();
    let rows: Vec<Vec<String>> = phases
        .map(|phase| {
            let number = |key: &str| phase.pointer(key).and_then(Value::as_f64);
            let size = |key: &str| Size(number(key).unwrap_or(0.0) as u64).to_string();
            let shown = |value: Option<f64>, digits: usize| {
                value.map_or_else(|| "–".to_owned(), |value| format!("{value:.digits$}"))
            };
            let ms = |key: &str| shown(number(key).map(|s| 1e3 * s), 1);
            vec![
                shown(number("/elastic/sessions"), 0),
                size("/elastic/resident_bytes"),
                size("/elastic/streamed_bytes"),
                shown(number("/elastic/kv_frames"), 0),
                shown(number("/elastic/switches"), 0),
                ms("/elastic/pass_s"),
                ms("/planned/pass_s"),
                shown(number("/pass_ratio"), 3),
                shown(number("/elastic/tokens_per_s"), 1),
                shown(number("/planned/tokens_per_s"), 1),
                shown(number("/off/tokens_per_s"), 1),
            ]
        })
        .collect();
    let header = [
        "sessions",
        "resident",
        "streamed",
        "KV frames",
        "switches",
        "pass ms",
        "planned ms",
        "ratio",
        "tokens/s",
        "planned",
        "off",
    ];
    let mut text = table(&header, &rows);
    let failed = &report["failed"];
    text += &format!("  failed sessions    {failed}\n");
    let differ = &report["differing_sessions"];
    text += &format!("  differing sessions {differ}\n");
    if report["weights_returned"] == json!(false) {
        text += "  WEIGHTS DID NOT RETURN\n";
    }
    text
}
