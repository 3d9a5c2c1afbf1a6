//! Names of hooks, as in TransformerLens.

use std::fmt;

use super::dims::Dims;

/// Name of a hook: a point of the model at which activations can be read and changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Site {
    /// `hook_embed`: token embedding, before positions are added.
    Embed,
    /// `blocks.{i}.hook_resid_pre`: residual at the start of a block.
    ResidPre(usize),
    /// `blocks.{i}.attn.hook_q`: queries before any rotation.
    Q(usize),
    /// `blocks.{i}.attn.hook_k`: keys before any rotation.
    K(usize),
    /// `blocks.{i}.attn.hook_v`: values.
    V(usize),
    /// `blocks.{i}.attn.hook_pattern`: attention weights after the softmax.
    Pattern(usize),
    /// `blocks.{i}.attn.hook_z`: output of each head before the output projection.
    Z(usize),
    /// `blocks.{i}.hook_attn_out`: output of attention.
    AttnOut(usize),
    /// `blocks.{i}.hook_resid_mid`: residual between attention and MLP.
    ResidMid(usize),
    /// `blocks.{i}.mlp.hook_pre`: hidden layer of the MLP before its activation.
    MlpPre(usize),
    /// `blocks.{i}.mlp.hook_post`: hidden layer of the MLP after its activation.
    MlpPost(usize),
    /// `blocks.{i}.hook_mlp_out`: output of the MLP.
    MlpOut(usize),
    /// `blocks.{i}.hook_resid_post`: residual at the end of a block.
    ResidPost(usize),
    /// `ln_final.hook_normalized`: output of the final norm.
    Normalized,
    /// `logits`: output of the model.
    Logits,
}

/// Shape of the values at a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SiteLayout {
    /// One vector per position, `[pos, width]`.
    Rows(usize),
    /// One vector per position and head, `[pos, head, d_head]`.
    Heads(usize, usize),
    /// One number per head, query and key, `[head, query, key]`.
    Pattern(usize),
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (block, rest) = match *self {
            Site::Embed => return f.write_str("hook_embed"),
            Site::Normalized => return f.write_str("ln_final.hook_normalized"),
            Site::Logits => return f.write_str("logits"),
            Site::ResidPre(i) => (i, "hook_resid_pre"),
            Site::Q(i) => (i, "attn.hook_q"),
            Site::K(i) => (i, "attn.hook_k"),
            Site::V(i) => (i, "attn.hook_v"),
            Site::Pattern(i) => (i, "attn.hook_pattern"),
            Site::Z(i) => (i, "attn.hook_z"),
            Site::AttnOut(i) => (i, "hook_attn_out"),
            Site::ResidMid(i) => (i, "hook_resid_mid"),
            Site::MlpPre(i) => (i, "mlp.hook_pre"),
            Site::MlpPost(i) => (i, "mlp.hook_post"),
            Site::MlpOut(i) => (i, "hook_mlp_out"),
            Site::ResidPost(i) => (i, "hook_resid_post"),
        };
        write!(f, "blocks.{block}.{rest}")
    }
}

impl Site {
    /// Returns the block that the hook belongs to, or `None` for hooks outside blocks.
    pub fn block(self) -> Option<usize> {
        match self {
            Site::Embed | Site::Normalized | Site::Logits => None,
            Site::ResidPre(block)
            | Site::Q(block)
            | Site::K(block)
            | Site::V(block)
            | Site::Pattern(block)
            | Site::Z(block)
            | Site::AttnOut(block)
            | Site::ResidMid(block)
            | Site::MlpPre(block)
            | Site::MlpPost(block)
            | Site::MlpOut(block)
            | Site::ResidPost(block) => Some(block),
        }
    }

    /// Returns the shape of the values at this hook in a model of the given sizes.
    pub fn layout(self, dims: &Dims) -> SiteLayout {
        match self {
            Site::Q(_) | Site::Z(_) => SiteLayout::Heads(dims.heads, dims.d_head),
            Site::K(_) | Site::V(_) => SiteLayout::Heads(dims.kv_heads, dims.d_head),
            Site::Pattern(_) => SiteLayout::Pattern(dims.heads),
            Site::MlpPre(_) | Site::MlpPost(_) => SiteLayout::Rows(dims.d_mlp),
            Site::Logits => SiteLayout::Rows(dims.vocab),
            _ => SiteLayout::Rows(dims.d_model),
        }
    }
}
