//! `djinn lens`

use std::{collections::BTreeMap, sync::Arc};

use djinn_engine::{Change, EditSpec, Engine, Operand, Positions, Probe, Request, Tensor, Until};
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
    let requests = requests(&model, &tokens)?;
    let settled = args.model.settled()?;
    let (mut engine, ids) = start(&settled, model, requests, &mut Watch::default())?;
    // The others were for the layout: branches take their places.
    for &id in &ids[1..] {
        engine.close(id);
    }
    let grid = look(&mut engine, ids[0], tokens.len(), args.top)?;
    engine.close(ids[0]);
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
    let first = requests(engine.model(), tokens)?.remove(0);
    let id = engine.open(first)?;
    let next = engine.next_session();
    let grid = look(engine, id, tokens.len(), 1);
    // Whatever went wrong on the way leaves nothing behind.
    let others = (next.0..engine.next_session().0).map(djinn_engine::SessionId);
    for id in others.chain([id]) {
        engine.close(id);
    }
    Ok(to_text(
        engine.model(),
        &names(engine.model(), tokens),
        &grid?,
    ))
}

/// A token, and how likely it is.
struct Said {
    token: u32,
    probability: f64,
}

/// One session that stops behind the last block, and as many that go on from there as there
/// are blocks.
fn requests(model: &Model, tokens: &[u32]) -> Result<Vec<Request>, Failure> {
    let program = &model.program;
    let last = Site::ResidPost(program.dims.blocks - 1);
    let captures = ["blocks.*.hook_resid_post", "logits"];
    let nothing = Tensor {
        shape: vec![program.dims.d_model],
        data: vec![0.0; program.dims.d_model],
    };
    let edits = [replace(last, nothing)];
    let probe = Probe::new(program, &captures, Positions::All, &edits)?;
    let layout = Request {
        tokens: tokens.to_vec(),
        probe,
        ..Request::default()
    };
    let breaks = [last.to_string().parse().expect("a hook's name")];
    let probe = Probe::new(program, &captures, Positions::All, &[])?;
    let first = Request {
        probe: probe.with_breaks(program, &breaks)?,
        ..layout.clone()
    };
    // One more, since the first may have to copy what it shares with them.
    let others = std::iter::repeat_n(layout, program.dims.blocks + 1);
    Ok(std::iter::once(first).chain(others).collect())
}

/// Puts a residual in place of what is there.
fn replace(site: Site, residual: Tensor) -> EditSpec {
    EditSpec::at(site, Change::Replace(Operand::Tensor(Arc::new(residual))))
}

/// The likeliest tokens by block and position.
fn look(
    engine: &mut Engine,
    id: djinn_engine::SessionId,
    positions: usize,
    top: usize,
) -> Result<Vec<Vec<Vec<Said>>>, Failure> {
    let blocks = engine.model().program.dims.blocks;
    let dims = engine.model().program.dims;
    let last = Site::ResidPost(blocks - 1);
    run_out(engine)?;
    let rows = engine.paused(id).map_or(0, |at| at.rows);
    if rows < positions {
        return Err(Failure::Message(format!(
            "the prompt has {positions} tokens, and {} go through the head together: shorten it",
            engine.blueprint().rows()
        )));
    }
    let transcript = engine.transcript(id).expect("it is open");
    let mut residuals = transcript.captured.tensors();
    residuals.insert(last.to_string(), engine.activation(id)?);
    let branches = engine.branch(id, blocks)?;
    for (block, &branch) in branches.iter().enumerate() {
        let residual = residuals.remove(&Site::ResidPost(block).to_string());
        let edit = [replace(last, residual.expect("every block was read"))];
        engine.go_on_from(branch, &edit, Until::Breakpoint)?;
    }
    run_out(engine)?;
    let mut grid = Vec::with_capacity(blocks);
    for branch in branches {
        let transcript = engine.close(branch).expect("it is open");
        let logits = transcript.captured.tensors().remove("logits");
        let logits = logits.ok_or_else(|| Failure::Message("no logits were read".into()))?;
        grid.push(
            logits
                .data
                .chunks_exact(dims.vocab)
                .map(|row| likeliest(row, top))
                .collect(),
        );
    }
    Ok(grid)
}

/// The likeliest tokens, first the likeliest.
fn likeliest(logits: &[f32], top: usize) -> Vec<Said> {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weight = |logit: f32| f64::from(logit - most).exp();
    let sum: f64 = logits.iter().map(|&logit| weight(logit)).sum();
    let mut order: Vec<usize> = (0..logits.len()).collect();
    let top = top.min(order.len());
    order.select_nth_unstable_by(top - 1, |&a, &b| {
        logits[b].total_cmp(&logits[a]).then(a.cmp(&b))
    });
    order.truncate(top);
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    let said = |&token: &usize| Said {
        token: token as u32,
        probability: weight(logits[token]) / sum,
    };
    order.iter().map(said).collect()
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

#[cfg(test)]
mod tests {
    use super::likeliest;

    #[test]
    fn the_likeliest_come_first() {
        let said = likeliest(&[0.0, 2.0, -1.0, 2.0], 3);
        let tokens: Vec<u32> = said.iter().map(|said| said.token).collect();
        assert_eq!(tokens, [1, 3, 0]);
        let all = likeliest(&[0.0, 2.0, -1.0, 2.0], 9);
        let sum: f64 = all.iter().map(|said| said.probability).sum();
        assert!((sum - 1.0).abs() < 1e-12);
    }
}
