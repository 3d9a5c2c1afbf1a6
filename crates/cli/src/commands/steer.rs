//! `djinn steer`

use std::{collections::BTreeMap, path::Path};

use djinn_analysis::{EditEffect, measure_edits, steering_vector};
use djinn_engine::Positions;
use djinn_model::Site;
use djinn_terminal::{Failure, say, say_json};
use djinn_types::text::table;
use djinn_vectors::{Format, Steering};
use serde_json::{Value, json};

use super::{
    connection::{LocalEngine, on_model},
    edits::edits,
    prompt,
    sizing::{PromptSize, prompts},
};
use crate::args::{
    ChangeArgs, PromptArgs, SteerAction, SteerArgs, SteerMakeArgs, SteerMeasureArgs, SteerShowArgs,
};

/// Makes, shows and measures steering vectors.
pub fn steer(args: &SteerArgs) -> Result<(), Failure> {
    match &args.action {
        SteerAction::Make(args) => make(args),
        SteerAction::Show(args) => show(args),
        SteerAction::Measure(args) => measure(args),
    }
}

fn make(args: &SteerMakeArgs) -> Result<(), Failure> {
    Format::for_path(&args.out)?;
    let positive = read_prompts(&args.positive)?;
    let negative = read_prompts(&args.negative)?;
    let sizes = positive.iter().chain(&negative).map(|text| PromptSize {
        max_tokens: Some(0),
        captures: vec!["blocks.*.hook_resid_post".to_owned()],
        positions: Positions::ranges(vec![(-1, 0)]),
        ..PromptSize::new(PromptArgs::text(text))
    });
    let (layers, layout) = (
        args.layer.clone(),
        prompts(sizes.collect(), args.model.rows),
    );
    // A wrong --layer is refused before the model is loaded.
    let engine = LocalEngine::new(Box::new(move |model| {
        blocks(&layers, &model.name, model.program.dims.blocks)?;
        layout(model)
    }));
    let vector = on_model(&args.server, &args.model, engine, async |connection| {
        let info = connection.model_info().await?;
        let count = info.dims.unwrap_or_default().blocks as usize;
        let blocks = blocks(&args.layer, &info.name, count)?;
        let sets = [&positive[..], &negative];
        Ok(steering_vector(&connection.model, &info.name, &blocks, sets).await?)
    })?;
    vector.write(&args.out)?;
    say(&format!(
        "{}: mean of {} prompts minus mean of {}\n{}",
        args.out.display(),
        positive.len(),
        negative.len(),
        to_table(&vector)
    ))
}

/// Blocks that `--layer` names, or the middle one, of a model with `count` blocks.
fn blocks(layers: &[usize], model: &str, count: usize) -> Result<Vec<usize>, Failure> {
    match layers.iter().find(|layer| **layer >= count) {
        Some(layer) => Err(Failure::Message(format!(
            "--layer {layer}: {model} has blocks 0 to {}",
            count - 1
        ))),
        None if layers.is_empty() => Ok(vec![count / 2]),
        None => Ok(layers.to_vec()),
    }
}

/// Prompts of flags: each value is a prompt, or a file with one prompt per line.
fn read_prompts(values: &[String]) -> Result<Vec<String>, Failure> {
    let mut all = Vec::new();
    for value in values {
        let path = Path::new(value);
        if !path.is_file() {
            let has_extension = path.extension().is_some_and(|end| end.len() <= 4);
            if has_extension && !value.contains(' ') {
                return Err(Failure::Message(format!(
                    "{value}: the file does not exist"
                )));
            }
            all.push(value.clone());
            continue;
        }
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|error| Failure::Message(format!("{value}: {error}")))?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let before = all.len();
        all.extend(lines.map(str::to_owned));
        if all.len() == before {
            return Err(Failure::Message(format!("{value}: the file has no prompt")));
        }
    }
    Ok(all)
}

fn to_table(vector: &Steering) -> String {
    let row = |(&block, direction): (&usize, &Vec<f32>)| {
        let mut order: Vec<usize> = (0..direction.len()).collect();
        order.sort_by(|&a, &b| direction[b].abs().total_cmp(&direction[a].abs()));
        let largest = order
            .iter()
            .take(3)
            .map(|&i| format!("{i}: {:+.3}", direction[i]));
        vec![
            Site::ResidPost(block).to_string(),
            direction.len().to_string(),
            format!("{:.4}", vector.norm(block).unwrap_or(0.0)),
            largest.collect::<Vec<_>>().join(", "),
        ]
    };
    let rows: Vec<_> = vector.directions().iter().map(row).collect();
    table(&["hook", "width", "norm", "largest"], &rows)
}

fn show(args: &SteerShowArgs) -> Result<(), Failure> {
    let vector = Steering::read(&args.file)?;
    if let Some(out) = &args.out {
        vector.write(out)?;
        eprintln!("written to {}", out.display());
    }
    if args.json {
        let norms: BTreeMap<String, Option<f64>> = vector
            .directions()
            .keys()
            .map(|&block| (Site::ResidPost(block).to_string(), vector.norm(block)))
            .collect();
        return say_json(&json!({
            "model": vector.model(), "method": vector.method().to_string(),
            "width": vector.width(), "norms": norms,
        }));
    }
    say(&format!(
        "made for {}, by {}\n{}",
        vector.model(),
        vector.method(),
        to_table(&vector)
    ))
}

fn measure(args: &SteerMeasureArgs) -> Result<(), Failure> {
    if args.changes.edit.is_empty() && args.changes.steer.is_empty() {
        return Err(Failure::Message(
            "no edits to measure: give --edit or --steer".into(),
        ));
    }
    let prompt = prompt::read(&args.prompt)?;
    let plain = PromptSize {
        max_tokens: Some(args.generate),
        captures: vec![Site::Logits.to_string()],
        positions: Positions::Prompt,
        ..PromptSize::new(prompt.clone())
    };
    let changed = PromptSize {
        changes: ChangeArgs::clone(&args.changes),
        ..plain.clone()
    };
    let engine = LocalEngine::new(prompts(vec![plain, changed], args.model.rows));
    let (model, effect) = on_model(&args.server, &args.model, engine, async |connection| {
        let model = &connection.model;
        let tokens = prompt::tokens(model, &prompt).await?;
        let edits = edits(model, &args.changes).await?;
        let effect = measure_edits(model, tokens, edits, args.generate as u64).await?;
        Ok((connection.model_info().await?.name, effect))
    })?;
    match args.json {
        true => say_json(&effect_json(&model, &effect)),
        false => say(&effect_text(&effect)),
    }
}

fn effect_json(model: &str, effect: &EditEffect) -> Value {
    let EditEffect { plain, changed, .. } = effect;
    json!({
        "model": model, "share_of_logit_norm": effect.logit_share,
        "tokens": plain.tokens.len(), "tokens_changed": effect.tokens_changed,
        "plain": { "output_ids": plain.tokens, "text": plain.text },
        "changed": { "output_ids": changed.tokens, "text": changed.text },
    })
}

fn effect_text(effect: &EditEffect) -> String {
    format!(
        "logits of the prompt change by {:.4} % of their norm\n\
         {} of {} generated tokens differ\n\
         plain:   {}\nchanged: {}\n",
        100.0 * effect.logit_share,
        effect.tokens_changed,
        effect.plain.tokens.len(),
        effect.plain.text.trim(),
        effect.changed.text.trim(),
    )
}
