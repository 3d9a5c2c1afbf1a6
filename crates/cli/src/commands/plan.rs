//! `djinn plan`

use djinn_client::v1::{self, PiecePlace};
use djinn_engine::Settings;
use djinn_terminal::{Failure, say, say_json};
use djinn_types::{
    Amount, Size,
    text::{seconds, table},
};
use serde_json::{Value, json};

use super::{
    connection::{Connection, LocalEngine, on_model},
    models::kv_choice,
};
use crate::args::PlanArgs;

/// Default context of a session in tokens, unless the model's is shorter.
const CONTEXT: usize = 4096;
/// Width of the memory bar in columns.
const BAR: usize = 64;
/// Largest number of lines in the table of segments.
const LINES: usize = 6;

/// Plans a model's memory and predicts its speed.
pub fn plan(args: &PlanArgs) -> Result<(), Failure> {
    let request = request(args)?;
    let plan = on_model(
        &args.server,
        &args.model,
        engine(args),
        async |connection| ask(connection, request).await,
    )?;
    let report = PlanReport { args, plan };
    match args.json {
        true => say_json(&report.json()),
        false => say(&report.text()),
    }
}

/// Engine that is planned in process: sessions with this context and nothing else.
fn engine(args: &PlanArgs) -> LocalEngine {
    let (context, sessions) = (args.context, usize::from(args.sessions));
    let rows = args.model.rows;
    let settings = Box::new(move |model: &djinn_model::Model| {
        let program = &model.program;
        let context = context.unwrap_or(program.dims.context.min(CONTEXT));
        Ok(Settings::for_sessions(program, sessions, context, rows)?)
    });
    LocalEngine {
        loads: false,
        ..LocalEngine::new(settings)
    }
}

fn request(args: &PlanArgs) -> Result<v1::PlanRequest, Failure> {
    let memory_bytes = match args.model.memory.memory {
        Some(Amount::Bytes(bytes)) => bytes,
        Some(Amount::Share(_)) if args.server.server.is_some() => {
            return Err(Failure::Message(
                "--memory must be a size with --server, since only the server knows its free memory"
                    .into(),
            ));
        }
        Some(Amount::Share(_)) | None => 0,
    };
    let rate = |flag: &str, rate: Option<Size>| match rate {
        Some(Size(0)) => Err(Failure::Message(format!("{flag} must be above 0"))),
        rate => Ok(rate.map(|rate| rate.0 as f64)),
    };
    Ok(v1::PlanRequest {
        limits: Some(v1::ModelLimits {
            memory_bytes,
            context: args.context.unwrap_or(0) as u64,
            batch: u64::from(args.sessions),
            kv_dtype: kv_choice(args.model.memory.kv_dtype),
            ..v1::ModelLimits::default()
        }),
        predict: true,
        link_bytes_per_s: rate("--link", args.link)?,
        compute_bytes_per_s: rate("--compute", args.compute)?,
        pieces: true,
        ..v1::PlanRequest::default()
    })
}

async fn ask(connection: &Connection, request: v1::PlanRequest) -> Result<v1::PlanReply, Failure> {
    let reference = match connection.model.name() {
        "" => connection.model.info().await?.name,
        name => name.to_owned(),
    };
    let request = v1::PlanRequest {
        reference,
        ..request
    };
    Ok(connection.client.plan(request).await?)
}

/// A plan, as it is printed.
struct PlanReport<'a> {
    args: &'a PlanArgs,
    plan: v1::PlanReply,
}

