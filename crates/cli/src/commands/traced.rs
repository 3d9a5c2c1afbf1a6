//! What a trace came to, wherever it ran: as a table, as JSON, as a file.

use std::collections::BTreeMap;

use djinn_engine::{Tensor, write_tensors};
use serde_json::{Value, json};

use super::watch::Watch;
use crate::{
    args::TraceArgs,
    failure::{Failure, say, say_json},
    style::{self, id_list},
};

/// A prompt that was run, and what was at the hooks.
pub struct Traced {
    /// The model's name.
    pub model: String,
    /// Its hooks, in order of the pass.
    pub order: Vec<String>,
    /// What was there.
    pub tensors: BTreeMap<String, Tensor>,
    pub prompt: Vec<u32>,
    pub generated: Vec<u32>,
    /// What was generated, where there are words for it.
    pub text: Option<String>,
    pub finish: Option<String>,
}

impl Traced {
    /// Writes and says what was asked for.
    pub fn tell(&self, args: &TraceArgs, watch: &Watch) -> Result<(), Failure> {
        if let Some(out) = &args.out {
            write_tensors(out, &self.tensors, &self.id_lists(args.generate))?;
            eprintln!(
                "{} tensors written to {}",
                self.tensors.len(),
                out.display()
            );
        }
        self.warn_of_broken_numbers();
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

    /// Says where numbers first stopped being numbers.
    fn warn_of_broken_numbers(&self) {
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

    /// Captured tensors in order of the pass, not of their names.
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
                let d = digest(tensor);
                let numbers = [d.norm, d.mean, f64::from(d.least), f64::from(d.most)];
                [name.clone(), format!("{:?}", tensor.shape)]
                    .into_iter()
                    .chain(numbers.map(|x| format!("{x:.4}")))
                    .collect()
            })
            .collect();
        let header = ["hook", "shape", "norm", "mean", "least", "most"];
        style::table(&header, &rows) + &self.tokens()
    }

    /// What was read and what was generated.
    fn tokens(&self) -> String {
        let (prompt, generated) = (&self.prompt, &self.generated);
        let mut out = format!("{} tokens read: {}\n", prompt.len(), id_list(prompt));
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
                let d = digest(tensor);
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
