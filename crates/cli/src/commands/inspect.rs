//! `djinn inspect`

use std::collections::BTreeMap;

use djinn_model::{
    Model,
    program::{Program, SegmentKind},
};
use djinn_terminal::{Failure, say, say_json};
use djinn_types::{DType, KvDtype, Size, text::table};
use djinn_weights::weights_dtype;
use serde_json::{Value, json};

use crate::{args::InspectArgs, bundled};

/// Number and bytes of the segments of one kind.
#[derive(Default)]
struct SegmentCount {
    count: usize,
    bytes: u64,
}

/// Shows the dimensions, tensors and hooks of a model.
pub fn inspect(args: &InspectArgs) -> Result<(), Failure> {
    let reference = args.model.as_deref().or(args.model_flag.as_deref());
    let model = bundled::open(reference)?;
    if args.json {
        say_json(&to_json(&model))
    } else {
        say(&to_text(&model))
    }
}

fn kind_name(kind: SegmentKind) -> &'static str {
    match kind {
        SegmentKind::Embedding => "embedding",
        SegmentKind::Block(_) => "block",
        SegmentKind::Expert { .. } => "expert",
        SegmentKind::Head => "head",
    }
}

/// Segments by kind, in order of the pass.
fn kinds(program: &Program) -> Vec<(&'static str, SegmentCount)> {
    let mut kinds: Vec<(&'static str, SegmentCount)> = Vec::new();
    for share in program.segment_shares() {
        let name = kind_name(share.kind);
        let at = kinds
            .iter()
            .position(|(n, _)| *n == name)
            .unwrap_or_else(|| {
                kinds.push((name, SegmentCount::default()));
                kinds.len() - 1
            });
        kinds[at].1.count += 1;
        kinds[at].1.bytes += share.bytes;
    }
    kinds
}

fn to_text(model: &Model) -> String {
    let p = &model.program;
    let d = &p.dims;
    let dtypes: Vec<String> = p
        .dtypes()
        .iter()
        .map(|share| format!("{} {}", share.dtype, Size(share.bytes)))
        .collect();
    let kv = |dtype| format!("{} per token in {dtype}", Size(p.kv_bytes_per_token(dtype)));
    let auto = KvDtype::Auto.resolve(weights_dtype(p));
    let text = match (&model.tokenizer, &model.chat) {
        (None, _) => "no tokenizer: give prompts as --tokens",
        (Some(_), None) => "tokenizer",
        (Some(_), Some(_)) => "tokenizer, chat template",
    };
    let mut facts = vec![
        (
            "weights",
            format!("{} ({})", Size(p.weight_bytes()), dtypes.join(", ")),
        ),
        (
            "blocks",
            format!("{} of width {}, MLP {}", d.blocks, d.d_model, d.d_mlp),
        ),
        (
            "attention",
            format!(
                "{} heads of {}, {} key-value heads",
                d.heads, d.d_head, d.kv_heads
            ),
        ),
        ("vocabulary", format!("{} tokens", grouped(d.vocab as u64))),
        (
            "context",
            format!("{} positions", grouped(d.context as u64)),
        ),
        ("KV", format!("{}, {}", kv(auto), kv(DType::F32))),
        ("text", text.to_owned()),
    ];
    if d.experts > 0 {
        facts.insert(3, ("experts", format!("{} per block", d.experts)));
    }
    let facts: String = facts
        .into_iter()
        .map(|(name, fact)| format!("  {name:<10} {fact}\n"))
        .collect();
    let rows: Vec<Vec<String>> = kinds(p)
        .into_iter()
        .map(|(name, kind)| {
            let each = kind.bytes / kind.count as u64;
            vec![
                name.to_owned(),
                kind.count.to_string(),
                Size(each).to_string(),
                Size(kind.bytes).to_string(),
            ]
        })
        .collect();
    let segments = table(&["segments", "count", "each", "total"], &rows);
    let parameters = grouped(p.parameters());
    format!(
        "{} · {} · {parameters} parameters\n{facts}\n{segments}",
        model.name, p.family
    )
}

/// Number with commas between groups of three digits: 6,738,415,616.
fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let first = digits.len() % 3;
    let mut out = digits[..first].to_owned();
    for group in digits.as_bytes()[first..].chunks(3) {
        if !out.is_empty() {
            out.push(',');
        }
        out.extend(group.iter().map(|&b| b as char));
    }
    out
}

fn to_json(model: &Model) -> Value {
    let p = &model.program;
    let d = &p.dims;
    let dtypes: BTreeMap<String, u64> = p
        .dtypes()
        .iter()
        .map(|share| (share.dtype.to_string(), share.bytes))
        .collect();
    let segments: Vec<Value> = p
        .segment_shares()
        .iter()
        .map(|share| {
            let (block, expert) = match share.kind {
                SegmentKind::Block(block) => (Some(block), None),
                SegmentKind::Expert { block, expert } => (Some(block), Some(expert)),
                SegmentKind::Embedding | SegmentKind::Head => (None, None),
            };
            json!({
                "kind": kind_name(share.kind), "block": block, "expert": expert,
                "bytes": share.bytes, "tensors": share.tensors,
            })
        })
        .collect();
    json!({
        "model": model.name,
        "family": p.family,
        "parameters": p.parameters(),
        "weights_bytes": p.weight_bytes(),
        "weights_bytes_by_dtype": dtypes,
        "blocks": d.blocks, "d_model": d.d_model, "d_mlp": d.d_mlp,
        "heads": d.heads, "kv_heads": d.kv_heads, "d_head": d.d_head,
        "experts": d.experts, "vocab": d.vocab, "context": d.context,
        "kv_bytes_per_token": {
            "f32": p.kv_bytes_per_token(DType::F32),
            "f16": p.kv_bytes_per_token(DType::F16),
            "bf16": p.kv_bytes_per_token(DType::Bf16),
        },
        "kv_dtype": KvDtype::Auto.resolve(weights_dtype(p)).to_string(),
        "tokenizer": model.tokenizer.is_some(),
        "chat_template": model.chat.is_some(),
        "hooks": p.hooks().iter().map(ToString::to_string).collect::<Vec<_>>(),
        "segments": segments,
    })
}

#[cfg(test)]
mod tests {
    use super::grouped;

    #[test]
    fn groups_digits() {
        let check = |n: u64, expect: &str| assert_eq!(grouped(n), expect);
        check(0, "0");
        check(999, "999");
        check(1_000, "1,000");
        check(6_738_415_616, "6,738,415,616");
    }
}