impl PlanReport<'_> {
    fn memory(&self) -> v1::ModelMemory {
        self.plan.memory.unwrap_or_default()
    }

    fn prediction(&self) -> v1::PassPrediction {
        self.plan.prediction.unwrap_or_default()
    }

    fn context(&self) -> u64 {
        self.plan.limits.unwrap_or_default().context
    }

    fn kv_dtype(&self) -> String {
        self.plan.limits.unwrap_or_default().kv_dtype().name()
    }

    fn tokens_per_s(&self) -> f64 {
        f64::from(self.args.sessions) / self.prediction().pass_s
    }

    fn text(&self) -> String {
        let pieces = &self.plan.pieces;
        let table = match self.args.pieces {
            // All weights are resident as a whole.
            _ if pieces.is_empty() => String::new(),
            true => {
                let rows: Vec<Vec<String>> = pieces.iter().map(piece_row).collect();
                table(&["piece", "bytes", "place", "offset", "after"], &rows)
            }
            false => {
                let header = [
                    "segment",
                    "bytes",
                    "resident",
                    "streams",
                    "pieces",
                    "ring offsets",
                ];
                table(&header, &segment_rows(&by_segment(pieces)))
            }
        };
        format!(
            "{} in {}, {} of up to {} positions, KV in {}\n{}\n\n{}\n{table}\n{}",
            self.plan.model,
            Size(self.plan.budget_bytes),
            plural(self.args.sessions, "session"),
            self.context(),
            self.kv_dtype(),
            self.plan.routing,
            bar(&self.memory(), self.plan.budget_bytes),
            self.predicted(),
        )
    }

    /// Lines about the predicted time of a pass.
    fn predicted(&self) -> String {
        if self.plan.prediction.is_none() {
            return "the speed is not predicted: the bandwidth of the memory was not measured; give --compute\n"
                .to_owned();
        }
        let p = self.prediction();
        let source = |given: bool, measured: &str| match given {
            true => "as given".to_owned(),
            false => format!("measured: {measured}"),
        };
        let link = match p.link_bytes > 0.0 {
            true => format!(
                "{} a token, {} at {:.2} GB/s ({}{})",
                Size((p.link_bytes / f64::from(self.args.sessions)) as u64),
                seconds(p.link_s),
                p.link_bytes_per_s / 1e9,
                source(self.args.link.is_some(), &self.plan.link_source),
                match p.link_shares_cores {
                    true => ", on the cores that compute",
                    false => "",
                },
            ),
            false => "nothing".to_owned(),
        };
        let limit = match p.link_bytes > 0.0 && p.link_bound {
            true => "limited by the link",
            false => "limited by compute",
        };
        format!(
            "a pass, all sessions generating at the end of their context:\n\
             \x20 over the link   {link}\n\
             \x20 compute         {} at {:.1} GB/s ({})\n\
             \x20 together        {}: {:.3} tokens/s, {limit}\n",
            seconds(p.compute_s),
            p.compute_bytes_per_s / 1e9,
            source(self.args.compute.is_some(), "bandwidth of the memory"),
            seconds(p.pass_s),
            self.tokens_per_s(),
        )
    }

    fn json(&self) -> Value {
        let (plan, memory, p) = (&self.plan, self.memory(), self.prediction());
        let (ring, experts) = (
            plan.ring.unwrap_or_default(),
            plan.experts.unwrap_or_default(),
        );
        let sessions = self.args.sessions;
        let above_zero = |x: u64| (x > 0).then_some(x);
        json!({
            "model": plan.model,
            "device": plan.device,
            "server": self.args.server.server,
            "budget_bytes": plan.budget_bytes,
            "host_budget_bytes": above_zero(plan.host_budget_bytes),
            "sessions": sessions,
            "context": self.context(),
            "reason": plan.routing,
            "weights_bytes": plan.weights_bytes,
            "session_kv_bytes": plan.session_kv_bytes,
            "kv_dtype": self.kv_dtype(),
            "bytes": {
                "resident": memory.resident_bytes, "ring": memory.ring_bytes,
                "experts": memory.experts_bytes, "kv": memory.kv_bytes,
                "activations": memory.activations_bytes, "scratch": memory.scratch_bytes,
                "driver": memory.driver_bytes, "host": memory.host_bytes,
                "total": memory.total_bytes,
            },
            "streamed_bytes_per_pass": memory.streamed_bytes,
            "ring": {
                "bytes": ring.bytes, "ahead_bytes": ring.ahead_bytes, "offset": ring.offset,
                "slots": ring.slots,
            },
            "experts": {
                "count": experts.count, "slots": experts.slots, "bytes": experts.bytes,
            },
            "chunk_bytes": plan.chunk_bytes,
            "workers": plan.workers,
            "prefetch": plan.prefetch,
            "link_source": plan.link_source,
            "prediction": plan.prediction.is_some().then(|| json!({
                "link_bytes_per_pass": p.link_bytes,
                "link_bytes_per_token": p.link_bytes / f64::from(sessions),
                "link_bytes_per_s": (p.link_bytes_per_s > 0.0).then_some(p.link_bytes_per_s),
                "link_s": p.link_s,
                "compute_bytes_per_s": p.compute_bytes_per_s, "compute_s": p.compute_s,
                "pass_s": p.pass_s, "tokens_per_s": self.tokens_per_s(),
                "binds": if p.link_bound { "link" } else { "compute" },
            })),
            "pieces": plan.pieces.iter().map(piece_json).collect::<Vec<Value>>(),
        })
    }
}

