//! Identity of a model: a digest that tells it from other models of the same name.
//!
//! The digest covers what a pass computes, the names and shapes of all tensors, and some bytes of
//! each tensor; reading all of a large model would take longer than loading it. Every field is
//! encoded explicitly, with a version in front, so that renaming a field or a variant changes
//! nothing. Releases before 0.2 hashed the `Debug` text of the program instead;
//! [`legacy_digest`](super::legacy_identity::legacy_digest) still computes that digest, so their
//! state folders and saved sessions stay usable.

use std::hash::Hasher;

use djinn_model::{
    Model, Site,
    program::{Buf, Dims, Expert, Op, Program, Rope, TensorId},
};
use djinn_types::{Activation, DType, NormKind, Order, RopeStyle};
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

use super::{
    legacy_identity::legacy_digest,
    tensor_samples::{SAMPLE, read_sample, sample_places},
};
use crate::error::EngineError;

/// Version of the encoding; part of the digest and of its text form.
const VERSION: u64 = 2;

/// Name and digest of a model, as stored with sessions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ModelIdentity {
    pub name: String,
    /// Digest of the current version (`v2-…`), or of a release before 0.2 (digits only).
    pub identity: String,
    /// Digest as releases before 0.2 computed it, where it is known.
    pub legacy: Option<String>,
}

impl ModelIdentity {
    /// Computes the identity of a model.
    pub fn of(model: &Model) -> Result<Self, EngineError> {
        Ok(ModelIdentity {
            name: model.name.clone(),
            identity: digest(model)?,
            legacy: Some(legacy_digest(model)?),
        })
    }

    /// Whether two identities are of the same model. An identity of an old release matches by
    /// its old digest.
    pub fn matches(&self, other: &ModelIdentity) -> bool {
        self.identity == other.identity
            || self.legacy.as_ref() == Some(&other.identity)
            || other.legacy.as_ref() == Some(&self.identity)
    }

    /// Refuses another model's sessions.
    pub fn check(&self, theirs: &ModelIdentity) -> Result<(), EngineError> {
        match self.matches(theirs) {
            true => Ok(()),
            false => Err(EngineError::OtherModel {
                name: self.name.clone(),
                theirs: theirs.name.clone(),
            }),
        }
    }
}

/// Computes the digest of a model: `v2-` and 16 hexadecimal digits.
fn digest(model: &Model) -> Result<String, EngineError> {
    let mut encoder = Encoder(XxHash3_64::new());
    encoder.number(VERSION);
    encoder.program(&model.program);
    let mut sample = [0; SAMPLE];
    for (number, tensor) in model.program.tensors.iter().enumerate() {
        let id = TensorId(number);
        let length = model.weights.extent(id).bytes;
        encoder.text(&tensor.name);
        encoder.numbers(&tensor.shape);
        encoder.tag(dtype_tag(tensor.dtype));
        encoder.number(length);
        for (offset, count) in sample_places(length) {
            let bytes = &mut sample[..count];
            read_sample(model, id, offset, bytes)?;
            encoder.0.write(bytes);
        }
    }
    Ok(format!("v{VERSION}-{:016x}", encoder.0.finish()))
}

/// Writes every field of a program into a digest.
struct Encoder(XxHash3_64);

impl Encoder {
    fn tag(&mut self, tag: u8) {
        self.0.write(&[tag]);
    }

    fn number(&mut self, number: u64) {
        self.0.write(&number.to_le_bytes());
    }

    fn size(&mut self, size: usize) {
        self.number(size as u64);
    }

    fn sizes<const N: usize>(&mut self, sizes: [usize; N]) {
        sizes.into_iter().for_each(|size| self.size(size));
    }

    fn numbers(&mut self, sizes: &[usize]) {
        self.size(sizes.len());
        sizes.iter().for_each(|&size| self.size(size));
    }

