#!/usr/bin/env python3
"""Compares `djinn trace` with transformers on checkpoints of awkward shapes.

Builds random checkpoints of every family with transformers (odd head sizes, few and
many experts, short windows, all rope scalings, shards, dtypes), runs both on the same
tokens, and prints a table of the largest differences at any hook. Needs torch, transformers and
safetensors; exits with status 1 if a difference exceeds the tolerance.

    scripts/against_transformers.py --djinn target/release/djinn [--seeds 3] [--only llama]
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file

ABSOLUTE, RELATIVE = 2e-3, 1e-3


def ropes(rng, head_dim):
    theta = rng.choice([10000.0, 500000.0, 1000.0])
    return rng.choice([
        {"rope_type": "default", "rope_theta": theta},
        {"rope_type": "linear", "factor": 3.0, "rope_theta": theta},
        {"rope_type": "dynamic", "factor": 2.0, "rope_theta": theta},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 32, "rope_theta": theta},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32,
         "rope_theta": theta},
        {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 16,
         "beta_fast": 16.0, "beta_slow": 2.0, "attention_factor": 1.1, "rope_theta": theta},
    ])


def sizes(rng):
    kv = rng.choice([1, 2, 3])
    heads = kv * rng.choice([1, 2, 5])
    head_dim = rng.choice([6, 10, 16, 20, 34, 64])
    return heads, kv, head_dim


def common(rng):
    heads, kv, head_dim = sizes(rng)
    return dict(
        vocab_size=rng.choice([97, 320, 1000]), hidden_size=rng.choice([36, 48, 60, 90]),
        intermediate_size=rng.choice([50, 96, 130]), num_hidden_layers=rng.choice([1, 2, 3]),
        num_attention_heads=heads, num_key_value_heads=kv, head_dim=head_dim,
        max_position_embeddings=128, rope_parameters=ropes(rng, head_dim),
        rms_norm_eps=rng.choice([1e-5, 1e-6]), tie_word_embeddings=rng.random() < 0.5,
        hidden_act=rng.choice(["silu", "silu", "gelu", "gelu_pytorch_tanh", "relu"]),
        initializer_range=0.3, bos_token_id=1, eos_token_id=2,
    )


def llama(rng):
    config = common(rng)
    # transformers requires a multiple of the heads even if head_dim is given.
    config["hidden_size"] = config["num_attention_heads"] * rng.choice([4, 6, 10])
    return transformers.LlamaConfig(**config, attention_bias=rng.random() < 0.5,
                                    mlp_bias=rng.random() < 0.5)


def mistral(rng):
    return transformers.MistralConfig(**common(rng),
                                      sliding_window=rng.choice([None, 1, 3, 17, 24]))


def mixtral(rng):
    config = common(rng)
    # transformers computes experts in groups, which need aligned rows.
    config["hidden_size"], config["intermediate_size"] = rng.choice([(48, 80), (64, 112)])
    experts = rng.choice([2, 3, 5, 8])
    return transformers.MixtralConfig(
        **config, num_local_experts=experts,
        num_experts_per_tok=rng.randint(1, min(experts, 3)),
        sliding_window=rng.choice([None, 7]))


def qwen2(rng):
    config = common(rng)
    heads, head_dim = config["num_attention_heads"], rng.choice([6, 8, 14])
    config["hidden_size"] = heads * head_dim
    config["head_dim"] = head_dim
    return transformers.Qwen2Config(
        **config, use_sliding_window=rng.random() < 0.5, sliding_window=9,
        max_window_layers=rng.choice([0, 1, 2]))


def qwen3(rng):
    return transformers.Qwen3Config(
        **common(rng), attention_bias=rng.random() < 0.5,
        use_sliding_window=rng.random() < 0.5, sliding_window=9, max_window_layers=1)


def gpt2(rng):
    heads = rng.choice([1, 3, 5])
    return transformers.GPT2Config(
        vocab_size=rng.choice([97, 320]), n_embd=heads * rng.choice([6, 16, 20]), n_head=heads,
        n_layer=rng.choice([1, 2, 3]), n_inner=rng.choice([None, 50]), n_positions=128,
        activation_function=rng.choice(["gelu_new", "gelu", "relu", "silu"]),
        scale_attn_weights=rng.random() < 0.8,
        scale_attn_by_inverse_layer_idx=rng.random() < 0.5,
        tie_word_embeddings=rng.random() < 0.7, initializer_range=0.3,
        bos_token_id=1, eos_token_id=2)


def gptj(rng):
    heads, head_dim = rng.choice([(2, 16), (3, 10), (4, 64)])
    return transformers.GPTJConfig(
        vocab_size=rng.choice([97, 320]), n_embd=heads * head_dim, n_head=heads,
        n_layer=rng.choice([1, 2, 3]), n_inner=rng.choice([None, 50]), n_positions=128,
        rotary_dim=rng.choice([4, 8, 10]), activation_function=rng.choice(["gelu_new", "relu"]),
        tie_word_embeddings=False, initializer_range=0.3, bos_token_id=1, eos_token_id=2)


def falcon(rng):
    kv = rng.choice([1, 2, 3])
    heads, head_dim = kv * rng.choice([1, 2, 4]), rng.choice([6, 16, 20])
    new = rng.random() < 0.5
    return transformers.FalconConfig(
        vocab_size=rng.choice([97, 320]), hidden_size=heads * head_dim,
        num_attention_heads=heads, num_kv_heads=kv if new else heads, num_hidden_layers=rng.choice([1, 2, 3]),
        new_decoder_architecture=new, multi_query=rng.random() < 0.5,
        parallel_attn=new or rng.random() < 0.5, bias=rng.random() < 0.5,
        num_ln_in_parallel_attn=rng.choice([None, 1, 2]) if new else None,
        ffn_hidden_size=rng.choice([50, 96]), alibi=False, max_position_embeddings=128,
        tie_word_embeddings=rng.random() < 0.7, initializer_range=0.3,
        bos_token_id=1, eos_token_id=2)


# Position of each hook in transformers: (module of a block, input or output, hook).
ROTARY = [("self_attn.q_proj", "out", "attn.hook_q"), ("self_attn.k_proj", "out", "attn.hook_k"),
          ("self_attn.v_proj", "out", "attn.hook_v"), ("self_attn.o_proj", "in", "attn.hook_z"),
          ("self_attn.o_proj", "out", "hook_attn_out"),
          ("post_attention_layernorm", "in", "hook_resid_mid")]
GATED = ROTARY + [("mlp.gate_proj", "out", "mlp.hook_pre"), ("mlp.down_proj", "in", "mlp.hook_post"),
                  ("mlp.down_proj", "out", "hook_mlp_out")]
HOOKS = dict(
    llama=GATED, mistral=GATED, qwen2=GATED, qwen3=GATED, mixtral=ROTARY,
    gpt2=[("attn.c_proj", "in", "attn.hook_z"), ("attn.c_proj", "out", "hook_attn_out"),
          ("ln_2", "in", "hook_resid_mid"), ("mlp.c_fc", "out", "mlp.hook_pre"),
          ("mlp.c_proj", "in", "mlp.hook_post"), ("mlp.c_proj", "out", "hook_mlp_out")],
    gptj=[("attn.q_proj", "out", "attn.hook_q"), ("attn.k_proj", "out", "attn.hook_k"),
          ("attn.v_proj", "out", "attn.hook_v"), ("attn.out_proj", "in", "attn.hook_z"),
          ("attn.out_proj", "out", "hook_attn_out"), ("mlp.fc_in", "out", "mlp.hook_pre"),
          ("mlp.fc_out", "in", "mlp.hook_post"), ("mlp.fc_out", "out", "hook_mlp_out")],
    falcon=[("self_attention.dense", "in", "attn.hook_z"),
            ("self_attention.dense", "out", "hook_attn_out"),
            ("mlp.dense_h_to_4h", "out", "mlp.hook_pre"),
            ("mlp.dense_4h_to_h", "in", "mlp.hook_post"),
            ("mlp.dense_4h_to_h", "out", "hook_mlp_out")],
)

FAMILIES = dict(llama=llama, mistral=mistral, mixtral=mixtral, qwen2=qwen2, qwen3=qwen3,
                gpt2=gpt2, gptj=gptj, falcon=falcon)


def build(config, dtype, folder, rng):
    """Saves a random model with nonzero norms and biases, possibly in shards, and loads it again."""
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.to(dtype).save_pretrained(folder, max_shard_size=rng.choice(["20KB", "1GB"]))
    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager")
    return loaded.eval()


def watch(model, family):
    """Records the tensors at the hooks; returns them and the handles of the hooks."""
    found, handles = {}, []

    def keep(module, side, name):
        def hook(_, inputs, output):
            value = inputs[0] if side == "in" else output
            # Cloned, because some outputs are changed in place later.
            found[name] = (value[0] if isinstance(value, tuple) else value).clone()
        handles.append(module.register_forward_hook(hook))

    base = model.base_model
    blocks = base.layers if hasattr(base, "layers") else base.h
    for i, block in enumerate(blocks):
        for path, side, name in HOOKS[family]:
            keep(block.get_submodule(path), side, f"blocks.{i}.{name}")
    keep(base.norm if hasattr(base, "norm") else base.ln_f, "out", "ln_final.hook_normalized")
    keep(model.get_input_embeddings(), "out", "hook_embed")
    return found, handles


def reference(model, family, tokens, generate):
    with torch.no_grad():
        ids = torch.tensor([tokens])
        watched, handles = watch(model, family)
        out = model(ids, output_hidden_states=True, output_attentions=True)
        for handle in handles:
            handle.remove()
        # Shapes differ in batch and head dimensions, so tensors are compared flat.
        found = {name: value.reshape(len(tokens), -1) for name, value in watched.items()}
        found["logits"] = out.logits[0]
        for i, attention in enumerate(out.attentions):
            found[f"blocks.{i}.attn.hook_pattern"] = attention[0]
            found[f"blocks.{i}.hook_resid_pre"] = out.hidden_states[i][0]
        greedy, margins = [], []
        for _ in range(generate):
            logits = model(torch.tensor([tokens + greedy])).logits[0, -1]
            top = logits.topk(2).values
            margins.append((top[0] - top[1]).item())
            greedy.append(int(logits.argmax()))
    return found, greedy, min(margins)


def djinn(binary, folder, tokens, generate):
    out = folder / "trace.safetensors"
    command = [binary, "trace", "--model", str(folder), "--tokens", ",".join(map(str, tokens)),
               "--capture", "*",
               "--generate", str(generate), "--out", str(out), "--rows", "16"]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode != 0:
        raise RuntimeError(run.stderr.strip())
    return load_file(out)


def compare(binary, family, seed):
    """Returns the largest difference as a share of the tolerance, its hook, and the configuration."""
    rng = random.Random(f"{family}{seed}")
    torch.manual_seed(seed)
    config = FAMILIES[family](rng)
    dtype = rng.choice([torch.float32, torch.float16, torch.bfloat16])
    tokens = [rng.randrange(config.vocab_size) for _ in range(rng.choice([1, 13, 40]))]
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        model = build(config, dtype, folder, rng)
        expect, greedy, margin = reference(model, family, tokens, 6)
        found = djinn(binary, folder, tokens, 6)
        worst, where = 0.0, ""
        for name, tensor in expect.items():
            if found[name].numel() != tensor.numel():
                return 9.9, f"{name}: shape {list(found[name].shape)} instead of {list(tensor.shape)}", None
            found[name] = found[name].reshape(tensor.shape)
            share = ((found[name] - tensor).abs() / (ABSOLUTE + RELATIVE * tensor.abs())).max()
            if not share <= worst:
                worst, where = float(share), name
        scale = float(expect["logits"].abs().max())
        same = found["output_ids"].tolist() == greedy
        if not same and margin > 2 * (ABSOLUTE + RELATIVE * scale):
            return 9.9, f"tokens {found['output_ids'].tolist()} instead of {greedy}", None
        return worst, where, json.loads((folder / "config.json").read_text())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--djinn", default="target/release/djinn")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", choices=sorted(FAMILIES))
    args = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    failed = 0
    print(f"transformers {transformers.__version__}; 1.00 is the tolerance")
    for family in [args.only] if args.only else FAMILIES:
        worst_of_all = 0.0
        for seed in range(args.seeds):
            try:
                worst, where, config = compare(args.djinn, family, seed)
            except Exception as error:  # an error in one checkpoint must not hide the others
                worst, where, config = 9.9, f"{type(error).__name__}: {error}"[:300], None
            worst_of_all = max(worst_of_all, worst)
            if not worst <= 1.0:
                failed += 1
                print(f"  {family} seed {seed}: {worst:.2f} at {where}\n    {config}")
        print(f"{family:10} {args.seeds} checkpoints, largest difference {worst_of_all:.3f}")
    print("FAIL" if failed else "PASS", f"({failed} failed)")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
