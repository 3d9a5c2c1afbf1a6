//! Tests of invalid checkpoints: every problem has an error kind of its own, which names the
//! file.

mod common;

use common::{file, file_name, folder, key_problem, open_error, safetensors};
use djinn_model::{HeaderProblem, IndexProblem, KeyProblem, Model, ModelError, OffsetProblem};
use serde_json::{Value, json};

fn config() -> Value {
    json!({
        "model_type": "llama", "hidden_size": 4, "intermediate_size": 4,
        "num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 3,
        "max_position_embeddings": 8, "tie_word_embeddings": true,
    })
}

#[test]
fn missing_files() {
    let error = Model::open("/no/such/folder").expect_err("the folder does not exist");
    assert!(matches!(error, ModelError::NoFolder { .. }), "{error:?}");
    let error = |files: &[&str]| {
        let dir = tempfile::tempdir().expect("a temporary folder");
        for name in files {
            std::fs::write(dir.path().join(name), "{}").expect("written");
        }
        open_error(dir.path())
    };
    let missing = |files: &[&str], expect: &str| match error(files) {
        ModelError::NoFile { what, .. } => assert_eq!(what, expect),
        other => panic!("{other:?}"),
    };
    missing(&[], "config.json");
    missing(
        &["config.json"],
        "model.safetensors or model.safetensors.index.json",
    );
    let format = |files: &[&str], expect: &str| match error(files) {
        ModelError::Format { found, .. } => assert_eq!(found, expect),
        other => panic!("{other:?}"),
    };
    format(&["config.json", "pytorch_model.bin"], "pytorch_model.bin");
    format(&["model-q4.gguf"], "model-q4.gguf");
}

