//! Falcon: the 7B has multi-query attention and one norm, the 40B and 180B have grouped-query
//! attention and two norms, and old models run attention and MLP in sequence.

use djinn_types::{Activation, DType, NormKind};

use super::common::{even_heads, scale_of};
use crate::config::limits;
use crate::config::rope::rope;
use crate::program::builder::{Builder, LinearShape, NormSpec};
use crate::program::{Buf, Dims, Program};
use crate::{ModelError, RawConfig};

/// Arrangement of attention, MLP and norms in a block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BlockStyle {
    /// Attention, then the MLP, each with its own norm.
    Sequential,
    /// Attention and MLP in parallel on one norm.
    OneNorm,
    /// Attention and MLP in parallel, each with its own norm.
    TwoNorms,
}

struct Falcon {
    dims: Dims,
    norm: NormSpec,
    f: Activation,
    bias: bool,
    style: BlockStyle,
}

pub(super) fn build(config: &RawConfig, dtype: DType) -> Result<Program, ModelError> {
    if config.flag("alibi")?.unwrap_or(false) {
        return Err(config.unsupported(
            "alibi",
            "ALiBi positions are not supported; use a model with rotary embedding",
        ));
    }
    let new = config.flag("new_decoder_architecture")?.unwrap_or(false);
    let dims = dims(config, new)?;
    let rope = rope(config, dims.d_head, dims.context, 10000.0)?;
    let model = Falcon {
        dims,
        norm: NormSpec {
            kind: NormKind::Layer,
            eps: config.epsilon("layer_norm_epsilon", 1e-5)?,
        },
        f: config.activation("activation", "gelu")?,
        bias: config.flag("bias")?.unwrap_or(false),
        style: style(config, new)?,
    };
    let tied = config.flag("tie_word_embeddings")?.unwrap_or(true);
    let mut b = Builder::new(dtype);
    let tokens = b.embed(
        "transformer.word_embeddings.weight",
        dims.vocab,
        dims.d_model,
    );
    for i in 0..dims.blocks {
        model.block(&mut b, i);
    }
    b.start_head(model.norm, "transformer.ln_f", dims.d_model);
    b.unembed(tied.then_some(tokens), &dims, false);
    Ok(b.finish("falcon", dims, Some(rope)))
}

/// Reads the arrangement of a block. The new architecture is always parallel. Only the new
/// architecture can have two norms.
fn style(config: &RawConfig, new: bool) -> Result<BlockStyle, ModelError> {
    let norms = config.size("num_ln_in_parallel_attn", 1..=2)?;
    let parallel = config.flag("parallel_attn")?.unwrap_or(true);
    Ok(match (new, norms, parallel) {
        (true, None | Some(2), _) => BlockStyle::TwoNorms,
        (true, _, _) | (false, _, true) => BlockStyle::OneNorm,
        (false, _, false) => BlockStyle::Sequential,
    })
}

fn dims(config: &RawConfig, new: bool) -> Result<Dims, ModelError> {
    let size = |key: &str, max: usize, default: usize| {
        config
            .size(key, 1..=max)
            .map(|size| size.unwrap_or(default))
    };
    let width = config.spelling(&["n_embed", "hidden_size"]);
    let d_model = size(width, limits::D_MODEL, 4544)?;
    let heads = size("num_attention_heads", limits::HEADS, 71)?;
    let grouped = size("num_kv_heads", limits::HEADS, heads)?;
    let kv_heads = match (new, config.flag("multi_query")?.unwrap_or(true)) {
        (true, _) => grouped,
        (false, true) => 1,
        (false, false) => heads,
    };
    if !heads.is_multiple_of(kv_heads) {
        return Err(config.inconsistent(
            "num_kv_heads",
            format!("{kv_heads} key-value heads do not divide {heads} query heads"),
        ));
    }
    Ok(Dims {
        blocks: size("num_hidden_layers", limits::BLOCKS, 32)?,
        d_model,
        heads,
        kv_heads,
        d_head: even_heads(config, d_model, heads, "num_attention_heads")?,
        d_mlp: size("ffn_hidden_size", limits::D_MLP, 4 * d_model)?,
        vocab: size("vocab_size", limits::VOCAB, 65024)?,
        context: size("max_position_embeddings", limits::CONTEXT, 2048)?,
        experts: 0,
    })
}

impl Falcon {
    fn block(&self, b: &mut Builder, i: usize) {
        let d = &self.dims;
        let name = |part: &str| format!("transformer.h.{i}.{part}");
        let (first, read) = match self.style {
            BlockStyle::TwoNorms => ("ln_attn", Buf::NormMlp),
            BlockStyle::OneNorm | BlockStyle::Sequential => ("input_layernorm", Buf::Norm),
        };
        b.start_block(i);
        b.norm(self.norm, &name(first), d.d_model, Buf::Resid, Buf::Norm);
        if self.style == BlockStyle::TwoNorms {
            b.norm(
                self.norm,
                &name("ln_mlp"),
                d.d_model,
                Buf::Resid,
                Buf::NormMlp,
            );
        }
        self.attention(b, i, &name("self_attention"));
        if self.style == BlockStyle::Sequential {
            b.resid_mid(i);
            let second = name("post_attention_layernorm");
            b.norm(self.norm, &second, d.d_model, Buf::Resid, Buf::Norm);
        }
        let up = LinearShape::linear(d.d_model, d.d_mlp, self.bias);
        let down = LinearShape::linear(d.d_mlp, d.d_model, self.bias);
        let layers = [
            (up, &*name("mlp.dense_h_to_4h")),
            (down, &*name("mlp.dense_4h_to_h")),
        ];
        b.mlp(i, read, self.f, layers);
        if self.style != BlockStyle::Sequential {
            b.add(Buf::AttnOut, Buf::Resid);
        }
        b.resid_post(i);
        b.end_block();
    }

    /// Appends attention. Every style stores groups of queries with their key and value: one
    /// group of all heads (multi-query), one group per head (old), or a number in between (new).
    fn attention(&self, b: &mut Builder, i: usize, name: &str) {
        let d = &self.dims;
        let width = (d.heads + 2 * d.kv_heads) * d.d_head;
        let fused = LinearShape::linear(d.d_model, width, self.bias);
        b.linear(
            fused,
            &format!("{name}.query_key_value"),
            Buf::Norm,
            Buf::Fused,
        );
        b.split_groups(d);
        b.hook_qkv(i);
        b.rotate();
        let output = LinearShape::linear(d.d_model, d.d_model, self.bias);
        b.attend(
            i,
            scale_of(d.d_head),
            None,
            output,
            &format!("{name}.dense"),
        );
    }
}
