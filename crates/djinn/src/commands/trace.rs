//! `djinn trace`

use std::collections::BTreeMap;

use djinn_engine::{
    Engine, Positions, Probe, Request, Tensor, Transcript, check_writable, write_tensors,
};
use djinn_model::Model;
use serde_json::{Value, json};

use super::{finish, prompt, start, steer::changes, watch::Watch};
use crate::{
    args::TraceArgs,
    bundled,
    failure::{Failure, say, say_json},
    style::{self, id_list},
};

/// Runs a prompt and keeps what was at the hooks.
pub fn trace(args: TraceArgs) -> Result<(), Failure> {
    let model = bundled::open(args.model.model.as_deref())?;
    let request = request(&model, &args)?;
    if let Some(out) = &args.out {
        check_writable(out)?;
    }
    let mut watch = Watch::new(&args.watch)?;
    let (mut engine, ids) = start(&args.model.settled()?, model, vec![request], &mut watch)?;
    let ran = run_out(&mut engine, &mut watch);
    watch.write_timeline(&engine)?;
    if ran.is_err() {
        eprint!("{}", watch.table());
    }
    ran?;
    let transcript = finish(&mut engine, ids[0])?;
    let tensors = transcript.captured.tensors();
    if let Some(out) = &args.out {
        write_tensors(out, &tensors, &id_lists(&transcript, args.generate))?;
        eprintln!("{} tensors written to {}", tensors.len(), out.display());
    }
    warn_of_broken_numbers(&engine, &tensors);
    if args.json {
        let mut report = to_json(&engine, &tensors, &transcript);
        watch.add_to(&mut report);
        return say_json(&report);
    }
    eprint!("{}", watch.table());
    match &args.out {
        None => say(&to_table(&engine, &tensors, &transcript)),
        Some(_) => say(&tokens_of(&engine, &transcript)),
    }
}

fn run_out(engine: &mut Engine, watch: &mut Watch) -> Result<(), Failure> {
    while !engine.is_idle() {
        engine.step()?;
        watch.passed(engine);
    }
    Ok(())
}

/// Says where numbers first stopped being numbers.
fn warn_of_broken_numbers(engine: &Engine, tensors: &BTreeMap<String, Tensor>) {
    let broken = |tensor: &Tensor| tensor.data.iter().any(|x| !x.is_finite());
    if let Some((name, _)) = in_order(engine, tensors)
        .into_iter()
        .find(|(_, tensor)| broken(tensor))
    {
        eprintln!("note: {name} holds values that are not finite");
    }
}

fn request(model: &Model, args: &TraceArgs) -> Result<Request, Failure> {
    let tokens = prompt::tokens(model, &args.prompt)?;
    let edits = changes(model, &args.changes)?;
    let captures: Vec<String> = args.capture.iter().flat_map(|text| apart(text)).collect();
    let probe = Probe::new(&model.program, &captures, Positions::Prompt, &edits)?;
    Ok(Request {
        tokens,
        max_tokens: args.generate,
        probe,
        ..Request::default()
    })
}

/// Captures that commas keep apart: those within brackets and lists of positions do not.
fn apart(text: &str) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for part in text.split(',') {
        let goes_on = part.starts_with(|c: char| c.is_ascii_digit() || c == '-');
        match all.last_mut() {
            Some(last) if goes_on => *last = format!("{last},{part}"),
            _ => all.push(part.to_owned()),
        }
    }
    all
}

fn id_lists(transcript: &Transcript, generate: usize) -> BTreeMap<String, Vec<u32>> {
    let mut ids = BTreeMap::from([("input_ids".to_owned(), transcript.prompt.clone())]);
    if generate > 0 {
        ids.insert("output_ids".to_owned(), transcript.generated.clone());
    }
    ids
}

/// What a table says of a tensor.
struct Digest {
    norm: f64,
    mean: f64,
    least: f32,
    most: f32,
}

fn digest(tensor: &Tensor) -> Digest {
    let squares: f64 = tensor.data.iter().map(|&x| f64::from(x).powi(2)).sum();
    let sum: f64 = tensor.data.iter().map(|&x| f64::from(x)).sum();
    Digest {
        norm: squares.sqrt(),
        mean: sum / tensor.data.len().max(1) as f64,
        least: tensor.data.iter().copied().fold(f32::INFINITY, f32::min),
        most: tensor
            .data
            .iter()
            .copied()
            .fold(f32::NEG_INFINITY, f32::max),
    }
}

/// Captured tensors in order of the pass, not of their names.
fn in_order<'t>(
    engine: &Engine,
    tensors: &'t BTreeMap<String, Tensor>,
) -> Vec<(String, &'t Tensor)> {
    let names = engine
        .model()
        .program
        .hooks()
        .into_iter()
        .map(|s| s.to_string());
    names
        .filter_map(|name| tensors.get(&name).map(|tensor| (name, tensor)))
        .collect()
}

fn to_table(
    engine: &Engine,
    tensors: &BTreeMap<String, Tensor>,
    transcript: &Transcript,
) -> String {
    let rows: Vec<Vec<String>> = in_order(engine, tensors)
        .into_iter()
        .map(|(name, tensor)| {
            let d = digest(tensor);
            let numbers = [d.norm, d.mean, f64::from(d.least), f64::from(d.most)];
            [name, format!("{:?}", tensor.shape)]
                .into_iter()
                .chain(numbers.map(|x| format!("{x:.4}")))
                .collect()
        })
        .collect();
    let header = ["hook", "shape", "norm", "mean", "least", "most"];
    style::table(&header, &rows) + &tokens_of(engine, transcript)
}

/// What was read and what was generated.
fn tokens_of(engine: &Engine, transcript: &Transcript) -> String {
    let (prompt, generated) = (&transcript.prompt, &transcript.generated);
    let mut out = format!("{} tokens read: {}\n", prompt.len(), id_list(prompt));
    if let (false, Some(finish)) = (generated.is_empty(), transcript.finish) {
        out += &format!(
            "{} generated ({finish}): {}\n",
            generated.len(),
            id_list(generated)
        );
        let text = engine.model().text.as_ref();
        if let Some(Ok(text)) = text.map(|text| text.decode(generated, true)) {
            out += &format!("{text}\n");
        }
    }
    out
}

fn to_json(engine: &Engine, tensors: &BTreeMap<String, Tensor>, transcript: &Transcript) -> Value {
    let hooks: Vec<Value> = in_order(engine, tensors)
        .into_iter()
        .map(|(name, tensor)| {
            let d = digest(tensor);
            json!({
                "hook": name, "shape": tensor.shape,
                "norm": d.norm, "mean": d.mean, "least": d.least, "most": d.most,
            })
        })
        .collect();
    json!({
        "model": engine.model().name,
        "input_ids": transcript.prompt,
        "output_ids": transcript.generated,
        "finish": transcript.finish.map(|f| f.to_string()),
        "hooks": hooks,
    })
}

#[cfg(test)]
mod tests {
    use super::apart;

    #[test]
    fn commas_keep_captures_apart() {
        let check = |text: &str, expect: &[&str]| assert_eq!(apart(text), expect, "{text}");
        check("a,b", &["a", "b"]);
        check("a[0,2..4]@1,-1|mean,b@3", &["a[0,2..4]@1,-1|mean", "b@3"]);
    }
}
