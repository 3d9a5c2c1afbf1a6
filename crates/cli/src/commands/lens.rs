//! `djinn lens`

use std::collections::BTreeMap;

use djinn_analysis::{Lens, TokenPrediction, lens_capture};
use djinn_engine::Positions;
use djinn_model::Site;
use djinn_terminal::{Failure, lens_svg, lens_text, say, say_json};
use serde_json::{Value, json};

use super::{
    connection::{LocalEngine, on_model},
    prompt,
    sizing::{PromptSize, one_prompt},
};
use crate::args::LensArgs;

/// Prints the most likely next tokens after every block and position.
pub fn lens(args: &LensArgs) -> Result<(), Failure> {
    let prompt = prompt::read(&args.prompt)?;
    let size = PromptSize {
        max_tokens: Some(0),
        captures: vec![lens_capture(args.top)],
        positions: Positions::All,
        ..PromptSize::new(prompt.clone())
    };
    let engine = LocalEngine::new(one_prompt(size, args.model.rows));
    let lens = on_model(&args.server, &args.model, engine, async |connection| {
        let tokens = prompt::tokens(&connection.model, &prompt).await?;
        let info = connection.model_info().await?;
        Ok(Lens::read(&connection.model, &info, tokens, args.top).await?)
    })?;
    if let Some(path) = &args.svg {
        let written = std::fs::write(path, lens_svg(&lens));
        written.map_err(|error| Failure::Message(format!("{}: {error}", path.display())))?;
        eprintln!("picture written to {}", path.display());
    }
    match args.json {
        true => say_json(&to_json(&lens)),
        false => say(&lens_text(&lens)),
    }
}

fn to_json(lens: &Lens) -> Value {
    let prediction = |prediction: &TokenPrediction| {
        json!({
            "token": prediction.token, "text": lens.text(prediction.token),
            "probability": prediction.probability,
        })
    };
    let position = |top: &Vec<TokenPrediction>| top.iter().map(prediction).collect::<Vec<_>>();
    let blocks: BTreeMap<String, Vec<Vec<Value>>> = lens
        .predictions
        .iter()
        .enumerate()
        .map(|(block, row)| {
            let hook = Site::ResidPost(block).to_string();
            (hook, row.iter().map(position).collect())
        })
        .collect();
    json!({ "model": lens.model, "input_ids": lens.prompt, "lens": blocks })
}
