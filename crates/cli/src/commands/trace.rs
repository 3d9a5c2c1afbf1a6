//! `djinn trace`

use std::collections::BTreeMap;

use djinn_analysis::{check_finished, greedy, tensor};
use djinn_engine::{Positions, Tensor, check_writable, write_tensors};
use djinn_terminal::{Failure, id_list, say, say_json};
use djinn_types::text;
use serde_json::{Value, json};

use super::{
    connection::{Connection, LocalEngine, on_model},
    edits::edits,
    prompt,
    sizing::{PromptSize, one_prompt},
    watch::Watch,
};
use crate::args::{PromptArgs, TraceArgs};

/// Runs a prompt and prints what was captured at hooks.
pub fn trace(args: &TraceArgs) -> Result<(), Failure> {
    if let Some(out) = &args.out {
        check_writable(out)?;
    }
    let prompt = prompt::read(&args.prompt)?;
    let size = PromptSize {
        max_tokens: Some(args.generate),
        captures: captures(args),
        positions: Positions::Prompt,
        changes: args.changes.clone(),
        ..PromptSize::new(prompt.clone())
    };
    let engine = LocalEngine {
        measure_link: args.watch.stats,
        ..LocalEngine::new(one_prompt(size, args.model.rows))
    };
    let mut watch = Watch::new(&args.watch)?;
    on_model(&args.server, &args.model, engine, async |connection| {
        watch.begin(connection).await?;
        let traced = run(connection, args, &prompt).await;
        watch.end(connection).await?;
        if traced.is_err() {
            eprint!("{}", watch.table());
        }
        traced?.print(args, &watch)
    })
}

fn captures(args: &TraceArgs) -> Vec<String> {
    args.capture
        .iter()
        .flat_map(|text| split_captures(text))
        .collect()
}

async fn run(
    connection: &Connection,
    args: &TraceArgs,
    prompt: &PromptArgs,
) -> Result<TracedPrompt, Failure> {
    let model = &connection.model;
    let prompt = prompt::tokens(model, prompt).await?;
    let mut session = model
        .session()
        .tokens(prompt.clone())
        .max_tokens(args.generate as u64)
        .sampling(greedy())
        .ignore_eos()
        .capture_positions("prompt");
    for capture in captures(args) {
        session = session.capture(capture);
    }
    for edit in edits(model, &args.changes).await? {
        session = session.edit(edit);
    }
    let turn = session.open().await?.collect().await?;
    check_finished(&turn)?;
    let info = connection.model_info().await?;
    let hooks = model.hooks("*").await?;
    let finish = turn.finished().map(|end| end.why.clone());
    Ok(TracedPrompt {
        model: info.name,
        order: hooks.into_iter().map(|hook| hook.name).collect(),
        tensors: turn
            .captured
            .into_iter()
            .map(|(name, captured)| (name, tensor(captured)))
            .collect(),
        text: info.has_text.then_some(turn.text),
        finish,
        prompt,
        generated: turn.tokens,
    })
}

/// Splits captures at commas, except those within brackets and lists of positions.
fn split_captures(text: &str) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for part in text.split(',') {
        let continues = part.starts_with(|c: char| c.is_ascii_digit() || c == '-');
        match all.last_mut() {
            Some(last) if continues => *last = format!("{last},{part}"),
            _ => all.push(part.to_owned()),
        }
    }
    all
}

/// A prompt that has run, and the tensors captured at hooks.
struct TracedPrompt {
    model: String,
    /// Hooks of the model in the order of a pass.
    order: Vec<String>,
    /// Captured tensors by hook.
    tensors: BTreeMap<String, Tensor>,
    prompt: Vec<u32>,
    generated: Vec<u32>,
    /// Generated text, if the model has a tokenizer.
    text: Option<String>,
    finish: Option<String>,
}

