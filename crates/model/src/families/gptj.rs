//! GPT-J: attention and MLP in parallel on one norm, and rotary embedding of neighbouring
//! elements in part of each head.

use djinn_types::{Activation, DType, NormKind, RopeStyle};

use super::common::scale_of;
use super::gpt2::dims;
use crate::config::rope::plain;
use crate::program::builder::{Builder, LinearShape, NormSpec};
use crate::program::{Buf, Dims, Program, Rope};
use crate::{ModelError, RawConfig};

struct GptJ {
    dims: Dims,
    norm: NormSpec,
    f: Activation,
}

pub(super) fn build(config: &RawConfig, dtype: DType) -> Result<Program, ModelError> {
    let model = GptJ {
        dims: dims(config, [50400, 2048, 4096, 28, 16])?,
        norm: NormSpec {
            kind: NormKind::Layer,
            eps: config.epsilon("layer_norm_epsilon", 1e-5)?,
        },
        f: config.activation("activation_function", "gelu_new")?,
    };
    let tied = config.flag("tie_word_embeddings")?.unwrap_or(false);
    let rope = Rope {
        style: RopeStyle::Interleaved,
        frequencies: plain(rotary_dim(config, model.dims.d_head)?, 10000.0),
        scale: 1.0,
    };
    let d = model.dims;
    let mut b = Builder::new(dtype);
    let tokens = b.embed("transformer.wte.weight", d.vocab, d.d_model);
    for i in 0..d.blocks {
        model.block(&mut b, i);
    }
    b.start_head(model.norm, "transformer.ln_f", d.d_model);
    b.unembed(tied.then_some(tokens), &d, true);
    Ok(b.finish("gptj", d, Some(rope)))
}

fn rotary_dim(config: &RawConfig, d_head: usize) -> Result<usize, ModelError> {
    const KEY: &str = "rotary_dim";
    // In transformers `null` rotates whole heads, and a missing key means 64.
    let default = if config.has(KEY) { d_head } else { 64 };
    let dim = config.size(KEY, 2..=d_head)?.unwrap_or(default);
    if dim % 2 == 0 && dim <= d_head {
        Ok(dim)
    } else {
        let expected = format!("an even number of at most {d_head}, the size of a head");
        Err(config.unexpected(KEY, expected, dim))
    }
}

impl GptJ {
    fn block(&self, b: &mut Builder, i: usize) {
        let d = &self.dims;
        let name = |part: &str| format!("transformer.h.{i}.{part}");
        let square = LinearShape::linear(d.d_model, d.d_model, false);
        b.start_block(i);
        b.norm(self.norm, &name("ln_1"), d.d_model, Buf::Resid, Buf::Norm);
        for (part, to) in [("q", Buf::Q), ("k", Buf::K), ("v", Buf::V)] {
            b.linear(square, &name(&format!("attn.{part}_proj")), Buf::Norm, to);
        }
        b.hook_qkv(i);
        b.rotate();
        b.attend(i, scale_of(d.d_head), None, square, &name("attn.out_proj"));
        let layers = [
            (
                LinearShape::linear(d.d_model, d.d_mlp, true),
                &*name("mlp.fc_in"),
            ),
            (
                LinearShape::linear(d.d_mlp, d.d_model, true),
                &*name("mlp.fc_out"),
            ),
        ];
        b.mlp(i, Buf::Norm, self.f, layers);
        b.add(Buf::AttnOut, Buf::Resid);
        b.resid_post(i);
        b.end_block();
    }
}
