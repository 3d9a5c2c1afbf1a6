//! `djinn plan`

mod on_server;

use std::time::Duration;

use djinn_bench::rates;
use djinn_device::host;
use djinn_engine::{Blueprint, Footprint, Settings, kv_dtype};
use djinn_model::{Model, program::SegmentKind};
use djinn_types::Size;
use djinn_weights::{Bound, PlannedPiece, Prediction, Rates, Region};
use serde_json::{Value, json};

use super::engine::unused_flags;
use crate::{
    args::PlanArgs,
    bundled,
    failure::{Failure, say, say_json},
    style::{seconds, table},
};

/// Positions of a session where nobody says.
const CONTEXT: usize = 4096;
/// How long the link is measured.
const MEASURE: Duration = Duration::from_secs(1);
/// Read through to learn what memory gives.
const BANDWIDTH_BYTES: u64 = 1 << 29;
/// Columns of the bar.
const BAR: usize = 64;
/// Lines of the table before some are left out.
const LINES: usize = 6;

/// A plan with everything said of it.
struct Report {
    model: Model,
    device: String,
    /// What weights may be pinned in, where they are.
    host_budget: Option<u64>,
    /// Where the link's bytes come from.
    link_source: &'static str,
    blueprint: Blueprint,
    rates: Rates,
    measured_link: bool,
    measured_compute: bool,
    prediction: Prediction,
    sessions: usize,
    context: usize,
}

/// Draws a model's blueprint and says what it will come to.
pub fn plan(args: &PlanArgs) -> Result<(), Failure> {
    if args.server.server.is_some() {
        return on_server::plan(args);
    }
    let report = report(args)?;
    if args.json {
        return say_json(&report.json());
    }
    say(&report.text(args.pieces))
}

fn report(args: &PlanArgs) -> Result<Report, Failure> {
    let model = bundled::open(args.model.model.as_deref())?;
    let program = &model.program;
    let sessions = usize::from(args.sessions);
    let context = args.context.unwrap_or(program.dims.context.min(CONTEXT));
    let settings = Settings::for_sessions(program, sessions, context, args.model.rows)?;
    let settled = args.model.settled()?;
    let backend = settled.backend();
    let blueprint = Blueprint::draw(&model, backend, settings, settled.memory)?;
    let link = match args.link {
        Some(link) => link.0 as f64,
        None if !blueprint.plan().streams() => f64::INFINITY,
        None => rates::link(backend, &model, &blueprint, MEASURE, 0.5)? * 1e9,
    };
    let compute = match args.compute {
        Some(compute) => compute.0 as f64,
        None => rates::memory(backend, BANDWIDTH_BYTES)? * 1e9,
    };
    if link <= 0.0 || compute <= 0.0 {
        return Err(Failure::Message("--link and --compute are above 0".into()));
    }
    settled.device.say();
    eprint!("{}", unused_flags(&settled, &blueprint));
    let on_card = backend.card().is_some();
    let rates = Rates {
        link,
        compute,
        // Numbers drawn from a seed cost the cores that compute.
        shared: args.link.is_none() && rates::shared(backend, &model),
    };
    let work = blueprint.work(&model, kv_dtype(backend, &model.program));
    Ok(Report {
        device: settled.device.to_string(),
        host_budget: on_card.then(|| args.model.memory.host_budget(host::available_memory())),
        link_source: rates::source(backend, &model),
        prediction: blueprint.plan().predict(&work, &rates),
        rates,
        measured_link: args.link.is_none(),
        measured_compute: args.compute.is_none(),
        sessions,
        context,
        blueprint,
        model,
    })
}

impl Report {
    fn tokens_per_s(&self) -> f64 {
        self.sessions as f64 / self.prediction.pass_s
    }

    fn text(&self, every_piece: bool) -> String {
        let budget = self.blueprint.memory().budget;
        let footprint = self.blueprint.footprint();
        let pieces = self.blueprint.weights().planned_pieces();
        let ring_offset = self.blueprint.plan().ring_offset;
        let rows = if every_piece {
            let row = |piece| piece_row(piece, ring_offset);
            pieces.iter().map(row).collect()
        } else {
            shortened(by_segment(&pieces, ring_offset))
        };
        let table = match rows.is_empty() {
            true => String::new(),
            false if every_piece => table(&["piece", "bytes", "place", "offset", "after"], &rows),
            false => table(
                &[
                    "segment",
                    "bytes",
                    "stays",
                    "streams",
                    "pieces",
                    "ring offsets",
                ],
                &rows,
            ),
        };
        format!(
            "{} in {}, {} of up to {} positions\n{}\n\n{}\n{table}\n{}",
            self.model.name,
            Size(budget),
            plural(self.sessions, "session"),
            self.context,
            self.blueprint.reason(),
            bar(&footprint, budget),
            self.predicted(),
        )
    }

