//! Tests of valid checkpoints with unusual settings, names or shards.

mod common;

use std::path::Path;

use common::{TestTensor, folder, golden, open, safetensors};
use djinn_model::program::{Buf, Op, Program, SegmentKind, TensorId};
use djinn_model::{RawConfig, Site, families};
use djinn_types::DType;
use serde_json::{Value, json};

fn build(config: &Value) -> Program {
    let config = RawConfig::parse(Path::new("config.json"), config.to_string().as_bytes());
    families::build(&config.expect("an object"), DType::F32).unwrap_or_else(|e| panic!("{e}"))
}

/// Returns a file with every tensor of a program, renamed.
fn weights(program: &Program, rename: impl Fn(&str) -> String) -> Vec<u8> {
    let names: Vec<String> = program.tensors.iter().map(|t| rename(&t.name)).collect();
    let tensors: Vec<TestTensor<'_>> = program
        .tensors
        .iter()
        .zip(&names)
        .map(|(t, name)| (&**name, "F32", &t.shape[..], 4))
        .collect();
    safetensors(&tensors)
}

fn tiny(more: Value) -> Value {
    let mut config = json!({
        "model_type": "llama", "hidden_size": 24, "intermediate_size": 40,
        "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 20,
        "num_hidden_layers": 2, "vocab_size": 11, "max_position_embeddings": 64,
    });
    merge(&mut config, more);
    config
}

fn merge(config: &mut Value, more: Value) {
    for (key, value) in more.as_object().expect("an object") {
        config[key] = value.clone();
    }
}

#[test]
fn odd_head_sizes_open() {
    let config = tiny(json!({}));
    let dir = folder(
        &config,
        &[(
            "model.safetensors",
            &weights(&build(&config), str::to_owned),
        )],
    );
    let program = open(dir.path()).program;
    assert_eq!(
        (
            program.dims.d_head,
            program.dims.heads,
            program.dims.kv_heads
        ),
        (20, 6, 3)
    );
    assert_eq!(program.width(Buf::Q), 120);
    assert_eq!(program.width(Buf::K), 60);
}

#[test]
fn tensor_names_may_lack_or_add_the_base_prefix() {
    let strip = |name: &str| {
        let name = name.strip_prefix("transformer.").unwrap_or(name);
        name.strip_prefix("model.").unwrap_or(name).to_owned()
    };
    for family in common::GOLDEN {
        let config = std::fs::read(golden(family).join("config.json")).expect("a configuration");
        let config: Value = serde_json::from_slice(&config).expect("JSON");
        let program = build(&config);
        let base = if program.tensors[0].name.starts_with("model.") {
            "model."
        } else {
            "transformer."
        };
        let stripped = weights(&program, strip);
        let added = weights(&program, |name| format!("{base}{name}"));
        for file in [stripped, added] {
            let dir = folder(&config, &[("model.safetensors", &file)]);
            assert_eq!(open(dir.path()).program, program, "{family}");
        }
    }
}

#[test]
fn newer_mixtral_names_are_accepted() {
    let config = tiny(json!({"model_type": "mixtral", "num_local_experts": 3}));
    let file = weights(&build(&config), |name| {
        name.replace("block_sparse_moe", "mlp")
    });
    open(folder(&config, &[("model.safetensors", &file)]).path());
}

#[test]
fn shards_are_joined_and_extra_tensors_ignored() {
    let config = tiny(json!({"tie_word_embeddings": true}));
    let program = build(&config);
    let tensor = |i: usize| -> TestTensor<'_> {
        let t = &program.tensors[i];
        (&t.name, "BF16", &t.shape, 2)
    };
    let half = program.tensors.len() / 2;
    let mut first: Vec<TestTensor<'_>> = (0..half).map(tensor).collect();
    let mut second: Vec<TestTensor<'_>> = (half..program.tensors.len()).map(tensor).collect();
    first.push((
        "model.layers.0.self_attn.rotary_emb.inv_freq",
        "F64",
        &[10],
        8,
    ));
    second.push(("lm_head.weight", "I8", &[11, 24], 1));
    second.push(("strange", "Q3_K", &[5], 7));
    let map: serde_json::Map<String, Value> = program
        .tensors
        .iter()
        .enumerate()
        .map(|(i, t)| {
            (
                t.name.clone(),
                if i < half {
                    "a.safetensors"
                } else {
                    "b.safetensors"
                }
                .into(),
            )
        })
        .collect();
    let index = json!({"metadata": {"total_size": 1}, "weight_map": map}).to_string();
    let dir = folder(
        &config,
        &[
            ("a.safetensors", &safetensors(&first)),
            ("b.safetensors", &safetensors(&second)),
            ("model.safetensors.index.json", index.as_bytes()),
        ],
    );
    let model = open(dir.path());
    assert!(model.program.tensors.iter().all(|t| t.dtype == DType::Bf16));
    let mut bytes = [0; 4];
    for id in 0..model.program.tensors.len() {
        model
            .weights
            .read_tensor(TensorId(id), 2, &mut bytes)
            .expect("readable");
        let expect = if id < half { id } else { id - half } as u8 + 1;
        assert_eq!(bytes, [expect; 4], "tensor {id}");
    }
}

