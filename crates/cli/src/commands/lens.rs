//! `djinn lens`

use std::collections::{BTreeMap, BTreeSet};

use djinn_client::v1;
use djinn_engine::{Positions, Tensor};
use djinn_model::Site;
use serde_json::{Value, json};

use super::{
    connection::{LocalEngine, on_model},
    grid, prompt,
    run::check_finished,
    sizing::PromptSize,
    tensors::tensor,
};
use crate::{
    args::{ChangeArgs, LensArgs},
    failure::{Failure, say, say_json},
};

/// Prints the most likely next tokens after every block and position.
pub fn lens(args: &LensArgs) -> Result<(), Failure> {
    let prompt = prompt::read(&args.prompt)?;
    let size = PromptSize {
        prompt: prompt.clone(),
        max_tokens: Some(0),
        captures: vec![capture(args.top)],
        positions: Positions::All,
        changes: ChangeArgs::default(),
        stop: Vec::new(),
        sampling: None,
        rows: args.model.rows,
    };
    let engine = LocalEngine::new(size.settings());
    let grid = on_model(&args.server, &args.model, engine, async |connection| {
        let tokens = prompt::tokens(&connection.model, &prompt).await?;
        let info = connection.model_info().await?;
        LensGrid::of_tokens(&connection.model, &info, tokens, args.top).await
    })?;
    grid.print(args)
}

/// Capture of the most likely tokens after every block.
pub fn capture(top: usize) -> String {
    format!("blocks.*.hook_resid_post|lens{top}")
}

/// A token and its probability.
struct TokenPrediction {
    token: u32,
    probability: f64,
}

/// Most likely next tokens after every block and position.
pub struct LensGrid {
    model: String,
    read: Vec<u32>,
    /// Predictions by block and position, the most likely first.
    predicted: Vec<Vec<Vec<TokenPrediction>>>,
    /// Texts of tokens.
    names: BTreeMap<u32, String>,
}

impl LensGrid {
    /// Runs tokens through a model and reads the lens after every block.
    pub async fn of_tokens(
        model: &djinn_client::ModelHandle,
        info: &v1::Model,
        tokens: Vec<u32>,
        top: usize,
    ) -> Result<Self, Failure> {
        let session = model.session().tokens(tokens.clone()).max_tokens(0);
        let turn = session.capture(capture(top)).open().await?;
        let turn = turn.collect().await?;
        check_finished(&turn)?;
        let captured = turn.captured.into_iter();
        let captured = captured.map(|(name, read)| (name, tensor(read))).collect();
        let mut grid = LensGrid::new(&info.name, tokens, &captured)?;
        let all: Vec<u32> = grid.tokens().collect();
        let names = names(model, info.has_text, &all).await?;
        grid.names = all.into_iter().zip(names).collect();
        Ok(grid)
    }

    /// Grid from the tensors captured after every block. Tokens have no texts yet.
    fn new(
        model: &str,
        read: Vec<u32>,
        captured: &BTreeMap<String, Tensor>,
    ) -> Result<Self, Failure> {
        let row = |block: usize| {
            let tensor = captured.get(&Site::ResidPost(block).to_string());
            let tensor = tensor.filter(|tensor| tensor.shape.len() == 3);
            let tensor = tensor.ok_or_else(|| format!("block {block} was not captured"))?;
            let width = tensor.shape[1] * tensor.shape[2];
            Ok(tensor.data.chunks_exact(width).map(predictions).collect())
        };
        let predicted: Result<_, String> = (0..captured.len()).map(row).collect();
        Ok(LensGrid {
            model: model.to_owned(),
            read,
            predicted: predicted?,
            names: BTreeMap::new(),
        })
    }

    /// Every token of the prompt and of the predictions.
    fn tokens(&self) -> impl Iterator<Item = u32> + use<> {
        let predicted = self.predicted.iter().flatten().flatten();
        let predicted = predicted.map(|prediction| prediction.token);
        let all: BTreeSet<u32> = self.read.iter().copied().chain(predicted).collect();
        all.into_iter()
    }

    fn name(&self, token: u32) -> &str {
        self.names.get(&token).map_or("", String::as_str)
    }

    /// Draws and prints the grid.
    fn print(&self, args: &LensArgs) -> Result<(), Failure> {
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
        let cells = self.predicted.iter().rev().map(|row| {
            let cell = |top: &Vec<TokenPrediction>| {
                let name = self.name(top[0].token).to_owned();
                (name, top[0].probability)
            };
            row.iter().map(cell).collect::<Vec<_>>()
        });
        let rows = (0..self.predicted.len())
            .rev()
            .map(|block| block.to_string());
        let read = self.read.iter().map(|&token| self.name(token).to_owned());
        grid::svg(
            &read.collect::<Vec<_>>(),
            &rows.collect::<Vec<_>>(),
            &cells.collect::<Vec<_>>(),
        )
    }

    /// Grid as text.
    pub fn text(&self) -> String {
        let row = |(block, row): (usize, &Vec<Vec<TokenPrediction>>)| {
            let block = std::iter::once(block.to_string());
            let cells = row.iter().map(|top| {
                let percent = (100.0 * top[0].probability).round();
                format!("{} {percent:.0}", self.name(top[0].token).trim())
            });
            block.chain(cells).collect()
        };
        let rows: Vec<Vec<String>> = self.predicted.iter().enumerate().rev().map(row).collect();
        let read = self.read.iter().map(|&token| self.name(token).trim());
        let header: Vec<&str> = std::iter::once("block").chain(read).collect();
        grid::text(&header, &rows)
    }

    fn json(&self) -> Value {
        let cell = |top: &Vec<TokenPrediction>| -> Vec<Value> {
            let cell = |prediction: &TokenPrediction| {
                json!({
                    "token": prediction.token, "text": self.name(prediction.token),
                    "probability": prediction.probability,
                })
            };
            top.iter().map(cell).collect()
        };
        let rows: BTreeMap<String, Vec<Vec<Value>>> = self
            .predicted
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

/// Predictions of a position, the most likely first.
fn predictions(row: &[f32]) -> Vec<TokenPrediction> {
    let (tokens, probabilities) = row.split_at(row.len() / 2);
    let pairs = tokens.iter().zip(probabilities);
    let one = |(token, probability): (&f32, &f32)| TokenPrediction {
        token: *token as u32,
        probability: f64::from(*probability),
    };
    pairs.map(one).collect()
}

/// Texts of tokens on one line each, or their ids without a tokenizer.
pub async fn names(
    model: &djinn_client::ModelHandle,
    has_text: bool,
    tokens: &[u32],
) -> Result<Vec<String>, Failure> {
    if !has_text {
        return Ok(tokens.iter().map(u32::to_string).collect());
    }
    let pieces = model.pieces(tokens).await?;
    Ok(pieces.iter().map(|piece| readable(piece)).collect())
}

/// Text of a token on one line, with its space.
pub fn readable(text: &str) -> String {
    text.replace(['\u{2581}', '\u{120}'], " ")
        .replace(['\u{10a}', '\n'], "⏎")
}

/// Texts of tokens by a model of this process.
pub fn local_names(model: &djinn_model::Model, tokens: &[u32]) -> Vec<String> {
    let name = |&token: &u32| {
        let text = model.tokenizer.as_ref().and_then(|text| text.token(token));
        readable(&text.unwrap_or_else(|| token.to_string()))
    };
    tokens.iter().map(name).collect()
}