#[test]
fn invalid_headers() {
    let problem = |bytes: &[u8]| {
        let dir = folder(&config(), &[("model.safetensors", bytes)]);
        match open_error(dir.path()) {
            ModelError::Header { path, problem } => {
                assert_eq!(file_name(&path), "model.safetensors");
                problem
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(problem(b""), HeaderProblem::NoLength { file_bytes: 0 });
    assert_eq!(
        problem(b"1234567"),
        HeaderProblem::NoLength { file_bytes: 7 }
    );
    assert_eq!(
        problem(&[5, 0, 0, 0, 0, 0, 0, 0, b'{']),
        HeaderProblem::Truncated {
            bytes: 5,
            file_bytes: 9
        }
    );
    assert_eq!(
        problem(&u64::MAX.to_le_bytes()),
        HeaderProblem::TooLong {
            bytes: u64::MAX,
            limit: 100_000_000
        }
    );
    assert!(matches!(
        problem(&file("{,", b"")),
        HeaderProblem::NotJson(_)
    ));
    assert!(matches!(problem(&file("", b"")), HeaderProblem::NotJson(_)));
    assert!(matches!(
        problem(&file("[]", b"")),
        HeaderProblem::Malformed(_)
    ));
    let negative = r#"{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}"#;
    match problem(&file(negative, b"1234")) {
        HeaderProblem::Malformed(message) => assert!(message.starts_with("tensor 'a'")),
        other => panic!("{other:?}"),
    }
    assert_eq!(
        problem(&file("{}", b"12")),
        HeaderProblem::TrailingBytes { bytes: 2 }
    );
}

#[test]
fn invalid_offsets() {
    let check = |entries: &str, data: &[u8], expect_tensor: &str, expect: OffsetProblem| {
        let dir = folder(&config(), &[("model.safetensors", &file(entries, data))]);
        match open_error(dir.path()) {
            ModelError::Offsets {
                tensor, problem, ..
            } => assert_eq!((&*tensor, problem), (expect_tensor, expect)),
            other => panic!("{other:?}"),
        }
    };
    let entry = |name: &str, shape: &str, from: u64, to: u64| {
        format!(r#""{name}": {{"dtype": "F32", "shape": {shape}, "data_offsets": [{from}, {to}]}}"#)
    };
    let one = |shape: &str, from: u64, to: u64| format!("{{{}}}", entry("a", shape, from, to));
    let two = |a: String, b: String| format!("{{{a}, {b}}}");
    check(
        &one("[2]", 0, 8),
        b"1234",
        "a",
        OffsetProblem::BeyondFile {
            end: 8,
            data_bytes: 4,
        },
    );
    check(
        &one("[2]", 8, 0),
        b"12345678",
        "a",
        OffsetProblem::Reversed { start: 8, end: 0 },
    );
    check(
        &one("[1]", 4, 8),
        b"12345678",
        "a",
        OffsetProblem::Hole {
            start: 4,
            previous_end: 0,
        },
    );
    check(
        &one("[3]", 0, 8),
        b"12345678",
        "a",
        OffsetProblem::Size {
            shape: vec![3],
            dtype: "F32".to_owned(),
            expected: 12,
            found: 8,
        },
    );
    check(
        &one("[9223372036854775807, 9]", 0, 8),
        b"12345678",
        "a",
        OffsetProblem::Overflow {
            shape: vec![9_223_372_036_854_775_807, 9],
        },
    );
    check(
        &two(entry("a", "[2]", 0, 8), entry("b", "[1]", 4, 8)),
        b"12345678",
        "b",
        OffsetProblem::Overlap {
            start: 4,
            previous_end: 8,
        },
    );
    check(
        &two(entry("a", "[1]", 0, 4), entry("a", "[1]", 4, 8)),
        b"12345678",
        "a",
        OffsetProblem::Duplicate,
    );
}

#[test]
fn unusable_tensors() {
    let error = |name: &str, dtype: &str, shape: &[usize], bytes: usize| {
        let tensor = safetensors(&[(name, dtype, shape, bytes)]);
        open_error(folder(&config(), &[("model.safetensors", &tensor)]).path())
    };
    let embedding = "model.embed_tokens.weight";
    match error("model.norm.weight", "F32", &[4], 4) {
        ModelError::NoTensor { tensor, .. } => assert_eq!(tensor, embedding),
        other => panic!("{other:?}"),
    }
    match error(embedding, "F32", &[4, 4], 4) {
        ModelError::Shape {
            tensor,
            expected,
            found,
            ..
        } => assert_eq!(
            (&*tensor, &expected[..], &found[..]),
            (embedding, &[3, 4][..], &[4, 4][..])
        ),
        other => panic!("{other:?}"),
    }
    match error("embed_tokens.weight", "F8_E4M3", &[3, 4], 1) {
        ModelError::DType { tensor, found, .. } => {
            assert_eq!((&*tensor, &*found), (embedding, "F8_E4M3"));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn invalid_indexes() {
    let error = |index: &str| {
        let shard = safetensors(&[("x", "F32", &[1], 4)]);
        let files: [(&str, &[u8]); 3] = [
            ("model.safetensors.index.json", index.as_bytes()),
            ("a.safetensors", &shard),
            ("b.safetensors", &shard),
        ];
        open_error(folder(&config(), &files).path())
    };
    let check = |index: &str, expect: IndexProblem| match error(index) {
        ModelError::Index { problem, .. } => assert_eq!(problem, expect),
        other => panic!("{other:?}"),
    };
    assert!(matches!(error("{"), ModelError::Json { .. }));
    check("{}", IndexProblem::NoWeightMap);
    check(r#"{"weight_map": {}}"#, IndexProblem::EmptyWeightMap);
    check(
        r#"{"weight_map": {"x": 1}}"#,
        IndexProblem::NotAFileName {
            tensor: "x".to_owned(),
            found: "1".to_owned(),
        },
    );
    check(
        r#"{"weight_map": {"x": "c.safetensors"}}"#,
        IndexProblem::MissingShard {
            shard: "c.safetensors".to_owned(),
        },
    );
    check(
        r#"{"weight_map": {"y": "a.safetensors"}}"#,
        IndexProblem::MissingTensor {
            tensor: "y".to_owned(),
            shard: "a.safetensors".to_owned(),
        },
    );
    let missing = error(r#"{"weight_map": {"x": "a.safetensors"}}"#);
    assert!(
        matches!(&missing, ModelError::NoTensor { tensor, .. } if tensor == "model.embed_tokens.weight"),
        "{missing:?}"
    );
    for outside in [
        "../a.safetensors",
        "/etc/passwd",
        "a/../../b",
        "",
        "..",
        ".\\\\a",
    ] {
        check(
            &format!(r#"{{"weight_map": {{"x": "{outside}"}}}}"#),
            IndexProblem::OutsideFolder {
                tensor: "x".to_owned(),
                shard: outside.replace("\\\\", "\\"),
            },
        );
    }
}

/// Kind of a problem with a key, without its text.
#[derive(Debug, PartialEq)]
enum Expect {
    Unexpected,
    Unsupported,
    Inconsistent,
}

fn kind_of(problem: &KeyProblem) -> Expect {
    match problem {
        KeyProblem::Unexpected { .. } => Expect::Unexpected,
        KeyProblem::Unsupported(_) => Expect::Unsupported,
        KeyProblem::Inconsistent(_) => Expect::Inconsistent,
        KeyProblem::Missing => panic!("no required key is missing"),
    }
}

#[test]
fn invalid_configurations() {
    let check = |more: Value, expect_key: &str, expect: Expect| {
        let mut config = config();
        for (key, value) in more.as_object().expect("an object") {
            config[key] = value.clone();
        }
        let dir = folder(&config, &[("model.safetensors", &safetensors(&[]))]);
        let (file, key, problem) = key_problem(open_error(dir.path()));
        assert_eq!((&*file, &*key), ("config.json", expect_key), "{more}");
        assert_eq!(kind_of(&problem), expect, "{more}: {problem}");
    };
    let (unexpected, unsupported, inconsistent) = (
        |more, key| check(more, key, Expect::Unexpected),
        |more, key| check(more, key, Expect::Unsupported),
        |more, key| check(more, key, Expect::Inconsistent),
    );
    unsupported(json!({"model_type": "bert"}), "model_type");
    unsupported(json!({"model_type": null}), "model_type");
    unsupported(
        json!({"model_type": null, "architectures": ["BertModel"]}),
        "model_type",
    );
    unsupported(
        json!({"quantization_config": {"quant_method": "gptq"}}),
        "quantization_config",
    );
    unexpected(json!({"num_attention_heads": 0}), "num_attention_heads");
    inconsistent(json!({"num_attention_heads": 3}), "num_attention_heads");
    inconsistent(
        json!({"num_attention_heads": 65536, "head_dim": 65536}),
        "num_attention_heads",
    );
    inconsistent(
        json!({"num_attention_heads": 4, "num_key_value_heads": 3}),
        "num_key_value_heads",
    );
    unexpected(json!({"hidden_size": -4}), "hidden_size");
    unexpected(json!({"hidden_size": 1e300}), "hidden_size");
    unexpected(json!({"num_hidden_layers": u64::MAX}), "num_hidden_layers");
    unexpected(json!({"head_dim": 7}), "head_dim");
    unexpected(json!({"rms_norm_eps": -1.0}), "rms_norm_eps");
    unexpected(
        json!({"model_type": "mixtral", "num_key_value_heads": 1, "num_local_experts": 2,
               "num_experts_per_tok": 3}),
        "num_experts_per_tok",
    );
    inconsistent(
        json!({"model_type": "mixtral", "num_key_value_heads": 1, "num_local_experts": 1024,
               "num_hidden_layers": 4096}),
        "num_local_experts",
    );
    unexpected(
        json!({"model_type": "mistral", "num_key_value_heads": 1, "sliding_window": 0}),
        "sliding_window",
    );
    unexpected(
        json!({"model_type": "qwen2", "num_key_value_heads": 1, "layer_types": []}),
        "layer_types",
    );
    unsupported(
        json!({"model_type": "qwen2", "num_key_value_heads": 1, "layer_types": ["odd"]}),
        "layer_types",
    );
    unsupported(json!({"model_type": "falcon", "alibi": true}), "alibi");
    unexpected(
        json!({"model_type": "gptj", "n_embd": 16, "n_head": 4, "rotary_dim": 3}),
        "rotary_dim",
    );
    unsupported(
        json!({"model_type": "gpt2", "add_cross_attention": true}),
        "add_cross_attention",
    );
}

#[test]
fn invalid_generation_settings() {
    for (key, value) in [
        ("temperature", json!("hot")),
        ("top_p", json!(1.5)),
        ("top_p", json!(0)),
        ("top_k", json!(-1)),
        ("eos_token_id", json!(["a"])),
        ("do_sample", json!(1)),
        ("repetition_penalty", json!(0)),
    ] {
        let settings = json!({key: value}).to_string();
        let files: [(&str, &[u8]); 2] = [
            ("model.safetensors", &safetensors(&[])),
            ("generation_config.json", settings.as_bytes()),
        ];
        let error = open_error(folder(&config(), &files).path());
        let (file, found, problem) = key_problem(error);
        assert_eq!((&*file, &*found), ("generation_config.json", key));
        assert_eq!(kind_of(&problem), Expect::Unexpected, "{settings}");
    }
}

#[test]
fn invalid_chat_templates() {
    let settings = json!({"chat_template": [{"name": "x"}]}).to_string();
    let files: [(&str, &[u8]); 2] = [
        ("model.safetensors", &safetensors(&[])),
        ("tokenizer_config.json", settings.as_bytes()),
    ];
    let error = open_error(folder(&config(), &files).path());
    let (file, key, problem) = key_problem(error);
    assert_eq!((&*file, &*key), ("tokenizer_config.json", "chat_template"));
    assert_eq!(kind_of(&problem), Expect::Unexpected);
}
