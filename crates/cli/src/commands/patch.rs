//! `djinn patch`

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use djinn_engine::{
    Blueprint, Change, EditSpec, Engine, Operand, Positions, Probe, ProbeLimits, Request, RunUntil,
    SessionId, Settings, Tensor,
};
use djinn_model::{Model, Site, program::Program};
use serde_json::{Value, json};

use super::{
    engine::{load, run_out},
    grid, lens,
};
use crate::{
    args::PatchArgs,
    bundled,
    failure::{Failure, say, say_json},
    style::seconds,
};

/// Activations of one prompt in another.
pub fn patch(args: &PatchArgs) -> Result<(), Failure> {
    let model = bundled::open(args.model.model.as_deref())?;
    let texts = Texts::read(&model, args)?;
    let settled = args.model.settled()?;
    let positions = texts.corrupt.len();
    // One session that all others branch from, and one for each position of a block.
    let one = Settings::for_sessions(&model.program, 1, positions, args.model.rows.max(positions))?;
    let sessions = positions + 1;
    let settings = Settings {
        sessions,
        open: sessions,
        rows: args.model.rows.max(sessions).max(positions),
        pages: (sessions + 1) * one.pages,
        logit_rows: args.model.rows.max(sessions).max(positions),
        probe_limits: ProbeLimits {
            operand_width: model.program.dims.d_model,
            ..ProbeLimits::default()
        },
        ..one
    };
    let blueprint = Blueprint::draw(&model, settled.backend(), settings, settled.memory)?;
    let mut engine = load(&settled, model, blueprint)?;
    let mut patching = Patching {
        engine: &mut engine,
        clean: Seen::default(),
        texts,
    };
    patching.clean = patching.look(patching.texts.clean.clone())?;
    let start = Instant::now();
    let corrupt = patching.look(patching.texts.corrupt.clone())?;
    let best = patching.texts.score(&patching.clean.logits);
    let worst = patching.texts.score(&corrupt.logits);
    if best.total_cmp(&worst).is_eq() || !(best - worst).is_finite() {
        return Err(Failure::Message(format!(
            "clean and corrupt answer alike ({best:+.3}): there is nothing to bring back"
        )));
    }
    let branched = patching.by_branches(&corrupt)?;
    let branched_s = start.elapsed().as_secs_f64();
    let compared = match args.compare {
        true => Some(patching.compute_each(&branched)?),
        false => None,
    };
    let texts = patching.texts;
    let effect = |logits: &Vec<f32>| (texts.score(logits) - worst) / (best - worst);
    let rows = branched.iter().map(|row| row.iter().map(effect).collect());
    let found = Found {
        effects: rows.collect(),
        best,
        worst,
        seconds: branched_s,
        compared,
    };
    match args.json {
        true => say_json(&found.to_json(&engine.model().name))?,
        false => say(&found.to_text(&texts.names))?,
    }
    match found.compared.is_some_and(|compared| !compared.equal) {
        true => Err(Failure::Message(
            "patches from nothing have other logits".into(),
        )),
        false => Ok(()),
    }
}

/// What came of it all.
struct Found {
    /// How much of the clean answer comes back, by block and position.
    effects: Vec<Vec<f64>>,
    best: f64,
    worst: f64,
    seconds: f64,
    compared: Option<Compared>,
}

impl Found {
    fn to_json(&self, model: &str) -> Value {
        let compared = |compared: &Compared| {
            let [alone, together] =
                [compared.one_by_one, compared.together].map(|time| time.as_secs_f64());
            json!({
                "equal": compared.equal, "one_by_one_s": alone, "times": alone / self.seconds,
                "together_s": together, "times_together": together / self.seconds,
            })
        };
        json!({
            "model": model, "clean": self.best, "corrupt": self.worst,
            "blocks": self.effects.len(), "positions": self.effects.first().map_or(0, Vec::len),
            "effect": self.effects, "seconds": self.seconds,
            "compared": self.compared.as_ref().map(compared),
        })
    }

