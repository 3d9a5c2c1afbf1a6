//! Safetensors files of a checkpoint, and the index of its shards.

use std::path::Path;

use djinn_model::program::TensorId;
use djinn_model::safetensors::read_header;
use djinn_model::{CheckpointFolder, RawConfig, Weights, families};
use djinn_types::DType;

use crate::scratch;

/// Configuration of the smallest model, whose checkpoint has two kilobytes.
const CONFIG: &str = r#"{"architectures": ["LlamaForCausalLM"], "model_type": "llama",
    "hidden_size": 4, "intermediate_size": 4, "num_attention_heads": 2, "num_key_value_heads": 1,
    "num_hidden_layers": 1, "vocab_size": 4, "max_position_embeddings": 16,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": true}"#;

/// Reads an input as an index of shards if it is JSON, else as a file of tensors.
pub fn run(data: &[u8]) {
    let folder = scratch::folder();
    scratch::write(folder.path(), "config.json", CONFIG.as_bytes());
    if data.first() == Some(&b'{') {
        scratch::write(folder.path(), "model.safetensors.index.json", data);
        scratch::write(folder.path(), "a.safetensors", &shard());
    } else {
        check_header(data);
        scratch::write(folder.path(), "model.safetensors", data);
    }
    open(folder.path());
}

/// Returns a shard with one tensor.
fn shard() -> Vec<u8> {
    let header = r#"{"model.norm.weight":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}"#;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.bytes());
    bytes.extend([0; 16]);
    bytes
}

/// Checks that the tensors of an accepted header fill the file without overlap.
fn check_header(data: &[u8]) {
    let Ok(header) = read_header(Path::new("x.safetensors"), data, data.len() as u64) else {
        return;
    };
    let mut ranges: Vec<_> = header.values().map(|entry| entry.range.clone()).collect();
    ranges.sort_by_key(|range| (range.start, range.end));
    for pair in ranges.windows(2) {
        assert_eq!(pair[0].end, pair[1].start, "gap or overlap");
    }
    if let Some(last) = ranges.last() {
        assert_eq!(last.end, data.len() as u64, "bytes after the last tensor");
    }
}

/// Opens the folder and reads every tensor of an accepted checkpoint.
fn open(folder: &Path) {
    let Ok(checkpoint) = CheckpointFolder::open(folder) else {
        return;
    };
    let config: &RawConfig = checkpoint.config();
    let mut program = families::build(config, DType::F32).expect("the configuration is valid");
    let Ok(weights) = checkpoint.resolve(&mut program) else {
        return;
    };
    for (number, spec) in program.tensors.iter().enumerate() {
        let elements: usize = spec.shape.iter().product();
        let mut bytes = vec![0; elements * spec.dtype.bytes()];
        let tensor = TensorId(number);
        let read = weights.read_tensor(tensor, 0, &mut bytes);
        read.expect("an accepted tensor is complete");
        assert_eq!(weights.extent(tensor).bytes, bytes.len() as u64);
    }
}
