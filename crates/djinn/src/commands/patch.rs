//! `djinn patch`

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use djinn_engine::{
    Blueprint, Change, EditSpec, Engine, Operand, Part, Positions, Probe, Request, SessionId,
    Settings, Tensor, Until,
};
use djinn_model::{Model, Site, program::Program};
use serde_json::json;

use super::{grid, load, watch::Watch};
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
    // A session for each position that goes from block to block, and one for each that is
    // changed at the block at hand.
    let one = Settings::for_sessions(&model.program, 1, positions, args.model.rows.max(positions))?;
    let sessions = 2 * positions + 1;
    let settings = Settings {
        sessions,
        open: sessions,
        rows: args.model.rows.max(sessions).max(positions),
        pages: (sessions + positions) * one.pages,
        logit_rows: args.model.rows.max(sessions).max(positions),
        operand_width: model.program.dims.d_model,
        ..one
    };
    let blueprint = Blueprint::draw(&model, settled.backend(), settings, settled.memory)?;
    let mut engine = load(&settled, model, blueprint, &mut Watch::default())?;
    let mut patching = Patching {
        engine: &mut engine,
        clean: BTreeMap::new(),
        texts,
    };
    let clean = patching.run_clean()?;
    let corrupt = patching.one(patching.request(&[], &[])?)?;
    let start = Instant::now();
    let branched = patching.by_branches()?;
    let branched_s = start.elapsed().as_secs_f64();
    let compared = match args.compare {
        true => Some(patching.compute_each(&branched)?),
        false => None,
    };
    let texts = patching.texts;
    let score = |logits: &[f32]| f64::from(logits[texts.answer]) - f64::from(logits[texts.instead]);
    let (best, worst) = (score(&clean), score(&corrupt));
    if best.total_cmp(&worst).is_eq() || !(best - worst).is_finite() {
        return Err(Failure::Message(format!(
            "clean and corrupt answer alike ({best:+.3}): there is nothing to bring back"
        )));
    }
    let effect = |logits: &Vec<f32>| (score(logits) - worst) / (best - worst);
    let effects: Vec<Vec<f64>> = branched
        .iter()
        .map(|row| row.iter().map(effect).collect())
        .collect();
    let report = json!({
        "model": engine.model().name, "clean": score(&clean), "corrupt": score(&corrupt),
        "blocks": effects.len(), "positions": positions, "effect": effects,
        "seconds": branched_s,
        "compared": compared.as_ref().map(|compared| json!({
            "equal": compared.equal, "one_by_one_s": compared.one_by_one.as_secs_f64(),
            "times": compared.one_by_one.as_secs_f64() / branched_s,
            "together_s": compared.together.as_secs_f64(),
            "times_together": compared.together.as_secs_f64() / branched_s,
        })),
    });
    if args.json {
        say_json(&report)?;
    } else {
        let mut out = to_text(&texts.names, &effects);
        out += &format!(
            "\nclean {best:+.3}, corrupt {worst:+.3}; {} patches in {}\n",
            effects.len() * positions,
            seconds(branched_s)
        );
        if let Some(compared) = &compared {
            let [alone, together] =
                [compared.one_by_one, compared.together].map(|t| t.as_secs_f64());
            out += &format!(
                "from nothing, one by one: {} ({:.1} times as long); together: {} ({:.1} times); \
                 {}\n",
                seconds(alone),
                alone / branched_s,
                seconds(together),
                together / branched_s,
                if compared.equal {
                    "the same logits"
                } else {
                    "OTHER logits"
                },
            );
        }
        say(&out)?;
    }
    match compared.is_some_and(|compared| !compared.equal) {
        true => Err(Failure::Message(
            "patches from nothing have other logits".into(),
        )),
        false => Ok(()),
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
    fn read(model: &Model, args: &PatchArgs) -> Result<Self, Failure> {
        let text = model
            .text
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
        let name = |&token: &u32| {
            let spelled = text.token(token).unwrap_or_else(|| token.to_string());
            spelled
                .replace(['\u{2581}', '\u{120}'], " ")
                .trim()
                .to_owned()
        };
        Ok(Texts {
            answer: first("--answer", &args.answer)? as usize,
            instead: first("--instead", &args.instead)? as usize,
            names: corrupt.iter().map(name).collect(),
            clean,
            corrupt,
        })
    }
}