    fn predicted(&self) -> String {
        let p = &self.prediction;
        let how = |measured: bool, what: &str| match measured {
            true => format!("measured: {what}"),
            false => "as given".to_owned(),
        };
        let link = if p.link_bytes > 0.0 {
            let sharing = match self.rates.shared {
                true => ", on the cores that compute",
                false => "",
            };
            format!(
                "  over the link   {} a token, {} at {:.2} GB/s ({}{sharing})\n",
                Size((p.link_bytes / self.sessions as f64) as u64),
                seconds(p.link_s),
                self.rates.link / 1e9,
                how(self.measured_link, self.link_source),
            )
        } else {
            "  over the link   nothing\n".to_owned()
        };
        let binds = match (p.link_bytes > 0.0, p.bound) {
            (true, Bound::Link) => "the link binds",
            _ => "compute binds",
        };
        format!(
            "a pass, all sessions generating at the end of their context:\n{link}\
             \x20 compute         {} at {:.1} GB/s ({})\n\
             \x20 together        {}: {:.3} tokens/s, {binds}\n",
            seconds(p.compute_s),
            self.rates.compute / 1e9,
            how(self.measured_compute, "what memory reads"),
            seconds(p.pass_s),
            self.tokens_per_s(),
        )
    }

    fn json(&self) -> Value {
        let (footprint, plan) = (self.blueprint.footprint(), self.blueprint.plan());
        let p = &self.prediction;
        let (memory, link) = (self.blueprint.memory(), self.blueprint.link());
        let finite = |x: f64| x.is_finite().then_some(x);
        let pieces: Vec<Value> = self
            .blueprint
            .weights()
            .planned_pieces()
            .iter()
            .map(|piece| piece_json(piece, self.blueprint.plan().ring_offset))
            .collect();
        json!({
            "model": self.model.name,
            "device": self.device,
            "budget_bytes": memory.budget,
            "host_budget_bytes": self.host_budget,
            "sessions": self.sessions,
            "context": self.context,
            "reason": self.blueprint.reason(),
            "weights_bytes": self.model.program.weight_bytes(),
            "bytes": {
                "resident": footprint.resident, "ring": footprint.ring,
                "experts": footprint.pool, "kv": footprint.kv,
                "activations": footprint.activations, "scratch": footprint.scratch,
                "driver": footprint.driver, "host": self.blueprint.host_bytes(),
                "total": footprint.total(),
            },
            "streamed_bytes_per_pass": plan.ring.streamed_bytes(),
            "ring": {
                "bytes": plan.ring.bytes, "ahead_bytes": plan.ring.ahead,
                "offset": plan.ring_offset, "slots": plan.ring.slots.len(),
            },
            "experts": {
                "count": plan.pool.count, "slots": plan.pool_slots, "bytes": plan.pool.bytes,
            },
            "chunk_bytes": link.chunk,
            "workers": link.workers,
            "prefetch": memory.prefetch,
            "link_source": self.link_source,
            "prediction": {
                "link_bytes_per_pass": p.link_bytes,
                "link_bytes_per_token": p.link_bytes / self.sessions as f64,
                "link_bytes_per_s": finite(self.rates.link), "link_s": p.link_s,
                "compute_bytes_per_s": self.rates.compute, "compute_s": p.compute_s,
                "pass_s": p.pass_s, "tokens_per_s": self.tokens_per_s(),
                "binds": match p.bound { Bound::Link => "link", Bound::Compute => "compute" },
            },
            "pieces": pieces,
        })
    }
}