#[test]
fn missing_keys_default_as_in_transformers() {
    let check = |config: Value, parameters: u64| {
        assert_eq!(build(&config).parameters(), parameters, "{config}");
    };
    check(json!({"model_type": "llama"}), 6_738_415_616);
    check(
        json!({"architectures": ["LlamaForCausalLM"], "rope_scaling": null}),
        6_738_415_616,
    );
    check(json!({"model_type": "mistral"}), 7_241_732_096);
    check(json!({"model_type": "mixtral"}), 46_702_792_704);
    check(json!({"model_type": "gpt2"}), 124_439_808);
    check(json!({"model_type": "gptj"}), 6_050_882_784);
    check(json!({"model_type": "falcon"}), 6_921_720_704);
}

fn windows(config: Value) -> Vec<Option<usize>> {
    let program = build(&config);
    let attends = program.ops().filter_map(|op| match op {
        Op::Attend { window, .. } => Some(*window),
        _ => None,
    });
    attends.collect()
}

#[test]
fn sliding_windows_follow_the_configuration() {
    let check = |more: Value, expect: &[Option<usize>]| {
        assert_eq!(windows(tiny(more.clone())), expect, "{more}");
    };
    check(json!({"sliding_window": 8}), &[None, None]);
    check(
        json!({"model_type": "mistral", "sliding_window": 8}),
        &[Some(8), Some(8)],
    );
    check(
        json!({"model_type": "mistral", "sliding_window": null}),
        &[None, None],
    );
    // The default of 4096 is wider than this context.
    check(json!({"model_type": "mistral"}), &[None, None]);
    check(
        json!({"model_type": "mistral", "max_position_embeddings": 8192}),
        &[Some(4096), Some(4096)],
    );
    check(
        json!({"model_type": "mixtral", "sliding_window": 5}),
        &[Some(5), Some(5)],
    );
    for family in ["qwen2", "qwen3"] {
        let qwen = |more: Value| {
            let mut config = json!({"model_type": family, "sliding_window": 8});
            merge(&mut config, more);
            config
        };
        check(qwen(json!({})), &[None, None]);
        check(
            qwen(json!({"use_sliding_window": true, "max_window_layers": 1})),
            &[None, Some(8)],
        );
        check(qwen(json!({"use_sliding_window": true})), &[None, None]);
        let types = json!(["sliding_attention", "full_attention"]);
        check(
            qwen(json!({"use_sliding_window": true, "layer_types": types})),
            &[Some(8), None],
        );
        check(qwen(json!({"layer_types": types})), &[None, None]);
    }
}

#[test]
fn experts_are_segments_after_their_block() {
    let config = tiny(json!({"model_type": "mixtral", "num_local_experts": 3,
                             "num_experts_per_tok": 1}));
    let program = build(&config);
    let kinds: Vec<SegmentKind> = program.segments.iter().map(|s| s.kind).collect();
    let expert = |block, expert| SegmentKind::Expert { block, expert };
    assert_eq!(
        kinds,
        [
            SegmentKind::Embedding,
            SegmentKind::Block(0),
            expert(0, 0),
            expert(0, 1),
            expert(0, 2),
            SegmentKind::Block(1),
            expert(1, 0),
            expert(1, 1),
            expert(1, 2),
            SegmentKind::Head,
        ]
    );
    let shares = program.segment_shares();
    assert_eq!((shares[2].tensors, shares[2].bytes), (3, 3 * 24 * 40 * 4));
    assert_eq!(shares[2].kind.to_string(), "block 0 expert 0");
    assert_eq!(program.dtypes().len(), 1);
    assert_eq!(program.dtypes()[0].bytes, program.weight_bytes());
    let chosen = program.ops().find_map(|op| match op {
        Op::Experts { chosen, .. } => Some(*chosen),
        _ => None,
    });
    assert_eq!(chosen, Some(1));
}

#[test]
fn biases_follow_the_configuration() {
    let check = |more: Value, expect: &[&str]| {
        let program = build(&tiny(more.clone()));
        let names = program.tensors.iter().filter_map(|t| {
            let name = t.name.strip_prefix("model.layers.0.")?;
            name.strip_suffix(".bias")
        });
        assert_eq!(names.collect::<Vec<_>>(), expect, "{more}");
    };
    check(json!({}), &[]);
    let attention = [
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.v_proj",
        "self_attn.o_proj",
    ];
    check(json!({"attention_bias": true}), &attention);
    check(
        json!({"mlp_bias": true}),
        &["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"],
    );
    check(json!({"model_type": "qwen2"}), &attention[..3]);
    check(
        json!({"model_type": "qwen3", "attention_bias": true}),
        &attention,
    );
    check(
        json!({"model_type": "mistral", "attention_bias": true}),
        &[],
    );
}