    fn to_text(&self, names: &[String]) -> String {
        let mut out = to_table(names, &self.effects);
        out += &format!(
            "\nclean {:+.3}, corrupt {:+.3}; {} patches in {}\n",
            self.best,
            self.worst,
            self.effects.iter().map(Vec::len).sum::<usize>(),
            seconds(self.seconds)
        );
        if let Some(compared) = &self.compared {
            let [alone, together] =
                [compared.one_by_one, compared.together].map(|time| time.as_secs_f64());
            let which = if compared.equal { "the same" } else { "OTHER" };
            out += &format!(
                "from nothing, one by one: {} ({:.1} times as long); together: {} ({:.1} times); \
                 {which} logits\n",
                seconds(alone),
                alone / self.seconds,
                seconds(together),
                together / self.seconds,
            );
        }
        out
    }
}

/// What is asked, in tokens.
struct Texts {
    clean: Vec<u32>,
    corrupt: Vec<u32>,
    answer: usize,
    instead: usize,
    names: Vec<String>,
}

impl Texts {
    /// By how much the answer is likelier than the other.
    fn score(&self, logits: &[f32]) -> f64 {
        f64::from(logits[self.answer]) - f64::from(logits[self.instead])
    }

    fn read(model: &Model, args: &PatchArgs) -> Result<Self, Failure> {
        let text = model
            .tokenizer
            .as_ref()
            .ok_or_else(|| Failure::Message(format!("{} has no tokenizer.json", model.name)))?;
        let (clean, corrupt) = (text.encode(&args.clean)?, text.encode(&args.corrupt)?);
        if clean.len() != corrupt.len() {
            return Err(Failure::Message(format!(
                "--clean has {} tokens and --corrupt {}: they must have as many, position for \
                 position",
                clean.len(),
                corrupt.len()
            )));
        }
        let first = |flag: &str, said: &str| {
            let tokens = text.encode_plain(said)?;
            let first = tokens.first().copied();
            first.ok_or_else(|| Failure::Message(format!("{flag} is empty")))
        };
        Ok(Texts {
            answer: first("--answer", &args.answer)? as usize,
            instead: first("--instead", &args.instead)? as usize,
            names: lens::local_names(model, &corrupt),
            clean,
            corrupt,
        })
    }
}

/// Logits by block and position.
type Grid = Vec<Vec<Vec<f32>>>;

/// Patches from nothing, beside branches.
struct Compared {
    equal: bool,
    one_by_one: Duration,
    together: Duration,
}

struct Patching<'a> {
    engine: &'a mut Engine,
    clean: Seen,
    texts: Texts,
}

/// What is behind each block of a prompt, and the logits after its last token.
#[derive(Default)]
struct Seen {
    residuals: Vec<Vec<f32>>,
    logits: Vec<f32>,
}