    fn float(&mut self, number: f32) {
        self.0.write(&number.to_bits().to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.size(text.len());
        self.0.write(text.as_bytes());
    }

    fn optional(&mut self, size: Option<usize>) {
        match size {
            None => self.tag(0),
            Some(size) => {
                self.tag(1);
                self.size(size);
            }
        }
    }

    fn buf(&mut self, buf: Buf) {
        self.tag(match buf {
            Buf::Resid => 0,
            Buf::Norm => 1,
            Buf::NormMlp => 2,
            Buf::Fused => 3,
            Buf::Q => 4,
            Buf::K => 5,
            Buf::V => 6,
            Buf::Z => 7,
            Buf::AttnOut => 8,
            Buf::Pre => 9,
            Buf::Up => 10,
            Buf::Post => 11,
            Buf::MlpOut => 12,
            Buf::Router => 13,
            Buf::Final => 14,
            Buf::Logits => 15,
        });
    }

    fn program(&mut self, program: &Program) {
        let Dims {
            blocks,
            d_model,
            heads,
            kv_heads,
            d_head,
            d_mlp,
            vocab,
            context,
            experts,
        } = program.dims;
        self.sizes([blocks, d_model, heads, kv_heads, d_head, d_mlp]);
        self.sizes([vocab, context, experts]);
        match &program.rope {
            None => self.tag(0),
            Some(Rope {
                style,
                frequencies,
                scale,
            }) => {
                self.tag(match style {
                    RopeStyle::Halves => 1,
                    RopeStyle::Interleaved => 2,
                });
                self.size(frequencies.len());
                frequencies.iter().for_each(|&x| self.float(x));
                self.float(*scale);
            }
        }
        for op in program.ops() {
            self.op(op);
        }
    }

    fn op(&mut self, op: &Op) {
        match *op {
            Op::Embed { table, to } => self.op_table(1, table, to),
            Op::EmbedPositions { table, to } => self.op_table(2, table, to),
            Op::Norm {
                kind,
                eps,
                width,
                weight,
                bias,
                from,
                to,
            } => {
                self.tag(3);
                self.tag(match kind {
                    NormKind::Rms => 0,
                    NormKind::Layer => 1,
                });
                self.float(eps);
                self.sizes([width, weight.0]);
                self.optional(bias.map(|id| id.0));
                self.bufs([from, to]);
            }
            Op::Linear {
                weight,
                order,
                bias,
                from,
                to,
            } => {
                self.tag(4);
                self.size(weight.0);
                self.tag(match order {
                    Order::OutIn => 0,
                    Order::InOut => 1,
                });
                self.optional(bias.map(|id| id.0));
                self.bufs([from, to]);
            }
            Op::Split {
                from,
                first,
                stride,
                width,
                to,
            } => {
                self.tag(5);
                self.sizes([first, stride, width]);
                self.bufs([from, to]);
            }
            Op::Rope { buf } => {
                self.tag(6);
                self.buf(buf);
            }
            Op::Attend {
                block,
                scale,
                window,
            } => {
                self.tag(7);
                self.size(block);
                self.float(scale);
                self.optional(window);
            }
            Op::Activate { f, from, to } => {
                self.tag(8);
                self.tag(activation_tag(f));
                self.bufs([from, to]);
            }
            Op::Gate { f, gate, up, to } => {
                self.tag(9);
                self.tag(activation_tag(f));
                self.bufs([gate, up, to]);
            }
            Op::Add { from, to } => {
                self.tag(10);
                self.bufs([from, to]);
            }
            Op::Experts { .. } => self.experts(op),
            Op::Hook { site, buf } => {
                self.tag(12);
                self.site(site);
                self.buf(buf);
            }
        }
    }

    fn experts(&mut self, op: &Op) {
        let Op::Experts {
            block,
            from,
            router,
            to,
            chosen,
            renormalise,
            f,
            ref experts,
        } = *op
        else {
            return;
        };
        self.tag(11);
        self.sizes([block, chosen]);
        self.tag(u8::from(renormalise));
        self.tag(activation_tag(f));
        self.bufs([from, router, to]);
        self.size(experts.len());
        for &Expert { gate, up, down } in experts {
            self.sizes([gate.0, up.0, down.0]);
        }
    }

    fn op_table(&mut self, tag: u8, table: TensorId, to: Buf) {
        self.tag(tag);
        self.size(table.0);
        self.buf(to);
    }

    fn bufs<const N: usize>(&mut self, bufs: [Buf; N]) {
        bufs.into_iter().for_each(|buf| self.buf(buf));
    }

    fn site(&mut self, site: Site) {
        let (tag, block) = match site {
            Site::Embed => (0, 0),
            Site::ResidPre(block) => (1, block),
            Site::Q(block) => (2, block),
            Site::K(block) => (3, block),
            Site::V(block) => (4, block),
            Site::Pattern(block) => (5, block),
            Site::Z(block) => (6, block),
            Site::AttnOut(block) => (7, block),
            Site::ResidMid(block) => (8, block),
            Site::MlpPre(block) => (9, block),
            Site::MlpPost(block) => (10, block),
            Site::MlpOut(block) => (11, block),
            Site::ResidPost(block) => (12, block),
            Site::Normalized => (13, 0),
            Site::Logits => (14, 0),
        };
        self.tag(tag);
        self.size(block);
    }
}

fn activation_tag(f: Activation) -> u8 {
    match f {
        Activation::Silu => 0,
        Activation::Gelu => 1,
        Activation::GeluTanh => 2,
        Activation::Relu => 3,
    }
}

fn dtype_tag(dtype: DType) -> u8 {
    match dtype {
        DType::F32 => 0,
        DType::F16 => 1,
        DType::Bf16 => 2,
        DType::I32 => 3,
    }
}

#[cfg(test)]
mod tests {
    use djinn_model::Model;

    use super::ModelIdentity;

    /// Digests of two families, current and as release 0.1 wrote them. A change here orphans
    /// every saved session: raise [`super::VERSION`] and keep accepting the old digest instead.
    const GOLDEN: [(&str, &str, &str); 2] = [
        ("gpt2", "v2-08d6842fc3dd5049", "e1cd32c903af1d3c"),
        ("mixtral", "v2-be854f648264933d", "cf31f48224def564"),
    ];

    fn identity(name: &str) -> ModelIdentity {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/golden/");
        let model = Model::open(&format!("{root}{name}")).expect("a golden model");
        ModelIdentity::of(&model).expect("readable weights")
    }

    #[test]
    fn digests_stay_what_they_are() {
        for (name, current, legacy) in GOLDEN {
            let found = identity(name);
            assert_eq!(found.identity, current, "{name}");
            assert_eq!(found.legacy.as_deref(), Some(legacy), "{name}");
        }
    }

    #[test]
    fn identities_match_by_either_digest() {
        let (gpt2, mixtral) = (identity("gpt2"), identity("mixtral"));
        let old = ModelIdentity {
            identity: gpt2.legacy.clone().expect("a digest of an old release"),
            legacy: None,
            ..gpt2.clone()
        };
        assert!(gpt2.matches(&old) && old.matches(&gpt2) && gpt2.matches(&gpt2));
        assert!(!mixtral.matches(&old) && !mixtral.matches(&gpt2));
        assert!(gpt2.check(&mixtral).is_err());
    }
}