fn falcon(more: Value) -> Program {
    let mut config = json!({
        "model_type": "falcon", "hidden_size": 24, "num_attention_heads": 6, "num_kv_heads": 3,
        "num_hidden_layers": 1, "vocab_size": 11,
    });
    merge(&mut config, more);
    build(&config)
}

#[test]
fn falcon_supports_all_block_styles() {
    let check = |more: Value, kv_heads: usize, norms: &[&str], fused: usize| {
        let program = falcon(more.clone());
        assert_eq!(program.dims.kv_heads, kv_heads, "{more}");
        assert_eq!(program.width(Buf::Fused), fused, "{more}");
        let found = program.tensors.iter().filter_map(|t| {
            let name = t.name.strip_prefix("transformer.h.0.")?;
            name.strip_suffix(".weight")
                .filter(|name| !name.contains('.'))
        });
        assert_eq!(found.collect::<Vec<_>>(), norms, "{more}");
        let mid = program.hooks().contains(&Site::ResidMid(0));
        assert_eq!(mid, norms.contains(&"post_attention_layernorm"), "{more}");
    };
    check(json!({}), 1, &["input_layernorm"], 32);
    check(json!({"multi_query": false}), 6, &["input_layernorm"], 72);
    check(
        json!({"multi_query": false, "parallel_attn": false, "bias": true}),
        6,
        &["input_layernorm", "post_attention_layernorm"],
        72,
    );
    let new =
        |norms: Value| json!({"new_decoder_architecture": true, "num_ln_in_parallel_attn": norms});
    check(new(Value::Null), 3, &["ln_attn", "ln_mlp"], 48);
    check(new(json!(2)), 3, &["ln_attn", "ln_mlp"], 48);
    check(new(json!(1)), 3, &["input_layernorm"], 48);
    // Groups of two queries, a key and a value, of 4 elements each.
    let splits: Vec<(usize, usize, usize)> = falcon(new(json!(1)))
        .ops()
        .filter_map(|op| match *op {
            Op::Split {
                first,
                stride,
                width,
                ..
            } => Some((first, stride, width)),
            _ => None,
        })
        .collect();
    assert_eq!(splits, [(0, 16, 8), (8, 16, 4), (12, 16, 4)]);
}

#[test]
fn gpt2_attention_scales_follow_the_configuration() {
    let scales = |more: Value| -> Vec<f32> {
        let mut config = json!({"model_type": "gpt2", "n_embd": 32, "n_head": 2, "n_layer": 2,
                                "n_inner": 50, "n_ctx": 9});
        merge(&mut config, more);
        let program = build(&config);
        assert_eq!((program.dims.d_mlp, program.dims.context), (50, 9));
        let attends = program.ops().filter_map(|op| match op {
            Op::Attend { scale, .. } => Some(*scale),
            _ => None,
        });
        attends.collect()
    };
    assert_eq!(scales(json!({})), [0.25, 0.25]);
    assert_eq!(scales(json!({"scale_attn_weights": false})), [1.0, 1.0]);
    assert_eq!(
        scales(json!({"scale_attn_by_inverse_layer_idx": true})),
        [0.25, 0.125]
    );
}

#[test]
fn hooks_are_in_order_of_the_pass() {
    let names = |config: Value| -> Vec<String> {
        let program = build(&config);
        let last = program.dims.blocks - 1;
        let hooks = program.hooks().into_iter().map(|site| site.to_string());
        let block = format!("blocks.{last}.");
        hooks
            .filter_map(|name| Some(name.strip_prefix(&block)?.to_owned()))
            .collect()
    };
    let attention = [
        "hook_resid_pre",
        "attn.hook_q",
        "attn.hook_k",
        "attn.hook_v",
        "attn.hook_pattern",
        "attn.hook_z",
        "hook_attn_out",
    ];
    let mlp = [
        "mlp.hook_pre",
        "mlp.hook_post",
        "hook_mlp_out",
        "hook_resid_post",
    ];
    let check = |config: Value, middle: &[&str], end: &[&str]| {
        assert_eq!(names(config), [&attention, middle, end].concat());
    };
    check(tiny(json!({})), &["hook_resid_mid"], &mlp);
    check(
        tiny(json!({"model_type": "qwen3"})),
        &["hook_resid_mid"],
        &mlp,
    );
    check(
        tiny(json!({"model_type": "mixtral"})),
        &["hook_resid_mid"],
        &mlp[2..],
    );
    check(json!({"model_type": "gpt2"}), &["hook_resid_mid"], &mlp);
    check(json!({"model_type": "gptj"}), &[], &mlp);
    check(json!({"model_type": "falcon"}), &[], &mlp);
}
