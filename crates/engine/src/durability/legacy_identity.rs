//! The model digest of releases before 0.2, which hashed the `Debug` text of the program. This
//! file writes that text out, so that renames elsewhere do not change the digest.

use std::{fmt::Write, hash::Hasher};

use djinn_model::{
    Model, Site,
    program::{Buf, Dims, Expert, Op, Rope, TensorId},
};
use djinn_types::{Activation, DType, NormKind, Order, RopeStyle};
use twox_hash::XxHash3_64;

use super::tensor_samples::{SAMPLE, read_sample, sample_places};
use crate::error::EngineError;

/// Computes the digest of a model as releases before 0.2 did: 16 hexadecimal digits.
pub(super) fn legacy_digest(model: &Model) -> Result<String, EngineError> {
    let mut hash = XxHash3_64::new();
    let program = &model.program;
    let head = format!("{} {}", dims(&program.dims), rope(program.rope.as_ref()));
    hash.write(head.as_bytes());
    for op in program.ops() {
        hash.write(op_text(op).as_bytes());
    }
    let mut sample = [0; SAMPLE];
    for (number, tensor) in program.tensors.iter().enumerate() {
        let id = TensorId(number);
        let length = model.weights.extent(id).bytes;
        hash.write(tensor.name.as_bytes());
        let dtype = match tensor.dtype {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::Bf16 => "bf16",
            DType::I32 => "i32",
        };
        hash.write(format!("{:?} {dtype} {length}", tensor.shape).as_bytes());
        for (offset, count) in sample_places(length) {
            let bytes = &mut sample[..count];
            read_sample(model, id, offset, bytes)?;
            hash.write(bytes);
        }
    }
    Ok(format!("{:016x}", hash.finish()))
}

fn dims(dims: &Dims) -> String {
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
    } = dims;
    format!(
        "Dims {{ blocks: {blocks}, d_model: {d_model}, heads: {heads}, kv_heads: {kv_heads}, \
         d_head: {d_head}, d_mlp: {d_mlp}, vocab: {vocab}, context: {context}, \
         experts: {experts} }}"
    )
}

fn rope(rope: Option<&Rope>) -> String {
    let Some(Rope {
        style,
        frequencies,
        scale,
    }) = rope
    else {
        return "None".to_owned();
    };
    let style = match style {
        RopeStyle::Halves => "Halves",
        RopeStyle::Interleaved => "Interleaved",
    };
    format!("Some(Rope {{ style: {style}, frequencies: {frequencies:?}, scale: {scale:?} }})")
}

fn op_text(op: &Op) -> String {
    match *op {
        Op::Embed { table, to } => format!("Embed {{ table: {}, to: {} }}", id(table), buf(to)),
        Op::EmbedPositions { table, to } => {
            format!("EmbedPositions {{ table: {}, to: {} }}", id(table), buf(to))
        }
        Op::Norm {
            kind,
            eps,
            width,
            weight,
            bias,
            from,
            to,
        } => {
            let kind = match kind {
                NormKind::Rms => "Rms",
                NormKind::Layer => "Layer",
            };
            format!(
                "Norm {{ kind: {kind}, eps: {eps:?}, width: {width}, weight: {}, bias: {}, \
                 from: {}, to: {} }}",
                id(weight),
                optional_id(bias),
                buf(from),
                buf(to)
            )
        }
        Op::Linear {
            weight,
            order,
            bias,
            from,
            to,
        } => {
            let order = match order {
                Order::OutIn => "OutIn",
                Order::InOut => "InOut",
            };
            format!(
                "Linear {{ weight: {}, order: {order}, bias: {}, from: {}, to: {} }}",
                id(weight),
                optional_id(bias),
                buf(from),
                buf(to)
            )
        }
        Op::Split {
            from,
            first,
            stride,
            width,
            to,
        } => format!(
            "Split {{ from: {}, first: {first}, stride: {stride}, width: {width}, to: {} }}",
            buf(from),
            buf(to)
        ),
        Op::Rope { buf: at } => format!("Rope {{ buf: {} }}", buf(at)),
        Op::Attend {
            block,
            scale,
            window,
        } => format!("Attend {{ block: {block}, scale: {scale:?}, window: {window:?} }}"),
        Op::Activate { f, from, to } => format!(
            "Activate {{ f: {}, from: {}, to: {} }}",
            activation(f),
            buf(from),
            buf(to)
        ),
        Op::Gate { f, gate, up, to } => format!(
            "Gate {{ f: {}, gate: {}, up: {}, to: {} }}",
            activation(f),
            buf(gate),
            buf(up),
            buf(to)
        ),
        Op::Add { from, to } => format!("Add {{ from: {}, to: {} }}", buf(from), buf(to)),
        Op::Experts { .. } => experts_text(op),
        Op::Hook { site, buf: at } => {
            format!("Hook {{ site: {}, buf: {} }}", site_text(site), buf(at))
        }
    }
}

fn experts_text(op: &Op) -> String {
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
        return String::new();
    };
    let mut text = format!(
        "Experts {{ block: {block}, from: {}, router: {}, to: {}, chosen: {chosen}, \
         renormalise: {renormalise}, f: {}, experts: [",
        buf(from),
        buf(router),
        buf(to),
        activation(f)
    );
    for (number, &Expert { gate, up, down }) in experts.iter().enumerate() {
        let comma = if number == 0 { "" } else { ", " };
        let (gate, up, down) = (id(gate), id(up), id(down));
        let _ = write!(
            text,
            "{comma}Expert {{ gate: {gate}, up: {up}, down: {down} }}"
        );
    }
    text.push_str("] }");
    text
}

fn id(id: TensorId) -> String {
    format!("TensorId({})", id.0)
}

fn optional_id(of: Option<TensorId>) -> String {
    of.map_or_else(|| "None".to_owned(), |of| format!("Some({})", id(of)))
}

fn activation(f: Activation) -> &'static str {
    match f {
        Activation::Silu => "Silu",
        Activation::Gelu => "Gelu",
        Activation::GeluTanh => "GeluTanh",
        Activation::Relu => "Relu",
    }
}

fn buf(buf: Buf) -> &'static str {
    match buf {
        Buf::Resid => "Resid",
        Buf::Norm => "Norm",
        Buf::NormMlp => "NormMlp",
        Buf::Fused => "Fused",
        Buf::Q => "Q",
        Buf::K => "K",
        Buf::V => "V",
        Buf::Z => "Z",
        Buf::AttnOut => "AttnOut",
        Buf::Pre => "Pre",
        Buf::Up => "Up",
        Buf::Post => "Post",
        Buf::MlpOut => "MlpOut",
        Buf::Router => "Router",
        Buf::Final => "Final",
        Buf::Logits => "Logits",
    }
}

fn site_text(site: Site) -> String {
    let (name, block) = match site {
        Site::Embed => return "Embed".to_owned(),
        Site::Normalized => return "Normalized".to_owned(),
        Site::Logits => return "Logits".to_owned(),
        Site::ResidPre(block) => ("ResidPre", block),
        Site::Q(block) => ("Q", block),
        Site::K(block) => ("K", block),
        Site::V(block) => ("V", block),
        Site::Pattern(block) => ("Pattern", block),
        Site::Z(block) => ("Z", block),
        Site::AttnOut(block) => ("AttnOut", block),
        Site::ResidMid(block) => ("ResidMid", block),
        Site::MlpPre(block) => ("MlpPre", block),
        Site::MlpPost(block) => ("MlpPost", block),
        Site::MlpOut(block) => ("MlpOut", block),
        Site::ResidPost(block) => ("ResidPost", block),
    };
    format!("{name}({block})")
}
