//! Architecture that Llama, Mistral, Mixtral, Qwen2 and Qwen3 share: RMS norms, rotary
//! embedding, a gated MLP, and the same names in configuration and checkpoint.

use djinn_types::{Activation, DType, NormKind};

use super::common::{check_attention, even_heads, scale_of};
use crate::config::limits;
use crate::config::rope::rope;
use crate::program::builder::{Builder, LinearShape, NormSpec};
use crate::program::{Buf, Dims, Expert, Op, Program, Rope, SegmentKind, Site};
use crate::{ModelError, RawConfig};

/// Values that transformers assumes for keys missing from a configuration.
pub(super) struct GatedDefaults {
    pub vocab: usize,
    pub d_mlp: usize,
    /// Number of key-value heads; `None` means as many as query heads.
    pub kv_heads: Option<usize>,
    /// Number of elements in a head; `None` means an even share of the model's width.
    pub d_head: Option<usize>,
    pub context: usize,
    pub eps: f64,
    pub theta: f64,
}

/// Settings of a model with this architecture.
pub(super) struct GatedModel {
    pub family: &'static str,
    pub dims: Dims,
    pub norm: NormSpec,
    pub f: Activation,
    pub rope: Rope,
    pub tied: bool,
    pub qkv_bias: bool,
    pub o_bias: bool,
    pub mlp_bias: bool,
    /// Whether the queries and keys of each head are normed.
    pub qk_norm: bool,
    /// Sliding window of each block.
    pub windows: Vec<Option<usize>>,
    /// Number of experts selected for a row; 0 for a dense MLP.
    pub chosen: usize,
}

impl GatedModel {
    /// Reads the settings that all of these families share. The result has no biases, no windows
    /// and no experts.
    pub fn read(
        family: &'static str,
        config: &RawConfig,
        defaults: &GatedDefaults,
    ) -> Result<Self, ModelError> {
        let dims = dims(config, defaults)?;
        let rope = rope(config, dims.d_head, dims.context, defaults.theta)?;
        Ok(GatedModel {
            family,
            dims,
            norm: NormSpec {
                kind: NormKind::Rms,
                eps: config.epsilon("rms_norm_eps", defaults.eps)?,
            },
            f: config.activation("hidden_act", "silu")?,
            rope,
            tied: config.flag("tie_word_embeddings")?.unwrap_or(false),
            qkv_bias: false,
            o_bias: false,
            mlp_bias: false,
            qk_norm: false,
            windows: vec![None; dims.blocks],
            chosen: 0,
        })
    }

    /// Sets the same window in every block. A window as wide as the context has no effect.
    pub fn window(&mut self, window: Option<usize>) {
        let window = window.filter(|&w| w < self.dims.context);
        self.windows = vec![window; self.dims.blocks];
    }

    /// Builds the program.
    pub fn build(&self, dtype: DType) -> Program {
        let d = &self.dims;
        let mut b = Builder::new(dtype);
        let table = b.embed("model.embed_tokens.weight", d.vocab, d.d_model);
        for i in 0..d.blocks {
            let name = format!("model.layers.{i}");
            b.start_block(i);
            self.attention(&mut b, i, &name);
            b.resid_mid(i);
            let norm = format!("{name}.post_attention_layernorm");
            b.norm(self.norm, &norm, d.d_model, Buf::Resid, Buf::Norm);
            if d.experts > 0 {
                self.experts(&mut b, i, &name);
            } else {
                self.mlp(&mut b, i, &name);
            }
            b.hook(Site::MlpOut(i), Buf::MlpOut);
            b.resid_post(i);
            b.end_block();
        }
        b.start_head(self.norm, "model.norm", d.d_model);
        b.unembed(self.tied.then_some(table), d, false);
        b.finish(self.family, *d, Some(self.rope.clone()))
    }

    fn attention(&self, b: &mut Builder, i: usize, name: &str) {
        let d = &self.dims;
        let (queries, keys) = (d.heads * d.d_head, d.kv_heads * d.d_head);
        let norm = format!("{name}.input_layernorm");
        b.norm(self.norm, &norm, d.d_model, Buf::Resid, Buf::Norm);
        for (part, width, to) in [
            ("q", queries, Buf::Q),
            ("k", keys, Buf::K),
            ("v", keys, Buf::V),
        ] {
            let shape = LinearShape::linear(d.d_model, width, self.qkv_bias);
            b.linear(
                shape,
                &format!("{name}.self_attn.{part}_proj"),
                Buf::Norm,
                to,
            );
        }
        b.hook_qkv(i);
        if self.qk_norm {
            for (part, buf) in [("q", Buf::Q), ("k", Buf::K)] {
                let norm = format!("{name}.self_attn.{part}_norm");
                b.norm(self.norm, &norm, d.d_head, buf, buf);
            }
        }
        b.rotate();
        let output = LinearShape::linear(queries, d.d_model, self.o_bias);
        let o_proj = format!("{name}.self_attn.o_proj");
        b.attend(i, scale_of(d.d_head), self.windows[i], output, &o_proj);
    }