/// Patches from nothing, beside branches.
struct Compared {
    equal: bool,
    one_by_one: Duration,
    together: Duration,
}

struct Patching<'a> {
    engine: &'a mut Engine,
    /// What is behind each block of the clean prompt.
    clean: BTreeMap<usize, Tensor>,
    texts: Texts,
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

    /// Runs the clean prompt, keeps what is behind every block, and says its logits.
    fn run_clean(&mut self) -> Result<Vec<f32>, Failure> {
        let captures = ["blocks.*.hook_resid_post", "logits"];
        let probe = Probe::new(self.program(), &captures, Positions::All, &[])?;
        let id = self.engine.open(Request {
            tokens: self.texts.clean.clone(),
            probe,
            ..Request::default()
        })?;
        self.run_out()?;
        let dims = self.program().dims;
        let transcript = self.engine.close(id).expect("it is open");
        let mut read = transcript.captured.tensors();
        for block in 0..dims.blocks {
            let residual = read.remove(&Site::ResidPost(block).to_string());
            self.clean
                .insert(block, residual.expect("every block was read"));
        }
        let logits = read.remove("logits").expect("they were read").data;
        Ok(logits[logits.len() - dims.vocab..].to_vec())
    }

    /// Puts what the clean prompt has behind a block at a position in place.
    fn edit(&self, block: usize, position: usize) -> EditSpec {
        let width = self.program().dims.d_model;
        let row = &self.clean[&block].data[position * width..(position + 1) * width];
        let at = position as i64;
        EditSpec {
            hook: Site::ResidPost(block).to_string(),
            part: Part::default(),
            change: Change::Replace(Operand::Tensor(Arc::new(Tensor {
                shape: vec![width],
                data: row.to_vec(),
            }))),
            positions: Positions::Ranges(vec![(at, at + 1)]),
        }
    }

    fn run_out(&mut self) -> Result<(), Failure> {
        while !self.engine.is_idle() {
            for output in self.engine.step()? {
                if let Some(failure) = output.failure {
                    return Err(Failure::Message(failure));
                }
            }
        }
        Ok(())
    }

    fn one(&mut self, request: Request) -> Result<Vec<f32>, Failure> {
        let id = self.engine.open(request)?;
        self.run_out()?;
        Ok(self.logits(id))
    }

    /// Closes a session, and says its logits.
    fn logits(&mut self, id: SessionId) -> Vec<f32> {
        let transcript = self.engine.close(id).expect("it is open");
        let logits = transcript.captured.tensors().remove("logits");
        logits.map_or_else(Vec::new, |tensor| tensor.data)
    }

    /// Logits by block and position. For each position one session goes from block to block
    /// with that position and those behind it; at each block another branches off, is
    /// changed, and goes to the end.
    fn by_branches(&mut self) -> Result<Vec<Vec<Vec<f32>>>, Failure> {
        let mut walkers = Vec::new();
        for position in 0..self.texts.corrupt.len() {
            let first = format!("{}@{position}", Site::ResidPost(0));
            let request = self.request(&[], &[first])?;
            walkers.push(self.engine.open(request)?);
        }
        self.run_out()?;
        let mut grid = Vec::new();
        for block in 0..self.blocks() {
            let mut branches = Vec::with_capacity(walkers.len());
            for (position, &walker) in walkers.iter().enumerate() {
                let edit = [self.edit(block, position)];
                let branch = self.engine.branch(walker, 1)?[0];
                self.engine.go_on_from(branch, &edit, Until::Breakpoint)?;
                if block + 1 < self.blocks() {
                    let next = Until::Site(Site::ResidPost(block + 1));
                    self.engine.go_on_from(walker, &[], next)?;
                }
                branches.push(branch);
            }
            self.run_out()?;
            grid.push(
                branches
                    .into_iter()
                    .map(|branch| self.logits(branch))
                    .collect(),
            );
        }
        for walker in walkers {
            self.engine.close(walker);
        }
        Ok(grid)
    }

    /// The same from nothing: one after the other, and as many together as there is room for.
    fn compute_each(&mut self, expect: &[Vec<Vec<f32>>]) -> Result<Compared, Failure> {
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
            self.run_out()?;
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

fn to_text(names: &[String], effects: &[Vec<f64>]) -> String {
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
        .chain(names.iter().map(String::as_str))
        .collect();
    grid::text(&header, &rows)
}
