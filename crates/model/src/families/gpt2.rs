//! GPT-2: learned positions, layer norms, one matrix for queries, keys and values, and all
//! matrices stored as `[in, out]`.

use djinn_types::{Activation, DType, NormKind};

use super::common::{even_heads, scale_of};
use crate::config::limits;
use crate::program::builder::{Builder, LinearShape, NormSpec};
use crate::program::{Buf, Dims, Op, Program};
use crate::{ModelError, RawConfig};

struct Gpt2 {
    dims: Dims,
    norm: NormSpec,
    f: Activation,
    scale: f32,
    /// Whether block `i` divides its attention scores by `i + 1`.
    scale_by_block: bool,
    tied: bool,
}

pub(super) fn build(config: &RawConfig, dtype: DType) -> Result<Program, ModelError> {
    if config.flag("add_cross_attention")?.unwrap_or(false) {
        return Err(config.unsupported(
            "add_cross_attention",
            "cross-attention is not supported; use a decoder-only model",
        ));
    }
    let dims = dims(config, [50257, 1024, 768, 12, 12])?;
    let scaled = config.flag("scale_attn_weights")?.unwrap_or(true);
    let model = Gpt2 {
        dims,
        norm: NormSpec {
            kind: NormKind::Layer,
            eps: config.epsilon("layer_norm_epsilon", 1e-5)?,
        },
        f: config.activation("activation_function", "gelu_new")?,
        scale: if scaled { scale_of(dims.d_head) } else { 1.0 },
        scale_by_block: config
            .flag("scale_attn_by_inverse_layer_idx")?
            .unwrap_or(false),
        tied: config.flag("tie_word_embeddings")?.unwrap_or(true),
    };
    Ok(model.build(dtype))
}

/// Reads the sizes by the names that GPT-2 and GPT-J share. `defaults` holds vocabulary,
/// context, width, blocks and heads.
pub(super) fn dims(config: &RawConfig, defaults: [usize; 5]) -> Result<Dims, ModelError> {
    let [vocab, context, d_model, blocks, heads] = defaults;
    let size = |keys: &[&str], max: usize, default: usize| {
        let size = config.size(config.spelling(keys), 1..=max);
        size.map(|size| size.unwrap_or(default))
    };
    let heads_keys = ["n_head", "num_attention_heads"];
    let d_model = size(&["n_embd", "hidden_size"], limits::D_MODEL, d_model)?;
    let heads = size(&heads_keys, limits::HEADS, heads)?;
    let positions = ["n_positions", "n_ctx", "max_position_embeddings"];
    Ok(Dims {
        blocks: size(&["n_layer", "num_hidden_layers"], limits::BLOCKS, blocks)?,
        d_model,
        heads,
        kv_heads: heads,
        d_head: even_heads(config, d_model, heads, config.spelling(&heads_keys))?,
        d_mlp: size(&["n_inner"], limits::D_MLP, 4 * d_model)?,
        vocab: size(&["vocab_size"], limits::VOCAB, vocab)?,
        context: size(&positions, limits::CONTEXT, context)?,
        experts: 0,
    })
}

impl Gpt2 {
    fn build(&self, dtype: DType) -> Program {
        let d = &self.dims;
        let mut b = Builder::new(dtype);
        let tokens = b.embed("transformer.wte.weight", d.vocab, d.d_model);
        let table = b.table("transformer.wpe.weight", d.context, d.d_model);
        let to = Buf::Resid;
        b.op(Op::EmbedPositions { table, to });
        for i in 0..d.blocks {
            self.block(&mut b, i);
        }
        b.start_head(self.norm, "transformer.ln_f", d.d_model);
        b.unembed(self.tied.then_some(tokens), d, false);
        b.finish("gpt2", *d, None)
    }

    fn block(&self, b: &mut Builder, i: usize) {
        let d = &self.dims;
        let name = |part: &str| format!("transformer.h.{i}.{part}");
        b.start_block(i);
        b.norm(self.norm, &name("ln_1"), d.d_model, Buf::Resid, Buf::Norm);
        let fused = LinearShape::conv(d.d_model, 3 * d.d_model);
        b.linear(fused, &name("attn.c_attn"), Buf::Norm, Buf::Fused);
        for (part, to) in [Buf::Q, Buf::K, Buf::V].into_iter().enumerate() {
            b.op(Op::Split {
                from: Buf::Fused,
                first: part * d.d_model,
                stride: d.d_model,
                width: d.d_model,
                to,
            });
        }
        b.hook_qkv(i);
        let scale = match self.scale_by_block {
            true => self.scale / (i + 1) as f32,
            false => self.scale,
        };
        let output = LinearShape::conv(d.d_model, d.d_model);
        b.attend(i, scale, None, output, &name("attn.c_proj"));
        b.resid_mid(i);
        b.norm(self.norm, &name("ln_2"), d.d_model, Buf::Resid, Buf::Norm);
        let layers = [
            (LinearShape::conv(d.d_model, d.d_mlp), &*name("mlp.c_fc")),
            (LinearShape::conv(d.d_mlp, d.d_model), &*name("mlp.c_proj")),
        ];
        b.mlp(i, Buf::Norm, self.f, layers);
        b.resid_post(i);
        b.end_block();
    }
}