pub(super) fn plural(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Where the bytes go, drawn to scale.
pub(super) fn bar(footprint: &Footprint, budget: u64) -> String {
    let free = budget.saturating_sub(footprint.total());
    let parts = [
        ('█', "weights that stay", footprint.resident),
        ('▒', "ring", footprint.ring),
        ('▓', "experts", footprint.pool),
        ('▚', "KV", footprint.kv),
        (
            '░',
            "activations",
            footprint.activations + footprint.scratch,
        ),
        ('▞', "driver", footprint.driver),
        ('·', "free", free),
    ];
    let whole = footprint.total().max(budget).max(1) as f64;
    let (mut line, mut key) = (String::new(), String::new());
    let (mut sum, mut drawn) = (0, 0);
    for (mark, name, bytes) in parts.into_iter().filter(|(_, _, bytes)| *bytes > 0) {
        sum += bytes;
        // What is there is seen, however little; rounding is caught up with later.
        let until = ((sum as f64 / whole * BAR as f64).round() as usize).max(drawn + 1);
        line.extend(std::iter::repeat_n(mark, until - drawn));
        drawn = until;
        key += &format!("  {mark} {name:<18} {:>10}\n", Size(bytes).to_string());
    }
    format!("  {line}\n{key}")
}

/// A segment's pieces together.
struct Line {
    segment: SegmentKind,
    bytes: u64,
    stays: u64,
    streams: u64,
    pieces: usize,
    offsets: Vec<u64>,
    pooled: bool,
}

fn by_segment(pieces: &[PlannedPiece], ring_offset: u64) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for piece in pieces {
        if lines
            .last()
            .is_none_or(|line| line.segment != piece.segment)
        {
            lines.push(Line {
                segment: piece.segment,
                bytes: 0,
                stays: 0,
                streams: 0,
                pieces: 0,
                offsets: Vec::new(),
                pooled: false,
            });
        }
        let line = lines.last_mut().expect("there is one by now");
        let placement = piece.placement;
        line.bytes += placement.bytes;
        line.pieces += 1;
        match placement.region {
            Region::Ring(_) => {
                line.streams += placement.bytes;
                line.offsets.push(placement.offset - ring_offset);
            }
            Region::Pool => line.pooled = true,
            Region::Resident | Region::Host => line.stays += placement.bytes,
        }
    }
    lines
}

/// The table's rows, some in the middle left out where there are many.
fn shortened(lines: Vec<Line>) -> Vec<Vec<String>> {
    let size = |bytes: u64| match bytes {
        0 => "-".to_owned(),
        bytes => Size(bytes).to_string(),
    };
    let row = |line: &Line| {
        let offsets: Vec<String> = line.offsets.iter().take(4).map(u64::to_string).collect();
        let more = if line.offsets.len() > 4 { " …" } else { "" };
        let streams = match line.pooled {
            true => "when chosen".to_owned(),
            false => size(line.streams),
        };
        vec![
            line.segment.to_string(),
            size(line.bytes),
            size(line.stays),
            streams,
            line.pieces.to_string(),
            offsets.join(" ") + more,
        ]
    };
    if lines.len() <= LINES {
        return lines.iter().map(row).collect();
    }
    let half = LINES / 2;
    let left_out = format!("… {} more", lines.len() - 2 * half);
    let head = lines[..half].iter().map(row);
    let tail = lines[lines.len() - half..].iter().map(row);
    head.chain(std::iter::once(vec![left_out]))
        .chain(tail)
        .collect()
}

fn piece_row(piece: &PlannedPiece, ring_offset: u64) -> Vec<String> {
    let offset = piece.placement.offset;
    let (place, offset) = match piece.placement.region {
        Region::Ring(_) => ("ring", (offset - ring_offset).to_string()),
        Region::Pool => ("when chosen", String::new()),
        Region::Resident | Region::Host => ("stays", offset.to_string()),
    };
    let after = piece.after.map_or(String::new(), |after| after.to_string());
    let bytes = Size(piece.placement.bytes).to_string();
    vec![piece.name.clone(), bytes, place.to_owned(), offset, after]
}

fn piece_json(piece: &PlannedPiece, ring_offset: u64) -> Value {
    let offset = piece.placement.offset;
    let mut value = json!({ "name": piece.name, "bytes": piece.placement.bytes });
    match piece.placement.region {
        Region::Ring(_) => {
            value["place"] = json!("ring");
            value["offset"] = json!(offset - ring_offset);
            value["after"] = json!(piece.after);
        }
        Region::Pool => value["place"] = json!("when chosen"),
        Region::Resident | Region::Host => {
            value["place"] = json!("resident");
            value["offset"] = json!(offset);
        }
    }
    value
}