fn plural(count: u16, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Device memory by purpose, drawn to scale, with a legend.
fn bar(memory: &v1::ModelMemory, budget: u64) -> String {
    let total = memory.total_bytes;
    let parts = [
        ('█', "resident weights", memory.resident_bytes),
        ('▒', "ring", memory.ring_bytes),
        ('▓', "experts", memory.experts_bytes),
        ('▚', "KV", memory.kv_bytes),
        (
            '░',
            "activations",
            memory.activations_bytes + memory.scratch_bytes,
        ),
        ('▞', "driver", memory.driver_bytes),
        ('·', "free", budget.saturating_sub(total)),
    ];
    let whole = total.max(budget).max(1) as f64;
    let (mut line, mut legend) = (String::new(), String::new());
    let (mut sum, mut drawn) = (0, 0);
    for (mark, name, bytes) in parts.into_iter().filter(|(_, _, bytes)| *bytes > 0) {
        sum += bytes;
        // Every part gets at least one column; later parts make up for the rounding.
        let until = ((sum as f64 / whole * BAR as f64).round() as usize).max(drawn + 1);
        line.extend(std::iter::repeat_n(mark, until - drawn));
        drawn = until;
        legend += &format!("  {mark} {name:<18} {:>10}\n", Size(bytes).to_string());
    }
    format!("  {line}\n{legend}")
}

/// Pieces of one segment together.
#[derive(Default)]
struct SegmentLine {
    segment: String,
    bytes: u64,
    resident: u64,
    streamed: u64,
    pieces: usize,
    ring_offsets: Vec<u64>,
    is_expert: bool,
}

fn by_segment(pieces: &[v1::PlanPiece]) -> Vec<SegmentLine> {
    let mut lines: Vec<SegmentLine> = Vec::new();
    for piece in pieces {
        if lines
            .last()
            .is_none_or(|line| line.segment != piece.segment)
        {
            lines.push(SegmentLine {
                segment: piece.segment.clone(),
                ..SegmentLine::default()
            });
        }
        let line = lines.last_mut().expect("the segment has a line");
        line.bytes += piece.bytes;
        line.pieces += 1;
        match piece.place() {
            PiecePlace::Ring => {
                line.streamed += piece.bytes;
                line.ring_offsets.push(piece.offset);
            }
            PiecePlace::Expert => line.is_expert = true,
            PiecePlace::Resident | PiecePlace::Unspecified => line.resident += piece.bytes,
        }
    }
    lines
}

/// Rows of the table of segments, without the middle ones of a long table.
fn segment_rows(lines: &[SegmentLine]) -> Vec<Vec<String>> {
    let size = |bytes: u64| match bytes {
        0 => "-".to_owned(),
        bytes => Size(bytes).to_string(),
    };
    let row = |line: &SegmentLine| {
        let offsets = line.ring_offsets.iter().take(4).map(u64::to_string);
        let offsets: Vec<String> = offsets.collect();
        let more = if line.ring_offsets.len() > 4 {
            " …"
        } else {
            ""
        };
        let streamed = match line.is_expert {
            true => "when chosen".to_owned(),
            false => size(line.streamed),
        };
        vec![
            line.segment.clone(),
            size(line.bytes),
            size(line.resident),
            streamed,
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

fn piece_row(piece: &v1::PlanPiece) -> Vec<String> {
    let (place, offset) = match piece.place() {
        PiecePlace::Ring => ("ring", piece.offset.to_string()),
        PiecePlace::Expert => ("when chosen", String::new()),
        PiecePlace::Resident | PiecePlace::Unspecified => ("resident", piece.offset.to_string()),
    };
    let after = piece.after.map_or(String::new(), |after| after.to_string());
    let bytes = Size(piece.bytes).to_string();
    vec![piece.name.clone(), bytes, place.to_owned(), offset, after]
}

fn piece_json(piece: &v1::PlanPiece) -> Value {
    let mut value = json!({ "name": piece.name, "bytes": piece.bytes });
    match piece.place() {
        PiecePlace::Ring => {
            value["place"] = json!("ring");
            value["offset"] = json!(piece.offset);
            value["after"] = json!(piece.after);
        }
        PiecePlace::Expert => value["place"] = json!("when chosen"),
        PiecePlace::Resident | PiecePlace::Unspecified => {
            value["place"] = json!("resident");
            value["offset"] = json!(piece.offset);
        }
    }
    value
}