impl Patching<'_> {
    fn program(&self) -> &Program {
        &self.engine.model().program
    }

    fn blocks(&self) -> usize {
        self.program().dims.blocks
    }

    /// The corrupt prompt, of which the logits after its last token are read.
    fn request(&self, edits: &[EditSpec], breaks: &[String]) -> Result<Request, Failure> {
        let last = Positions::Ranges(vec![(-1, 0)]);
        let probe = Probe::new(self.program(), &["logits"], last, edits)?;
        let breaks: Result<Vec<_>, _> = breaks.iter().map(|text| text.parse()).collect();
        let breaks =
            breaks.map_err(|e: djinn_engine::ParseError| Failure::Message(e.to_string()))?;
        Ok(Request {
            tokens: self.texts.corrupt.clone(),
            probe: probe.with_breaks(self.program(), &breaks)?,
            ..Request::default()
        })
    }

    /// Runs a prompt and keeps what is behind every block.
    fn look(&mut self, tokens: Vec<u32>) -> Result<Seen, Failure> {
        let captures = ["blocks.*.hook_resid_post", "logits@-1"];
        let probe = Probe::new(self.program(), &captures, Positions::All, &[])?;
        let id = self.engine.open(Request {
            tokens,
            probe,
            ..Request::default()
        })?;
        run_out(self.engine)?;
        let transcript = self.engine.close(id).expect("it is open");
        let mut read = transcript.captured.tensors();
        let mut take = |hook: String| read.remove(&hook).map_or_else(Vec::new, |read| read.data);
        let blocks = 0..self.blocks();
        Ok(Seen {
            residuals: blocks
                .map(|block| take(Site::ResidPost(block).to_string()))
                .collect(),
            logits: take(Site::Logits.to_string()),
        })
    }

    /// Puts what the clean prompt has behind a block at a position in place.
    fn edit(&self, block: usize, position: usize) -> EditSpec {
        let width = self.program().dims.d_model;
        let row = &self.clean.residuals[block][position * width..(position + 1) * width];
        let at = position as i64;
        let tensor = Tensor {
            shape: vec![width],
            data: row.to_vec(),
        };
        let change = Change::Replace(Operand::Tensor(Arc::new(tensor)));
        EditSpec {
            positions: Positions::Ranges(vec![(at, at + 1)]),
            ..EditSpec::at(Site::ResidPost(block), change)
        }
    }

    fn one(&mut self, request: Request) -> Result<Vec<f32>, Failure> {
        let id = self.engine.open(request)?;
        run_out(self.engine)?;
        Ok(self.logits(id))
    }

    /// Closes a session, and says its logits.
    fn logits(&mut self, id: SessionId) -> Vec<f32> {
        let transcript = self.engine.close(id).expect("it is open");
        let logits = transcript.captured.tensors().remove("logits");
        logits.map_or_else(Vec::new, |tensor| tensor.data)
    }

    /// The logits of every patch. One session stands behind the last block; for each patch another goes back from there to
    /// the block and the position, is changed, and goes to the end. A patch that puts in place
    /// what is there already changes nothing.
    fn by_branches(&mut self, corrupt: &Seen) -> Result<Grid, Failure> {
        let last = format!("{},step=0", Site::ResidPost(self.blocks() - 1));
        let base = self.engine.open(self.request(&[], &[last])?)?;
        run_out(self.engine)?;
        let width = self.program().dims.d_model;
        let mut grid = Vec::new();
        for (block, residual) in corrupt.residuals.iter().enumerate() {
            let mut row = vec![corrupt.logits.clone(); self.texts.corrupt.len()];
            let mut branches = Vec::new();
            for position in 0..row.len() {
                let here = position * width..(position + 1) * width;
                if residual[here.clone()] == self.clean.residuals[block][here.clone()] {
                    continue;
                }
                let site = Site::ResidPost(block);
                let rest = &residual[here.start..];
                let branch = self
                    .engine
                    .any_session(base)?
                    .branch_back(site, position, rest)?;
                self.engine.any_session(branch)?.set_breakpoints(&[])?;
                let edit = [self.edit(block, position)];
                self.engine
                    .any_session(branch)?
                    .resume_with(&edit, RunUntil::Breakpoint)?;
                branches.push((position, branch));
            }
            run_out(self.engine)?;
            for (position, branch) in branches {
                row[position] = self.logits(branch);
            }
            grid.push(row);
        }
        self.engine.close(base);
        Ok(grid)
    }

    /// The same from nothing: one after the other, and as many together as there is room for.
    fn compute_each(&mut self, expect: &Grid) -> Result<Compared, Failure> {
        let positions = self.texts.corrupt.len();
        let all: Vec<(usize, usize)> = (0..self.blocks())
            .flat_map(|b| (0..positions).map(move |p| (b, p)))
            .collect();
        let mut equal = true;
        let start = Instant::now();
        for &(block, position) in &all {
            let request = self.request(&[self.edit(block, position)], &[])?;
            equal &= self.one(request)? == expect[block][position];
        }
        let one_by_one = start.elapsed();
        let start = Instant::now();
        for some in all.chunks(positions) {
            let mut ids = Vec::with_capacity(some.len());
            for &(block, position) in some {
                let request = self.request(&[self.edit(block, position)], &[])?;
                ids.push(self.engine.open(request)?);
            }
            run_out(self.engine)?;
            for (&(block, position), id) in some.iter().zip(ids) {
                equal &= self.logits(id) == expect[block][position];
            }
        }
        let together = start.elapsed();
        Ok(Compared {
            equal,
            one_by_one,
            together,
        })
    }
}

fn to_table(names: &[String], effects: &[Vec<f64>]) -> String {
    let rows: Vec<Vec<String>> = effects
        .iter()
        .enumerate()
        .rev()
        .map(|(block, row)| {
            let cells = row.iter().map(|effect| format!("{effect:.2}"));
            std::iter::once(block.to_string()).chain(cells).collect()
        })
        .collect();
    let header: Vec<&str> = std::iter::once("block")
        .chain(names.iter().map(|name| name.trim()))
        .collect();
    grid::text(&header, &rows)
}
