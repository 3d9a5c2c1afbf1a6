//! `djinn lens`

use std::collections::{BTreeMap, BTreeSet};

use djinn_engine::{Engine, Positions, Probe, Request, SessionId, Tensor};
use djinn_model::{Model, Site};
use serde_json::{Value, json};

use super::{grid, prompt, remote, run_out, start, watch::Watch};
use crate::{
    args::LensArgs,
    bundled,
    failure::{Failure, say, say_json},
};

/// What would be said behind every block.
pub fn lens(args: &LensArgs) -> Result<(), Failure> {
    if args.server.server.is_some() {
        return remote::lens::lens(args);
    }
    let model = bundled::open(args.model.model.as_deref())?;
    let tokens = prompt::tokens(&model, &args.prompt)?;
    let request = request(&model, &tokens, args.top)?;
    let settled = args.model.settled()?;
    let (mut engine, ids) = start(&settled, model, vec![request], &mut Watch::default())?;
    look(&mut engine, ids[0], tokens)?.tell(args)
}

/// The grid of some tokens in an engine that has room for them, as text.
pub(super) fn of_tokens(engine: &mut Engine, tokens: &[u32]) -> Result<String, Failure> {
    let request = request(engine.model(), tokens, 1)?;
    let id = engine.open(request)?;
    Ok(look(engine, id, tokens.to_vec())?.text())
}

/// What is read behind every block.
pub(super) fn capture(top: usize) -> String {
    format!("blocks.*.hook_resid_post|lens{top}")
}

/// A token, and how likely it is.
struct Said {
    token: u32,
    probability: f64,
}

/// A session that reads the likeliest tokens behind every block, and nothing else.
fn request(model: &Model, tokens: &[u32], top: usize) -> Result<Request, Failure> {
    let capture = capture(top);
    Ok(Request {
        tokens: tokens.to_vec(),
        probe: Probe::new(&model.program, &[capture], Positions::All, &[])?,
        ..Request::default()
    })
}

/// The likeliest tokens by block and position; the session is over then.
fn look(engine: &mut Engine, id: SessionId, tokens: Vec<u32>) -> Result<Grid, Failure> {
    let ran = run_out(engine);
    let transcript = engine.close(id).expect("it is open");
    ran?;
    let model = engine.model();
    let seen = transcript.captured.tensors();
    let mut grid = Grid::new(&model.name, tokens, &seen)?;
    let all = grid.tokens();
    grid.names = all.map(|token| (token, name(model, token))).collect();
    Ok(grid)
}

/// What would be said behind every block, wherever it was read.
pub(super) struct Grid {
    model: String,
    read: Vec<u32>,
    /// By block and position.
    said: Vec<Vec<Vec<Said>>>,
    /// How tokens are written.
    pub(super) names: BTreeMap<u32, String>,
}

impl Grid {
    /// From what was read behind every block; tokens have no names yet.
    pub(super) fn new(
        model: &str,
        read: Vec<u32>,
        seen: &BTreeMap<String, Tensor>,
    ) -> Result<Self, Failure> {
        let row = |block: usize| {
            let seen = seen.get(&Site::ResidPost(block).to_string());
            let seen = seen.filter(|seen| seen.shape.len() == 3);
            let seen = seen.ok_or_else(|| format!("block {block} was not read"))?;
            let width = seen.shape[1] * seen.shape[2];
            Ok(seen.data.chunks_exact(width).map(said).collect())
        };
        let said: Result<_, String> = (0..seen.len()).map(row).collect();
        Ok(Grid {
            model: model.to_owned(),
            read,
            said: said?,
            names: BTreeMap::new(),
        })
    }

    /// Every token of it, read or said.
    pub(super) fn tokens(&self) -> impl Iterator<Item = u32> + use<> {
        let said = self.said.iter().flatten().flatten().map(|said| said.token);
        let all: BTreeSet<u32> = self.read.iter().copied().chain(said).collect();
        all.into_iter()
    }

    fn name(&self, token: u32) -> &str {
        self.names.get(&token).map_or("", String::as_str)
    }

    /// Draws and says what was asked for.
    pub(super) fn tell(&self, args: &LensArgs) -> Result<(), Failure> {
        if let Some(path) = &args.svg {
            let written = std::fs::write(path, self.svg());
            written.map_err(|error| Failure::Message(format!("{}: {error}", path.display())))?;
            eprintln!("drawn to {}", path.display());
        }
        match args.json {
            true => say_json(&self.json()),
            false => say(&self.text()),
        }
    }

    fn svg(&self) -> String {
        let cells = self.said.iter().rev().map(|row| {
            let cell = |top: &Vec<Said>| {
                let name = self.name(top[0].token).to_owned();
                (name, top[0].probability)
            };
            row.iter().map(cell).collect::<Vec<_>>()
        });
        let rows = (0..self.said.len()).rev().map(|block| block.to_string());
        let read = self.read.iter().map(|&token| self.name(token).to_owned());
        grid::svg(
            &read.collect::<Vec<_>>(),
            &rows.collect::<Vec<_>>(),
            &cells.collect::<Vec<_>>(),
        )
    }

    pub(super) fn text(&self) -> String {
        let row = |(block, row): (usize, &Vec<Vec<Said>>)| {
            let block = std::iter::once(block.to_string());
            let cells = row.iter().map(|top| {
                let percent = (100.0 * top[0].probability).round();
                format!("{} {percent:.0}", self.name(top[0].token).trim())
            });
            block.chain(cells).collect()
        };
        let rows: Vec<Vec<String>> = self.said.iter().enumerate().rev().map(row).collect();
        let read = self.read.iter().map(|&token| self.name(token).trim());
        let header: Vec<&str> = std::iter::once("block").chain(read).collect();
        grid::text(&header, &rows)
    }

    fn json(&self) -> Value {
        let cell = |top: &Vec<Said>| -> Vec<Value> {
            let said = |said: &Said| {
                json!({
                    "token": said.token, "text": self.name(said.token),
                    "probability": said.probability,
                })
            };
            top.iter().map(said).collect()
        };
        let rows: BTreeMap<String, Vec<Vec<Value>>> = self
            .said
            .iter()
            .enumerate()
            .map(|(block, row)| {
                let hook = Site::ResidPost(block).to_string();
                (hook, row.iter().map(cell).collect())
            })
            .collect();
        json!({ "model": self.model, "input_ids": self.read, "lens": rows })
    }
}

/// The tokens of a position, first the likeliest.
fn said(row: &[f32]) -> Vec<Said> {
    let (tokens, probabilities) = row.split_at(row.len() / 2);
    let pairs = tokens.iter().zip(probabilities);
    let said = |(token, probability): (&f32, &f32)| Said {
        token: *token as u32,
        probability: f64::from(*probability),
    };
    pairs.map(said).collect()
}

/// A token as people read it.
pub(super) fn name(model: &Model, token: u32) -> String {
    let text = model.tokenizer.as_ref().and_then(|text| text.token(token));
    readable(&text.unwrap_or_else(|| token.to_string()))
}

/// A token's text on one line, with its space.
pub(super) fn readable(text: &str) -> String {
    text.replace(['\u{2581}', '\u{120}'], " ")
        .replace(['\u{10a}', '\n'], "⏎")
}

pub(super) fn names(model: &Model, tokens: &[u32]) -> Vec<String> {
    tokens.iter().map(|&token| name(model, token)).collect()
}