    fn mlp(&self, b: &mut Builder, i: usize, name: &str) {
        let d = &self.dims;
        let up = LinearShape::linear(d.d_model, d.d_mlp, self.mlp_bias);
        let down = LinearShape::linear(d.d_mlp, d.d_model, self.mlp_bias);
        b.linear(up, &format!("{name}.mlp.gate_proj"), Buf::Norm, Buf::Pre);
        b.hook(Site::MlpPre(i), Buf::Pre);
        b.linear(up, &format!("{name}.mlp.up_proj"), Buf::Norm, Buf::Up);
        b.op(Op::Gate {
            f: self.f,
            gate: Buf::Pre,
            up: Buf::Up,
            to: Buf::Post,
        });
        b.hook(Site::MlpPost(i), Buf::Post);
        b.linear(
            down,
            &format!("{name}.mlp.down_proj"),
            Buf::Post,
            Buf::MlpOut,
        );
    }

    /// Appends a mixture of experts. Every expert is a segment of its own, because a pass needs
    /// only the experts that the router selects.
    fn experts(&self, b: &mut Builder, i: usize, name: &str) {
        let d = &self.dims;
        let router = LinearShape::linear(d.d_model, d.experts, false);
        let moe = format!("{name}.block_sparse_moe");
        b.linear(router, &format!("{moe}.gate"), Buf::Norm, Buf::Router);
        let experts = (0..d.experts)
            .map(|expert| {
                b.segment(SegmentKind::Expert { block: i, expert });
                let name = |part: &str| format!("{moe}.experts.{expert}.{part}.weight");
                Expert {
                    gate: b.matrix(name("w1"), d.d_mlp, d.d_model),
                    up: b.matrix(name("w3"), d.d_mlp, d.d_model),
                    down: b.matrix(name("w2"), d.d_model, d.d_mlp),
                }
            })
            .collect();
        b.op(Op::Experts {
            block: i,
            from: Buf::Norm,
            router: Buf::Router,
            to: Buf::MlpOut,
            chosen: self.chosen,
            renormalise: true,
            f: self.f,
            experts,
        });
    }
}

/// Reads and checks the sizes.
fn dims(config: &RawConfig, defaults: &GatedDefaults) -> Result<Dims, ModelError> {
    let size = |key: &str, max: usize, default: usize| {
        config
            .size(key, 1..=max)
            .map(|size| size.unwrap_or(default))
    };
    let d_model = size("hidden_size", limits::D_MODEL, 4096)?;
    let heads = size("num_attention_heads", limits::HEADS, 32)?;
    let kv_heads = kv_heads(config, heads, defaults.kv_heads)?;
    let d_head = match config
        .size("head_dim", 1..=limits::D_HEAD)?
        .or(defaults.d_head)
    {
        Some(d_head) => d_head,
        None => even_heads(config, d_model, heads, "num_attention_heads")?,
    };
    check_attention(config, heads, d_head, "num_attention_heads")?;
    Ok(Dims {
        blocks: size("num_hidden_layers", limits::BLOCKS, 32)?,
        d_model,
        heads,
        kv_heads,
        d_head,
        d_mlp: size("intermediate_size", limits::D_MLP, defaults.d_mlp)?,
        vocab: size("vocab_size", limits::VOCAB, defaults.vocab)?,
        context: size("max_position_embeddings", limits::CONTEXT, defaults.context)?,
        experts: 0,
    })
}

/// Reads the number of key-value heads. `null` means as many as query heads; a missing key
/// means the default of the family.
fn kv_heads(config: &RawConfig, heads: usize, default: Option<usize>) -> Result<usize, ModelError> {
    const KEY: &str = "num_key_value_heads";
    let kv_heads = match config.size(KEY, 1..=limits::HEADS)? {
        Some(given) => given,
        None if config.has(KEY) => heads,
        None => default.unwrap_or(heads),
    };
    if heads.is_multiple_of(kv_heads) {
        Ok(kv_heads)
    } else {
        Err(config.inconsistent(
            KEY,
            format!("{kv_heads} key-value heads do not divide {heads} query heads"),
        ))
    }
}

/// Reads `sliding_window`; a missing key means the default of the family.
pub(super) fn sliding_window(
    config: &RawConfig,
    default: Option<usize>,
) -> Result<Option<usize>, ModelError> {
    const KEY: &str = "sliding_window";
    let given = config.size(KEY, 1..=limits::CONTEXT)?;
    Ok(if config.has(KEY) { given } else { default })
}

/// Reads the window of each block from Qwen's keys: `layer_types`, or `max_window_layers`, the
/// first block that has a window.
pub(super) fn qwen_windows(
    config: &RawConfig,
    dims: &Dims,
) -> Result<Vec<Option<usize>>, ModelError> {
    const TYPES: &str = "layer_types";
    let window = if config.flag("use_sliding_window")?.unwrap_or(false) {
        sliding_window(config, Some(4096))?.filter(|&w| w < dims.context)
    } else {
        None
    };
    let Some(types) = config.texts(TYPES)? else {
        let first = config
            .size("max_window_layers", 0..=usize::MAX)?
            .unwrap_or(28);
        return Ok((0..dims.blocks)
            .map(|i| window.filter(|_| i >= first))
            .collect());
    };
    if types.len() != dims.blocks {
        let expected = format!("{} entries, one for each layer", dims.blocks);
        return Err(config.unexpected(TYPES, expected, types.len()));
    }
    types
        .into_iter()
        .map(|kind| match kind {
            "full_attention" => Ok(None),
            "sliding_attention" => Ok(window),
            other => {
                let problem = format!(
                    "layer type '{other}' is not supported; supported types: full_attention, \
                     sliding_attention"
                );
                Err(config.unsupported(TYPES, problem))
            }
        })
        .collect()
}
