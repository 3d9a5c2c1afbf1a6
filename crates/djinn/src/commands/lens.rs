//! `djinn lens`

use std::collections::BTreeMap;

use djinn_engine::{Engine, Positions, Probe, Request, SessionId};
use djinn_model::{Model, Site};
use serde_json::{Value, json};

use super::{grid, prompt, run_out, start, watch::Watch};
use crate::{
    args::LensArgs,
    bundled,
    failure::{Failure, say, say_json},
};

/// What would be said behind every block.
pub fn lens(args: &LensArgs) -> Result<(), Failure> {
    let model = bundled::open(args.model.model.as_deref())?;
    let tokens = prompt::tokens(&model, &args.prompt)?;
    let request = request(&model, &tokens, args.top)?;
    let settled = args.model.settled()?;
    let (mut engine, ids) = start(&settled, model, vec![request], &mut Watch::default())?;
    let grid = look(&mut engine, ids[0])?;
    let read = names(engine.model(), &tokens);
    if let Some(path) = &args.svg {
        let cells = grid.iter().rev().map(|row| {
            let cell = |top: &Vec<Said>| (name(engine.model(), top[0].token), top[0].probability);
            row.iter().map(cell).collect::<Vec<_>>()
        });
        let rows: Vec<_> = (0..grid.len())
            .rev()
            .map(|block| block.to_string())
            .collect();
        let drawn = grid::svg(&read, &rows, &cells.collect::<Vec<_>>());
        let written = std::fs::write(path, drawn);
        written.map_err(|error| Failure::Message(format!("{}: {error}", path.display())))?;
        eprintln!("drawn to {}", path.display());
    }
    match args.json {
        true => say_json(&to_json(&engine, &tokens, &grid)),
        false => say(&to_text(engine.model(), &read, &grid)),
    }
}

/// The grid of some tokens in an engine that has room for them, as text.
pub(super) fn of_tokens(engine: &mut Engine, tokens: &[u32]) -> Result<String, Failure> {
    let request = request(engine.model(), tokens, 1)?;
    let id = engine.open(request)?;
    let grid = look(engine, id)?;
    Ok(to_text(
        engine.model(),
        &names(engine.model(), tokens),
        &grid,
    ))
}

/// A token, and how likely it is.
struct Said {
    token: u32,
    probability: f64,
}

/// A session that reads the likeliest tokens behind every block, and nothing else.
fn request(model: &Model, tokens: &[u32], top: usize) -> Result<Request, Failure> {
    let capture = format!("blocks.*.hook_resid_post|lens{top}");
    Ok(Request {
        tokens: tokens.to_vec(),
        probe: Probe::new(&model.program, &[capture], Positions::All, &[])?,
        ..Request::default()
    })
}

/// The likeliest tokens by block and position; the session is over then.
fn look(engine: &mut Engine, id: SessionId) -> Result<Vec<Vec<Vec<Said>>>, Failure> {
    let ran = run_out(engine);
    let transcript = engine.close(id).expect("it is open");
    ran?;
    let mut seen = transcript.captured.tensors();
    let blocks = 0..engine.model().program.dims.blocks;
    let grid = blocks.map(|block| {
        let seen = seen.remove(&Site::ResidPost(block).to_string());
        let seen = seen.expect("every block was read");
        let rows = seen.data.chunks_exact(seen.shape[1] * seen.shape[2]);
        rows.map(said).collect()
    });
    Ok(grid.collect())
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
    let text = model.text.as_ref().and_then(|text| text.token(token));
    let text = text.unwrap_or_else(|| token.to_string());
    text.replace(['\u{2581}', '\u{120}'], " ")
        .replace(['\u{10a}', '\n'], "⏎")
}

pub(super) fn names(model: &Model, tokens: &[u32]) -> Vec<String> {
    tokens.iter().map(|&token| name(model, token)).collect()
}

fn to_text(model: &Model, read: &[String], grid: &[Vec<Vec<Said>>]) -> String {
    let rows: Vec<Vec<String>> = grid
        .iter()
        .enumerate()
        .rev()
        .map(|(block, row)| {
            let block = std::iter::once(block.to_string());
            let cells = row.iter().map(|top| {
                let percent = (100.0 * top[0].probability).round();
                format!("{} {percent:.0}", name(model, top[0].token).trim())
            });
            block.chain(cells).collect()
        })
        .collect();
    let header: Vec<&str> = std::iter::once("block")
        .chain(read.iter().map(|t| t.trim()))
        .collect();
    grid::text(&header, &rows)
}

fn to_json(engine: &Engine, tokens: &[u32], grid: &[Vec<Vec<Said>>]) -> Value {
    let cell = |top: &Vec<Said>| -> Vec<Value> {
        let said = |said: &Said| {
            json!({
                "token": said.token, "text": name(engine.model(), said.token),
                "probability": said.probability,
            })
        };
        top.iter().map(said).collect()
    };
    let rows: BTreeMap<String, Vec<Vec<Value>>> = grid
        .iter()
        .enumerate()
        .map(|(block, row)| {
            let hook = Site::ResidPost(block).to_string();
            (hook, row.iter().map(cell).collect())
        })
        .collect();
    json!({ "model": engine.model().name, "input_ids": tokens, "lens": rows })
}
