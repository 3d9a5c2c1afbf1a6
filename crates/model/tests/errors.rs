//! Every way in which a checkpoint can be wrong, and what is said of it.

mod common;

use common::{file, folder, refusal, safetensors};
use djinn_model::Model;
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
    let error = Model::open("/no/such/folder")
        .expect_err("refused")
        .to_string();
    assert_eq!(
        error,
        "no model at /no/such/folder: there is no such folder"
    );
    let check = |files: &[&str], expect: &str| {
        let dir = tempfile::tempdir().expect("a temporary folder");
        for name in files {
            std::fs::write(dir.path().join(name), "{}").expect("written");
        }
        assert_eq!(refusal(dir.path()), expect, "{files:?}");
    };
    check(&[], "DIR: no config.json");
    check(
        &["config.json"],
        "DIR: no model.safetensors and no model.safetensors.index.json",
    );
    check(
        &["config.json", "pytorch_model.bin"],
        "DIR: the weights are pytorch_model.bin, which is not read; convert them to safetensors",
    );
    check(
        &["model-q4.gguf"],
        "DIR: the weights are model-q4.gguf, which is not read; download the model's \
         safetensors files instead",
    );
}

#[test]
fn bad_headers() {
    let check = |bytes: &[u8], expect: &str| {
        let dir = folder(&config(), &[("model.safetensors", bytes)]);
        assert_eq!(
            refusal(dir.path()),
            format!("DIR/model.safetensors: {expect}")
        );
    };
    let header = |problem: &str| format!("bad safetensors header: {problem}");
    check(b"", &header("the file has 0 bytes, too few for a header"));
    check(
        b"1234567",
        &header("the file has 7 bytes, too few for a header"),
    );
    check(
        &[5, 0, 0, 0, 0, 0, 0, 0, b'{'],
        &header(
            "the header's 5 bytes lie beyond the end of the file, which has 9 bytes (truncated?)",
        ),
    );
    check(
        &u64::MAX.to_le_bytes(),
        &header("a header of 18446744073709551615 bytes is beyond the limit of 100000000"),
    );
    check(
        &file("{,", b""),
        &header("not JSON: key must be a string at line 1 column 2"),
    );
    check(
        &file("", b""),
        &header("not JSON: EOF while parsing a value at line 1 column 0"),
    );
    check(
        &file("[]", b""),
        &header("invalid type: sequence, expected an object of tensors at line 1 column 0"),
    );
    check(
        &file(
            r#"{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}"#,
            b"1234",
        ),
        &header("tensor 'a': invalid value: integer `-1`, expected usize at line 1 column 35"),
    );
    check(&file("{}", b"12"), &header("2 bytes after the last tensor"));
}

