//! Checkpoint of a synthetic model with a tokenizer as large as a real one.

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

/// Entries of the vocabulary of SmolLM2-135M.
const VOCABULARY: usize = 49_152;

/// Writes a model of 269 MB with the dimensions of SmolLM2-135M, a tokenizer and a chat template.
pub fn write_smollm(folder: &Path) -> PathBuf {
    let model = folder.join("smollm");
    super::ok(&["shape", "smollm2-135m", "--out", model.to_str().unwrap()]);
    let bundled = super::root().join("models/stories-7m");
    let read = |name: &str| -> Value {
        serde_json::from_slice(&fs::read(bundled.join(name)).unwrap()).unwrap()
    };
    let mut tokenizer = read("tokenizer.json");
    enlarge(&mut tokenizer["model"]);
    fs::write(model.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let mut config = read("tokenizer_config.json");
    config["chat_template"] =
        json!("{% for m in messages %}{{ m.role }} said {{ m.content }}. {% endfor %}Then");
    fs::write(model.join("tokenizer_config.json"), config.to_string()).unwrap();
    model
}

/// Adds pairs of tokens to a byte-level BPE vocabulary until it is as large as the model's.
fn enlarge(model: &mut Value) {
    let words = model["vocab"].as_object().unwrap();
    let mut words: Vec<(String, u64)> = words
        .iter()
        .map(|(word, id)| (word.clone(), id.as_u64().unwrap()))
        .collect();
    words.sort_by_key(|(_, id)| *id);
    let words: Vec<String> = words.into_iter().map(|(word, _)| word).collect();
    let mut known: HashSet<String> = words.iter().cloned().collect();
    // The first entries are special tokens and bytes.
    let starts = words.iter().filter(|word| word.starts_with('Ġ'));
    let pairs = starts.flat_map(|start| words[300..].iter().map(move |end| (start, end)));
    let mut id = words.len();
    for (start, end) in pairs.filter(|(_, end)| !end.starts_with('Ġ')) {
        let word = format!("{start}{end}");
        if id < VOCABULARY && known.insert(word.clone()) {
            model["vocab"][&word] = json!(id);
            let merges = model["merges"].as_array_mut().unwrap();
            merges.push(json!([start, end]));
            id += 1;
        }
    }
    assert_eq!(id, VOCABULARY);
}
