//! `djinn steer`

use std::{collections::BTreeMap, path::Path};

use djinn_engine::{EditSpec, Positions, Probe, Request, Tensor, Transcript};
use djinn_model::{Model, Site};
use djinn_vectors::{Format, Steering};
use serde_json::json;

use super::{
    edits::local_edits,
    engine::{finish, run_out, start},
    prompt,
};
use crate::{
    args::{SteerArgs, SteerMakeArgs, SteerMeasureArgs, SteerShowArgs, SteerWhat},
    bundled,
    failure::{Failure, say, say_json},
    style::table,
};

/// Makes, shows and measures steering vectors.
pub fn steer(args: &SteerArgs) -> Result<(), Failure> {
    match &args.what {
        SteerWhat::Make(args) => make(args),
        SteerWhat::Show(args) => show(args),
        SteerWhat::Measure(args) => measure(args),
    }
}

fn make(args: &SteerMakeArgs) -> Result<(), Failure> {
    Format::for_path(&args.out)?;
    let model = bundled::open(args.model.model.as_deref())?;
    let blocks = model.program.dims.blocks;
    let layers = match &args.layer[..] {
        [] => vec![blocks / 2],
        some => some.to_vec(),
    };
    if let Some(layer) = layers.iter().find(|layer| **layer >= blocks) {
        let message = format!(
            "--layer {layer}: {} has blocks 0 to {}",
            model.name,
            blocks - 1
        );
        return Err(Failure::Message(message));
    }
    let sets = [prompts(&args.positive)?, prompts(&args.negative)?];
    let hooks: Vec<String> = layers
        .iter()
        .map(|&l| Site::ResidPost(l).to_string())
        .collect();
    let last = Positions::Ranges(vec![(-1, 0)]);
    let mut requests = Vec::new();
    for text in sets.iter().flatten() {
        requests.push(Request {
            tokens: encode(&model, text)?,
            probe: Probe::new(&model.program, &hooks, last.clone(), &[])?,
            ..Request::default()
        });
    }
    let name = model.name.clone();
    let settled = args.model.settled()?;
    let (mut engine, ids) = start(&settled, model, requests)?;
    run_out(&mut engine)?;
    let mut rows = Vec::with_capacity(ids.len());
    for id in ids {
        rows.push(finish(&mut engine, id)?.captured.tensors());
    }
    let negative = rows.split_off(sets[0].len());
    let by_block = |rows: &[BTreeMap<String, Tensor>]| -> djinn_vectors::VectorRows {
        let of = |(&layer, hook): (&usize, &String)| {
            (
                layer,
                rows.iter().map(|row| row[hook].data.clone()).collect(),
            )
        };
        layers.iter().zip(&hooks).map(of).collect()
    };
    let vector = Steering::from_means(&name, &by_block(&rows), &by_block(&negative))?;
    vector.write(&args.out)?;
    let (more, less) = (sets[0].len(), sets[1].len());
    say(&format!(
        "{}: {more} prompts less {less}\n{}",
        args.out.display(),
        to_table(&vector)
    ))
}

/// Prompts as given: each a prompt, or a file of them.
fn prompts(given: &[String]) -> Result<Vec<String>, Failure> {
    let mut all = Vec::new();
    for text in given {
        if !Path::new(text).is_file() {
            let looks_like = Path::new(text)
                .extension()
                .is_some_and(|end| end.len() <= 4);
            if looks_like && !text.contains(' ') {
                return Err(Failure::Message(format!("{text}: there is no such file")));
            }
            all.push(text.clone());
            continue;
        }
        let read = std::fs::read_to_string(text);
        let read = read.map_err(|error| Failure::Message(format!("{text}: {error}")))?;
        let lines = read.lines().map(str::trim).filter(|line| !line.is_empty());
        let before = all.len();
        all.extend(lines.map(str::to_owned));
        if all.len() == before {
            return Err(Failure::Message(format!(
                "{text}: there is no prompt in it"
            )));
        }
    }
    Ok(all)
}

fn encode(model: &Model, text: &str) -> Result<Vec<u32>, Failure> {
    let tokenizer = model.tokenizer.as_ref();
    let tokenizer = tokenizer
        .ok_or_else(|| Failure::Message(format!("{} has no tokenizer.json", model.name)))?;
    Ok(tokenizer.encode(text)?)
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
    let model = bundled::open(args.model.model.as_deref())?;
    let tokens = prompt::local_tokens(&model, &prompt::read(&args.prompt)?)?;
    let edits = local_edits(&model, &args.changes)?;
    if edits.is_empty() {
        let message = "nothing is changed: give --edit or --steer";
        return Err(Failure::Message(message.into()));
    }
    let request = |edits: &[EditSpec]| -> Result<Request, Failure> {
        Ok(Request {
            tokens: tokens.clone(),
            max_tokens: args.generate,
            probe: Probe::new(&model.program, &["logits"], Positions::Prompt, edits)?,
            ..Request::default()
        })
    };
    let requests = vec![request(&[])?, request(&edits)?];
    let settled = args.model.settled()?;
    let (mut engine, ids) = start(&settled, model, requests)?;
    run_out(&mut engine)?;
    let [plain, changed] = [ids[0], ids[1]].map(|id| finish(&mut engine, id));
    let (plain, changed) = (plain?, changed?);
    let logits = |of: &Transcript| of.captured.tensors().remove("logits");
    let (Some(before), Some(after)) = (logits(&plain), logits(&changed)) else {
        return Err(Failure::Message("no logits were read".into()));
    };
    let share = share(&before.data, &after.data);
    let differs = |(a, b): &(&u32, &u32)| a != b;
    let pairs = plain.generated.iter().zip(&changed.generated);
    let other =
        pairs.filter(differs).count() + plain.generated.len().abs_diff(changed.generated.len());
    let text = |of: &Transcript| {
        let text = engine.model().tokenizer.as_ref();
        text.and_then(|text| text.decode(&of.generated, true).ok())
            .unwrap_or_default()
    };
    if args.json {
        return say_json(&json!({
            "model": engine.model().name, "share_of_logit_norm": share,
            "tokens": plain.generated.len(), "tokens_changed": other,
            "plain": { "output_ids": plain.generated, "text": text(&plain) },
            "changed": { "output_ids": changed.generated, "text": text(&changed) },
        }));
    }
    say(&format!(
        "logits of the prompt change by {:.4} % of their norm\n\
         {other} of {} generated tokens differ\n\
         plain:   {}\nchanged: {}\n",
        100.0 * share,
        plain.generated.len(),
        text(&plain).trim(),
        text(&changed).trim(),
    ))
}

/// `‖after − before‖ / ‖before‖`
fn share(before: &[f32], after: &[f32]) -> f64 {
    let square = |x: f64| x * x;
    let pairs = before.iter().zip(after);
    let off: f64 = pairs
        .map(|(&b, &a)| square(f64::from(a) - f64::from(b)))
        .sum();
    let all: f64 = before.iter().map(|&b| square(f64::from(b))).sum();
    (off / all).sqrt()
}