impl TracedPrompt {
    /// Writes and prints the captured tensors.
    fn print(&self, args: &TraceArgs, watch: &Watch) -> Result<(), Failure> {
        if let Some(out) = &args.out {
            write_tensors(out, &self.tensors, &self.id_lists(args.generate))?;
            eprintln!(
                "{} tensors written to {}",
                self.tensors.len(),
                out.display()
            );
        }
        self.warn_of_non_finite();
        if args.json {
            let mut report = self.json();
            watch.add_to(&mut report);
            return say_json(&report);
        }
        eprint!("{}", watch.table());
        match &args.out {
            None => say(&self.table()),
            Some(_) => say(&self.tokens()),
        }
    }

    /// Names the first hook with values that are not finite.
    fn warn_of_non_finite(&self) {
        let broken = |tensor: &Tensor| tensor.data.iter().any(|x| !x.is_finite());
        let mut all = self.in_order().into_iter();
        if let Some((name, _)) = all.find(|(_, tensor)| broken(tensor)) {
            eprintln!("note: {name} holds values that are not finite");
        }
    }

    fn id_lists(&self, generate: usize) -> BTreeMap<String, Vec<u32>> {
        let mut ids = BTreeMap::from([("input_ids".to_owned(), self.prompt.clone())]);
        if generate > 0 {
            ids.insert("output_ids".to_owned(), self.generated.clone());
        }
        ids
    }

    /// Captured tensors in the order of a pass.
    fn in_order(&self) -> Vec<(&String, &Tensor)> {
        let names = self.order.iter();
        names
            .filter_map(|name| self.tensors.get(name).map(|tensor| (name, tensor)))
            .collect()
    }

    fn table(&self) -> String {
        let rows: Vec<Vec<String>> = self
            .in_order()
            .into_iter()
            .map(|(name, tensor)| {
                let d = tensor_stats(tensor);
                let numbers = [d.norm, d.mean, f64::from(d.least), f64::from(d.most)];
                [name.clone(), format!("{:?}", tensor.shape)]
                    .into_iter()
                    .chain(numbers.map(|x| format!("{x:.4}")))
                    .collect()
            })
            .collect();
        let header = ["hook", "shape", "norm", "mean", "min", "max"];
        text::table(&header, &rows) + &self.tokens()
    }

    /// Prompt tokens and generated tokens as text.
    fn tokens(&self) -> String {
        let (prompt, generated) = (&self.prompt, &self.generated);
        let mut out = format!("{} prompt tokens: {}\n", prompt.len(), id_list(prompt));
        if let (false, Some(finish)) = (generated.is_empty(), &self.finish) {
            out += &format!(
                "{} generated ({finish}): {}\n",
                generated.len(),
                id_list(generated)
            );
            if let Some(text) = &self.text {
                out += &format!("{text}\n");
            }
        }
        out
    }

    fn json(&self) -> Value {
        let hooks: Vec<Value> = self
            .in_order()
            .into_iter()
            .map(|(name, tensor)| {
                let d = tensor_stats(tensor);
                json!({
                    "hook": name, "shape": tensor.shape,
                    "norm": d.norm, "mean": d.mean, "least": d.least, "most": d.most,
                })
            })
            .collect();
        json!({
            "model": self.model,
            "input_ids": self.prompt,
            "output_ids": self.generated,
            "finish": self.finish,
            "hooks": hooks,
        })
    }
}

/// Statistics of a tensor.
struct TensorStats {
    norm: f64,
    mean: f64,
    least: f32,
    most: f32,
}

fn tensor_stats(tensor: &Tensor) -> TensorStats {
    let squares: f64 = tensor.data.iter().map(|&x| f64::from(x).powi(2)).sum();
    let sum: f64 = tensor.data.iter().map(|&x| f64::from(x)).sum();
    TensorStats {
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

#[cfg(test)]
mod tests {
    use super::split_captures;

    #[test]
    fn commas_keep_captures_apart() {
        let check =
            |text: &str, expect: &[&str]| assert_eq!(split_captures(text), expect, "{text}");
        check("a,b", &["a", "b"]);
        check("a[0,2..4]@1,-1|mean,b@3", &["a[0,2..4]@1,-1|mean", "b@3"]);
    }
}