#[test]
fn bad_places() {
    let check = |entries: &str, data: &[u8], expect: &str| {
        let dir = folder(&config(), &[("model.safetensors", &file(entries, data))]);
        assert_eq!(
            refusal(dir.path()),
            format!("DIR/model.safetensors: tensor {expect}")
        );
    };
    let entry = |name: &str, shape: &str, from: u64, to: u64| {
        format!(r#""{name}": {{"dtype": "F32", "shape": {shape}, "data_offsets": [{from}, {to}]}}"#)
    };
    let one = |shape: &str, from: u64, to: u64| format!("{{{}}}", entry("a", shape, from, to));
    let two = |a: String, b: String| format!("{{{a}, {b}}}");
    check(
        &one("[2]", 0, 8),
        b"1234",
        "'a': ends at offset 8, beyond the end of the file, which has 4 bytes of data (truncated?)",
    );
    check(
        &one("[2]", 8, 0),
        b"12345678",
        "'a': ends at offset 0, before it starts at 8",
    );
    check(
        &one("[1]", 4, 8),
        b"12345678",
        "'a': starts at offset 4, leaving a hole from 0",
    );
    check(
        &one("[3]", 0, 8),
        b"12345678",
        "'a': shape [3] of F32 takes 12 bytes, but its offsets span 8",
    );
    check(
        &one("[9223372036854775807, 9]", 0, 8),
        b"12345678",
        "'a': shape [9223372036854775807, 9] is too large",
    );
    check(
        &two(entry("a", "[2]", 0, 8), entry("b", "[1]", 4, 8)),
        b"12345678",
        "'b': starts at offset 4, in a tensor that ends at 8",
    );
    check(
        &two(entry("a", "[1]", 0, 4), entry("a", "[1]", 4, 8)),
        b"12345678",
        "'a': is in the header twice",
    );
}

#[test]
fn bad_tensors() {
    let check = |name: &str, dtype: &str, shape: &[usize], bytes: usize, expect: &str| {
        let tensor = safetensors(&[(name, dtype, shape, bytes)]);
        let dir = folder(&config(), &[("model.safetensors", &tensor)]);
        assert_eq!(refusal(dir.path()), expect);
    };
    check(
        "model.norm.weight",
        "F32",
        &[4],
        4,
        "tensor 'model.embed_tokens.weight' is missing from DIR/model.safetensors",
    );
    check(
        "model.embed_tokens.weight",
        "F32",
        &[4, 4],
        4,
        "DIR/model.safetensors: tensor 'model.embed_tokens.weight': expected shape [3, 4], found \
         [4, 4]",
    );
    check(
        "embed_tokens.weight",
        "F8_E4M3",
        &[3, 4],
        1,
        "DIR/model.safetensors: tensor 'model.embed_tokens.weight': dtype F8_E4M3 is not \
         computed, only F32, F16 and BF16",
    );
}

#[test]
fn bad_indexes() {
    let check = |index: &str, expect: &str| {
        let shard = safetensors(&[("x", "F32", &[1], 4)]);
        let dir = folder(
            &config(),
            &[
                ("model.safetensors.index.json", index.as_bytes()),
                ("a.safetensors", &shard),
                ("b.safetensors", &shard),
            ],
        );
        assert_eq!(
            refusal(dir.path()).replace("DIR/model.safetensors.index.json", "INDEX"),
            expect
        );
    };
    check(
        "{",
        "INDEX is not valid JSON: EOF while parsing an object at line 1 column 1",
    );
    check("{}", "INDEX: no 'weight_map' of tensors to shards");
    check(r#"{"weight_map": {}}"#, "INDEX: 'weight_map' is empty");
    check(
        r#"{"weight_map": {"x": 1}}"#,
        "INDEX: tensor 'x': expected a file name, found 1",
    );
    check(
        r#"{"weight_map": {"x": "c.safetensors"}}"#,
        "INDEX: shard 'c.safetensors' is not in the folder",
    );
    check(
        r#"{"weight_map": {"y": "a.safetensors"}}"#,
        "INDEX: tensor 'y' should be in 'a.safetensors', which does not have it",
    );
    check(
        r#"{"weight_map": {"x": "a.safetensors"}}"#,
        "tensor 'model.embed_tokens.weight' is missing from DIR/a.safetensors",
    );
    for outside in [
        "../a.safetensors",
        "/etc/passwd",
        "a/../../b",
        "",
        "..",
        ".\\\\a",
    ] {
        let shown = outside.replace("\\\\", "\\");
        check(
            &format!(r#"{{"weight_map": {{"x": "{outside}"}}}}"#),
            &format!("INDEX: tensor 'x': shard '{shown}' is outside the folder"),
        );
    }
}

#[test]
fn bad_configurations() {
    let check = |more: Value, expect: &str| {
        let mut config = config();
        for (key, value) in more.as_object().expect("an object") {
            config[key] = value.clone();
        }
        let dir = folder(&config, &[("model.safetensors", &safetensors(&[]))]);
        assert_eq!(
            refusal(dir.path()),
            format!("DIR/config.json: key {expect}")
        );
    };
    let known = "known: falcon, gpt2, gptj, llama, mistral, mixtral, qwen2, qwen3";
    check(
        json!({"model_type": "bert"}),
        &format!("'model_type': family 'bert' is not known; {known}"),
    );
    check(
        json!({"model_type": null}),
        &format!("'model_type': missing; {known}"),
    );
    check(
        json!({"model_type": null, "architectures": ["BertModel"]}),
        &format!("'model_type': missing, and architecture 'BertModel' is not known; {known}"),
    );
    check(
        json!({"quantization_config": {"quant_method": "gptq"}}),
        "'quantization_config': quantized weights (gptq) are not computed, only F32, F16 and BF16",
    );
    check(
        json!({"num_attention_heads": 0}),
        "'num_attention_heads': expected 1 to 65536, found 0",
    );
    check(
        json!({"num_attention_heads": 3}),
        "'num_attention_heads': 3 heads do not divide the model's width, 4",
    );
    check(
        json!({"num_attention_heads": 65536, "head_dim": 65536}),
        "'num_attention_heads': 65536 heads of 65536 are more than 16777216 elements",
    );
    check(
        json!({"num_attention_heads": 4, "num_key_value_heads": 3}),
        "'num_key_value_heads': 3 key-value heads do not divide 4 query heads",
    );
    check(
        json!({"hidden_size": -4}),
        "'hidden_size': expected a whole number, 0 or more, found -4",
    );
    check(
        json!({"hidden_size": 1e300}),
        "'hidden_size': expected a whole number, 0 or more, found 1e+300",
    );
    check(
        json!({"num_hidden_layers": u64::MAX}),
        "'num_hidden_layers': expected 1 to 4096, found 18446744073709551615",
    );
    check(
        json!({"head_dim": 7}),
        "'head_dim': an even number of elements of a head must be rotated, not 7 of 7",
    );
    check(
        json!({"rms_norm_eps": -1.0}),
        "'rms_norm_eps': expected 0 to 1, found -1",
    );
    check(
        json!({"model_type": "mixtral", "num_key_value_heads": 1, "num_local_experts": 2,
               "num_experts_per_tok": 3}),
        "'num_experts_per_tok': expected 1 to 2, found 3",
    );
    check(
        json!({"model_type": "mixtral", "num_key_value_heads": 1, "num_local_experts": 1024,
               "num_hidden_layers": 4096}),
        "'num_local_experts': 1024 experts in each of 4096 blocks are too many",
    );
    check(
        json!({"model_type": "mistral", "num_key_value_heads": 1, "sliding_window": 0}),
        "'sliding_window': expected 1 to 2147483647, found 0",
    );
    check(
        json!({"model_type": "qwen2", "num_key_value_heads": 1, "layer_types": []}),
        "'layer_types': expected 1 entries, one a layer, found 0",
    );
    check(
        json!({"model_type": "qwen2", "num_key_value_heads": 1, "layer_types": ["odd"]}),
        "'layer_types': layer type 'odd' is not computed",
    );
    check(
        json!({"model_type": "falcon", "alibi": true}),
        "'alibi': ALiBi positions are not computed, only rotary ones",
    );
    check(
        json!({"model_type": "gptj", "n_embd": 16, "n_head": 4, "rotary_dim": 3}),
        "'rotary_dim': expected an even number up to the head's 4 elements, found 3",
    );
    check(
        json!({"model_type": "gpt2", "add_cross_attention": true}),
        "'add_cross_attention': cross-attention is not computed",
    );
}

#[test]
fn bad_generation_settings() {
    let check = |settings: Value, expect: &str| {
        let settings = settings.to_string();
        let files: [(&str, &[u8]); 2] = [
            ("model.safetensors", &safetensors(&[])),
            ("generation_config.json", settings.as_bytes()),
        ];
        let error = refusal(folder(&config(), &files).path());
        assert_eq!(error, format!("DIR/generation_config.json: key {expect}"));
    };
    check(
        json!({"temperature": "hot"}),
        "'temperature': expected a number, found \"hot\"",
    );
    check(json!({"top_p": 1.5}), "'top_p': expected 0 to 1, found 1.5");
    check(
        json!({"top_p": 0}),
        "'top_p': expected more than 0, found 0",
    );
    check(
        json!({"top_k": -1}),
        "'top_k': expected a whole number, 0 or more, found -1",
    );
    check(
        json!({"eos_token_id": ["a"]}),
        "'eos_token_id': expected a token id or a list of them, found [\"a\"]",
    );
    check(
        json!({"do_sample": 1}),
        "'do_sample': expected true or false, found 1",
    );
    check(
        json!({"repetition_penalty": 0}),
        "'repetition_penalty': expected a number above 0, found 0",
    );
}

#[test]
fn bad_chat_templates() {
    let settings = json!({"chat_template": [{"name": "x"}]}).to_string();
    let files: [(&str, &[u8]); 2] = [
        ("model.safetensors", &safetensors(&[])),
        ("tokenizer_config.json", settings.as_bytes()),
    ];
    assert_eq!(
        refusal(folder(&config(), &files).path()),
        "DIR/tokenizer_config.json: key 'chat_template': expected a string, or a list of objects \
         with 'name' and 'template'"
    );
}
