//! Tests of untrusted files: any bytes give a model or an error, never a panic or an excessive
//! allocation.

mod common;

use std::path::Path;

use common::{GOLDEN, file, golden, safetensors};
use djinn_model::safetensors::read_header;
use djinn_model::{Model, RawConfig, Shape, families};
use djinn_types::DType;
use proptest::prelude::*;
use serde_json::{Value, json};

/// Returns a valid file.
fn sample() -> Vec<u8> {
    safetensors(&[
        ("model.norm.weight", "F32", &[4], 4),
        ("model.embed_tokens.weight", "BF16", &[3, 4], 2),
        ("empty", "I64", &[0, 7], 8),
    ])
}

/// Changes a few bytes, and sometimes truncates the file.
fn damaged(bytes: Vec<u8>) -> impl Strategy<Value = Vec<u8>> {
    let len = bytes.len();
    let edits = prop::collection::vec((0..len, any::<u8>()), 0..6);
    (edits, 0..=len).prop_map(move |(edits, cut)| {
        let mut bytes = bytes.clone();
        for (at, byte) in edits {
            bytes[at] = byte;
        }
        // Half of the files are not truncated.
        bytes.truncate(if cut % 2 == 0 { len } else { cut });
        bytes
    })
}

/// Checks that the tensors of an accepted header fill the file.
fn check_header(bytes: &[u8]) {
    let Ok(header) = read_header(Path::new("x.safetensors"), bytes, bytes.len() as u64) else {
        return;
    };
    let mut ranges: Vec<_> = header.values().map(|entry| entry.range.clone()).collect();
    ranges.sort_by_key(|range| (range.start, range.end));
    for pair in ranges.windows(2) {
        assert_eq!(pair[0].end, pair[1].start);
    }
    if let Some(last) = ranges.last() {
        assert_eq!(last.end, bytes.len() as u64);
    }
}

fn open_folder(config: &[u8], files: &[(&str, &[u8])]) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(dir.path().join("config.json"), config).expect("written");
    for (name, bytes) in files {
        std::fs::write(dir.path().join(name), bytes).expect("written");
    }
    if let Err(error) = Model::open(dir.path().to_str().expect("utf-8")) {
        let message = error.to_string();
        assert!(!message.is_empty() && !message.contains('\n'), "{message}");
    }
}

/// Unusual values of configuration keys.
fn unusual_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (0u64..70).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        "[a-z0-9_]{0,8}".prop_map(Value::from),
        Just(json!([])),
        Just(json!({"rope_type": "yarn", "factor": 1e-30, "beta_fast": 1e300})),
        Just(json!({"type": "llama3", "factor": 2, "low_freq_factor": 1, "high_freq_factor": 2})),
    ]
}

fn config_of(family: usize) -> Value {
    let path = golden(GOLDEN[family]).join("config.json");
    serde_json::from_slice(&std::fs::read(path).expect("a configuration")).expect("JSON")
}

/// Checks that an accepted configuration gives a consistent program.
fn check_config(text: &[u8]) {
    let Ok(config) = RawConfig::parse(Path::new("config.json"), text) else {
        return;
    };
    if let Ok(program) = families::build(&config, DType::F16) {
        let dims = &program.dims;
        assert_eq!(program.blocks.len(), dims.blocks);
        assert!(dims.heads.is_multiple_of(dims.kv_heads));
        assert!(program.weight_bytes() > 0);
        if let Some(rope) = &program.rope {
            assert!(2 * rope.frequencies.len() <= dims.d_head);
            assert!(rope.frequencies.iter().all(|f| f.is_finite()) && rope.scale.is_finite());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn random_bytes_as_a_header(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        check_header(&bytes);
        check_header(&file(&String::from_utf8_lossy(&bytes), b"1234"));
    }

    #[test]
    fn damaged_headers(bytes in damaged(sample())) {
        check_header(&bytes);
    }

    #[test]
    fn random_offsets(
        entries in prop::collection::vec((0usize..5, any::<u64>(), any::<u64>(), prop::collection::vec(any::<u64>(), 0..3)), 0..4),
    ) {
        let header: serde_json::Map<String, Value> = entries
            .into_iter()
            .map(|(name, from, to, shape)| {
                let value = json!({"dtype": "F32", "shape": shape, "data_offsets": [from, to]});
                (format!("t{name}"), value)
            })
            .collect();
        check_header(&file(&Value::Object(header).to_string(), &[0; 64]));
    }

    #[test]
    fn random_text_as_a_configuration(text in "\\PC{0,80}") {
        check_config(text.as_bytes());
    }

    #[test]
    fn random_shape_references(text in "[a-z0-9.-]{0,12}([?&](layers|dtype|seed|x)=[a-z0-9-]{0,4}){0,3}") {
        let _ = Shape::parse(&text);
        let _ = Shape::parse(&format!("gpt2?{text}"));
    }
}

proptest! {
    // Every case builds a whole program or writes files, so there are fewer cases.
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn unusual_values_in_configurations(
        family in 0..GOLDEN.len(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), unusual_value()), 1..4),
    ) {
        let mut config = config_of(family);
        let object = config.as_object_mut().expect("an object");
        for (index, value) in changes {
            let key = index.get(&object.keys().cloned().collect::<Vec<_>>()).clone();
            object.insert(key, value);
        }
        check_config(config.to_string().as_bytes());
    }

    #[test]
    fn damaged_folders(
        config in damaged(config_of(4).to_string().into_bytes()),
        index in damaged(json!({"weight_map": {"model.norm.weight": "a.safetensors"}}).to_string().into_bytes()),
        shard in damaged(sample()),
    ) {
        open_folder(&config, &[
            ("model.safetensors.index.json", &index),
            ("a.safetensors", &shard),
        ]);
    }

    #[test]
    fn damaged_settings_files(
        generation in damaged(br#"{"eos_token_id": [1, 2], "temperature": 0.5, "top_k": 3}"#.to_vec()),
        tokens in damaged(br#"{"chat_template": [{"name": "a", "template": "b"}], "bos_token": {"content": "x"}}"#.to_vec()),
    ) {
        open_folder(config_of(4).to_string().as_bytes(), &[
            ("model.safetensors", &sample()),
            ("generation_config.json", &generation),
            ("tokenizer_config.json", &tokens),
        ]);
    }
}
