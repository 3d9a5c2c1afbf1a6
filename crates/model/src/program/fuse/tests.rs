//! Tests of the fusing pass: which ranges are fused in each family, what prevents fusing, and
//! a property test that compares the fused form with the plain operations.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

use djinn_types::{DType, RopeStyle};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::dims::{Dims, Rope};
use super::super::site::Site;
use super::*;
use crate::config::RawConfig;
use crate::families;

fn program(config: &Value) -> Program {
    let config = RawConfig::parse(Path::new("config.json"), config.to_string().as_bytes());
    families::build(&config.unwrap(), DType::F16).unwrap()
}

/// Builds the program of a golden checkpoint.
fn golden(name: &str) -> Program {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/golden");
    let config = RawConfig::read(&root.join(name).join("config.json")).unwrap();
    families::build(&config, DType::F16).unwrap()
}

fn all_resident(program: &Program) -> Fusions {
    fuse(program, |_| WeightResidency::Whole)
}

/// Returns the fusions that start in a block, as short descriptions.
fn of_block(program: &Program, fusions: &Fusions, block: usize) -> Vec<String> {
    let steps: Vec<_> = program.steps().collect();
    let in_block = |fusion: &&Fusion| steps[fusion.range.start].0 == SegmentKind::Block(block);
    let describe = |fusion: &Fusion| match &fusion.op {
        FusedOp::AddNorm { from, to, .. } => format!("add {from:?}, norm {to:?}"),
        FusedOp::Projections { projections, .. } => {
            let outputs: Vec<_> = projections.iter().map(|p| p.to).collect();
            format!("projections {outputs:?}")
        }
        FusedOp::GatedProjections { gate, up, to, .. } => {
            format!("gated {:?} {:?} {to:?}", gate.to, up.to)
        }
        FusedOp::RotateAttend { block, .. } => format!("rotate, attend {block}"),
    };
    fusions.iter().filter(in_block).map(describe).collect()
}

const QKV: &str = "projections [Q, K, V]";
const MID: &str = "add AttnOut, norm Norm";
const GATED: &str = "gated Pre Up Post";
const POST: &str = "add MlpOut, norm Norm";

#[test]
fn fused_ranges_of_every_family() {
    let attend = "rotate, attend 0";
    let check = |name: &str, expect: &[&str]| {
        let program = golden(name);
        let fusions = all_resident(&program);
        assert_eq!(of_block(&program, &fusions, 0), expect, "{name}");
        // The sum at the end of the last block is not fused: the head runs over other rows.
        let last = program.dims.blocks - 1;
        let found = of_block(&program, &fusions, last);
        assert_eq!(found.len(), expect.len() - 1, "{name}");
        assert!(!found.contains(&POST.to_owned()), "{name}");
    };
    for name in ["llama2", "llama3", "mistral", "qwen2", "qwen3"] {
        check(name, &[QKV, attend, MID, GATED, POST]);
    }
    check("mixtral", &[QKV, attend, MID, POST]);
    check("gpt2", &[MID, POST]);
    check("gptj", &[QKV, attend, POST]);
    check("falcon7b", &[attend, POST]);
    check("falcon180b", &[attend, POST]);
    let old = program(&json!({"model_type": "falcon", "parallel_attn": false,
        "num_hidden_layers": 2}));
    assert_eq!(
        of_block(&old, &all_resident(&old), 0),
        [attend, MID, POST],
        "falcon with attention and MLP in sequence"
    );
}

#[test]
fn fusions_keep_the_parameters_of_the_plain_operations() {
    let program = golden("qwen2");
    let ops: Vec<&Op> = program.ops().collect();
    for fusion in all_resident(&program).iter() {
        let run = &ops[fusion.range.clone()];
        let is_hook = |op: &&Op| matches!(op, Op::Hook { .. });
        assert!(!is_hook(&run[0]) && !is_hook(&run[run.len() - 1]));
        let plain: Vec<Op> = run
            .iter()
            .filter(|op| !is_hook(op))
            .map(|&op| op.clone())
            .collect();
        assert_eq!(expand(&program, &fusion.op), plain);
    }
}

/// Returns the plain operations that a fused operation replaces.
fn expand(program: &Program, op: &FusedOp) -> Vec<Op> {
    let linear = |from: Buf, p: FusedProjection| Op::Linear {
        weight: p.weight,
        order: p.order,
        bias: p.bias,
        from,
        to: p.to,
    };
    match *op {
        FusedOp::AddNorm {
            from,
            sum,
            kind,
            eps,
            weight,
            bias,
            to,
        } => vec![
            Op::Add { from, to: sum },
            Op::Norm {
                kind,
                eps,
                width: program.width(sum),
                weight,
                bias,
                from: sum,
                to,
            },
        ],
        FusedOp::Projections {
            from,
            ref projections,
        } => projections.iter().map(|&p| linear(from, p)).collect(),
        FusedOp::GatedProjections {
            from,
            gate,
            up,
            f,
            to,
        } => vec![
            linear(from, gate),
            linear(from, up),
            Op::Gate {
                f,
                gate: gate.to,
                up: up.to,
                to,
            },
        ],
        FusedOp::RotateAttend {
            block,
            scale,
            window,
        } => vec![
            Op::Rope { buf: Buf::Q },
            Op::Rope { buf: Buf::K },
            Op::Attend {
                block,
                scale,
                window,
            },
        ],
    }
}

#[test]
fn streamed_and_split_weights() {
    let program = golden("llama2");
    let named = |id: TensorId, part: &str| program.tensor(id).name.contains(part);
    let with = |part: &'static str, residency: WeightResidency| {
        let fusions = fuse(&program, |id| match named(id, part) {
            true => residency,
            false => WeightResidency::Whole,
        });
        of_block(&program, &fusions, 0)
    };
    let attend = "rotate, attend 0";
    // Products of streamed weights run alone; their neighbours still join each other.
    assert_eq!(
        with("q_proj", WeightResidency::Streamed),
        ["projections [K, V]", attend, MID, GATED, POST]
    );
    assert_eq!(
        with("k_proj", WeightResidency::Streamed),
        [attend, MID, GATED, POST]
    );
    assert_eq!(
        with("up_proj", WeightResidency::Streamed),
        [QKV, attend, MID, POST]
    );
    // Weights in several parts join a group of products, but not a gated MLP.
    assert_eq!(
        with("q_proj", WeightResidency::Split),
        [QKV, attend, MID, GATED, POST]
    );
    assert_eq!(
        with("gate_proj", WeightResidency::Split),
        [QKV, attend, MID, "projections [Pre, Up]", POST]
    );
    let nothing = fuse(&program, |_| WeightResidency::Streamed);
    assert_eq!(of_block(&program, &nothing, 0), [attend, MID, POST]);
}

#[test]
fn ranges_contain_the_hooks_between() {
    let program = golden("llama2");
    let ops: Vec<&Op> = program.ops().collect();
    let fusions = all_resident(&program);
    let sites = |fusion: &Fusion| -> Vec<Site> {
        let ops = ops[fusion.range.clone()].iter();
        let hooks = ops.filter_map(|op| match op {
            Op::Hook { site, .. } => Some(*site),
            _ => None,
        });
        hooks.collect()
    };
    let found: Vec<Vec<Site>> = fusions.iter().take(5).map(sites).collect();
    assert_eq!(
        found,
        [
            vec![],
            vec![],
            vec![Site::ResidMid(0)],
            vec![Site::MlpPre(0)],
            vec![Site::ResidPost(0), Site::ResidPre(1)],
        ]
    );
    // Lookup by index finds only the start of a range.
    let range = &fusions.iter().next().unwrap().range;
    assert!(fusions.at(range.start).is_some());
    assert!(fusions.at(range.start + 1).is_none());
}

/// Builds a program of one block from its operations; all buffers have 4 columns.
fn one_block(ops: Vec<Op>) -> Program {
    Program {
        family: "test",
        dims: Dims {
            blocks: 1,
            d_model: 4,
            heads: 2,
            kv_heads: 2,
            d_head: 2,
            d_mlp: 4,
            vocab: 4,
            context: 8,
            experts: 0,
        },
        rope: Some(Rope {
            style: RopeStyle::Halves,
            frequencies: vec![1.0],
            scale: 1.0,
        }),
        tensors: Vec::new(),
        segments: Vec::new(),
        embed: Vec::new(),
        blocks: vec![ops],
        head: Vec::new(),
    }
}

fn linear(weight: usize, from: Buf, to: Buf) -> Op {
    Op::Linear {
        weight: TensorId(weight),
        order: Order::OutIn,
        bias: None,
        from,
        to,
    }
}

fn norm(width: usize, from: Buf, to: Buf) -> Op {
    Op::Norm {
        kind: NormKind::Rms,
        eps: 1e-5,
        width,
        weight: TensorId(0),
        bias: None,
        from,
        to,
    }
}

fn gate(gate: Buf, up: Buf, to: Buf) -> Op {
    let f = Activation::Silu;
    Op::Gate { f, gate, up, to }
}

#[test]
fn buffers_that_alias_prevent_fusing() {
    let count = |ops: Vec<Op>| all_resident(&one_block(ops)).iter().count();
    let add = |from, to| Op::Add { from, to };
    assert_eq!(
        count(vec![
            add(Buf::Z, Buf::Resid),
            norm(4, Buf::Resid, Buf::Norm)
        ]),
        1
    );
    // The norm writes the sum or the addend, or reads another buffer.
    assert_eq!(
        count(vec![
            add(Buf::Z, Buf::Resid),
            norm(4, Buf::Resid, Buf::Resid)
        ]),
        0
    );
    assert_eq!(
        count(vec![add(Buf::Z, Buf::Resid), norm(4, Buf::Resid, Buf::Z)]),
        0
    );
    assert_eq!(
        count(vec![add(Buf::Z, Buf::Resid), norm(4, Buf::Z, Buf::Norm)]),
        0
    );
    // The norm is over heads, not over whole rows.
    assert_eq!(
        count(vec![
            add(Buf::Z, Buf::Resid),
            norm(2, Buf::Resid, Buf::Norm)
        ]),
        0
    );
    // A product overwrites the common input, or the output of another product.
    assert_eq!(
        count(vec![
            linear(0, Buf::Norm, Buf::Q),
            linear(1, Buf::Norm, Buf::K)
        ]),
        1
    );
    assert_eq!(
        count(vec![
            linear(0, Buf::Norm, Buf::Norm),
            linear(1, Buf::Norm, Buf::K)
        ]),
        0
    );
    assert_eq!(
        count(vec![
            linear(0, Buf::Norm, Buf::Q),
            linear(1, Buf::Norm, Buf::Q)
        ]),
        0
    );
    assert_eq!(
        count(vec![
            linear(0, Buf::Norm, Buf::Q),
            linear(1, Buf::Q, Buf::K)
        ]),
        0
    );
    // Two products may use the same weights.
    assert_eq!(
        count(vec![
            linear(0, Buf::Norm, Buf::Q),
            linear(0, Buf::Norm, Buf::K)
        ]),
        1
    );
    // Only queries and keys together are rotated by the fused attention.
    let attend = Op::Attend {
        block: 0,
        scale: 1.0,
        window: None,
    };
    let rope = |buf| Op::Rope { buf };
    assert_eq!(count(vec![rope(Buf::K), rope(Buf::Q), attend.clone()]), 1);
    assert_eq!(count(vec![rope(Buf::Q), rope(Buf::Q), attend.clone()]), 0);
    assert_eq!(count(vec![rope(Buf::Q), attend]), 0);
}

#[test]
fn products_that_are_read_later_are_not_gated() {
    let kinds = |ops: Vec<Op>| -> Vec<bool> {
        let fusions = all_resident(&one_block(ops));
        let is_gated = |fusion: &Fusion| matches!(fusion.op, FusedOp::GatedProjections { .. });
        fusions.iter().map(is_gated).collect()
    };
    let mlp = |then: Vec<Op>| {
        let mut ops = vec![
            linear(0, Buf::Norm, Buf::Pre),
            linear(1, Buf::Norm, Buf::Up),
            gate(Buf::Pre, Buf::Up, Buf::Post),
        ];
        ops.extend(then);
        ops
    };
    let hook = |buf| Op::Hook {
        site: Site::MlpPre(0),
        buf,
    };
    assert_eq!(kinds(mlp(vec![])), [true]);
    assert_eq!(kinds(mlp(vec![hook(Buf::Post)])), [true]);
    assert_eq!(kinds(mlp(vec![hook(Buf::Pre)])), [false]);
    let add = Op::Add {
        from: Buf::Up,
        to: Buf::Resid,
    };
    assert_eq!(kinds(mlp(vec![add])), [false]);
    // The up projection may come first.
    assert_eq!(
        kinds(vec![
            linear(1, Buf::Norm, Buf::Up),
            linear(0, Buf::Norm, Buf::Pre),
            gate(Buf::Pre, Buf::Up, Buf::Post),
        ]),
        [true]
    );
}

const BUFS: [Buf; 8] = [
    Buf::Resid,
    Buf::Norm,
    Buf::Q,
    Buf::K,
    Buf::V,
    Buf::Pre,
    Buf::Up,
    Buf::Post,
];
/// Tensors that random programs use.
const TENSORS: usize = 5;

/// Symbolic state of a pass: a hash of the history of every buffer and of the KV cache.
#[derive(Clone, Debug, Default, PartialEq)]
struct Symbolic {
    bufs: BTreeMap<Buf, u64>,
    cache: u64,
}

fn hash_of(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

impl Symbolic {
    fn get(&self, buf: Buf) -> u64 {
        self.bufs.get(&buf).copied().unwrap_or(0)
    }

    /// Runs a plain operation: the new value of a buffer follows from operation and inputs.
    fn run(&mut self, op: &Op) {
        let (reads, overwritten) = op.buffers();
        let inputs: Vec<u64> = reads.iter().map(|&buf| self.get(buf)).collect();
        let to = match *op {
            Op::Hook { .. } => return,
            Op::Add { to, .. } => to,
            Op::Rope { buf } => buf,
            _ => overwritten.expect("other operations overwrite a buffer"),
        };
        if matches!(op, Op::Attend { .. }) {
            self.cache = hash_of((self.cache, &inputs));
        }
        // A rotation has the same name on every buffer.
        let name = match op {
            Op::Rope { .. } => "rope".to_owned(),
            op => format!("{op:?}"),
        };
        self.bufs.insert(to, hash_of((name, inputs, self.cache)));
    }

    /// Runs a fused operation. All inputs are read before any output is written, and buffers
    /// without a defined value get an arbitrary one.
    fn run_fused(&mut self, program: &Program, op: &FusedOp) {
        let plain = expand(program, op);
        match op {
            FusedOp::Projections { .. } => {
                let before = self.clone();
                for op in &plain {
                    let mut alone = before.clone();
                    alone.run(op);
                    let to = op.buffers().1.expect("a product overwrites its output");
                    self.bufs.insert(to, alone.get(to));
                }
            }
            FusedOp::GatedProjections { gate, up, .. } => {
                plain.iter().for_each(|op| self.run(op));
                self.bufs.insert(gate.to, 0xdead);
                self.bufs.insert(up.to, 0xdead);
            }
            FusedOp::AddNorm { .. } | FusedOp::RotateAttend { .. } => {
                plain.iter().for_each(|op| self.run(op));
            }
        }
    }
}

fn any_buf() -> impl Strategy<Value = Buf> {
    prop::sample::select(BUFS.to_vec())
}

/// Random operations; patterns of fused operations are likely.
fn any_ops() -> impl Strategy<Value = Vec<Op>> {
    let hook = any_buf().prop_map(|buf| Op::Hook {
        site: Site::Embed,
        buf,
    });
    let add = (any_buf(), any_buf()).prop_map(|(from, to)| Op::Add { from, to });
    let norms = (prop::sample::select(vec![2, 4]), any_buf(), any_buf())
        .prop_map(|(width, from, to)| norm(width, from, to));
    let products =
        (0..TENSORS, any_buf(), any_buf()).prop_map(|(weight, from, to)| linear(weight, from, to));
    let gates = (any_buf(), any_buf(), any_buf()).prop_map(|(a, b, to)| gate(a, b, to));
    let rope = prop::sample::select(vec![Buf::Q, Buf::K]).prop_map(|buf| Op::Rope { buf });
    let attend = Just(Op::Attend {
        block: 0,
        scale: 1.0,
        window: None,
    });
    let mlp = (any_buf(), any_buf(), any_buf(), any_buf(), any::<bool>()).prop_map(
        |(from, a, b, to, hooked)| {
            let mut ops = vec![linear(0, from, a), linear(1, from, b), gate(a, b, to)];
            if hooked {
                let site = Site::MlpPre(0);
                ops.insert(1, Op::Hook { site, buf: a });
            }
            ops
        },
    );
    let one = prop_oneof![hook, add, norms, products, gates, rope, attend].prop_map(|op| vec![op]);
    let some = prop_oneof![4 => one, 1 => mlp];
    prop::collection::vec(some, 0..40).prop_map(|runs| runs.concat())
}

fn any_residency() -> impl Strategy<Value = Vec<WeightResidency>> {
    let one = prop::sample::select(vec![
        WeightResidency::Whole,
        WeightResidency::Whole,
        WeightResidency::Split,
        WeightResidency::Streamed,
    ]);
    prop::collection::vec(one, TENSORS)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Checks that every hook in use, and the end of the pass, see the values of the plain
    /// operations, for any set of hooks in use.
    #[test]
    fn fused_programs_compute_the_same(
        ops in any_ops(),
        cut in 0..40usize,
        residency in any_residency(),
        in_use in prop::collection::vec(any::<bool>(), 160),
    ) {
        let mut program = one_block(ops);
        let head = cut.min(program.blocks[0].len());
        program.head = program.blocks[0].split_off(head);
        let fusions = fuse(&program, |id| residency[id.0]);
        let ops: Vec<&Op> = program.ops().collect();
        let is_used = |at: usize| matches!(ops[at], Op::Hook { .. }) && in_use[at];
        // Ranges are disjoint and in order, and stay on one side of the head.
        let mut end = 0;
        for fusion in fusions.iter() {
            prop_assert!(fusion.range.start >= end && fusion.range.len() > 1);
            end = fusion.range.end;
            let first = program.first_of_head();
            prop_assert_eq!(fusion.range.start < first, end <= first);
            for op in &ops[fusion.range.clone()] {
                if let Op::Linear { weight, .. } = op {
                    prop_assert!(residency[weight.0] != WeightResidency::Streamed);
                    let gated = matches!(fusion.op, FusedOp::GatedProjections { .. });
                    prop_assert!(!gated || residency[weight.0] == WeightResidency::Whole);
                }
            }
        }
        let (mut plain, mut fused) = (Symbolic::default(), Symbolic::default());
        let mut at = 0;
        while at < ops.len() {
            let fusion = fusions.at(at).filter(|f| !f.range.clone().any(is_used));
            let range = fusion.map_or(at..at + 1, |fusion| fusion.range.clone());
            match fusion {
                Some(fusion) => fused.run_fused(&program, &fusion.op),
                None => fused.run(ops[at]),
            }
            ops[range.clone()].iter().for_each(|op| plain.run(op));
            if is_used(at)
                && let Op::Hook { buf, .. } = *ops[at]
            {
                prop_assert_eq!(plain.get(buf), fused.get(buf));
            }
            at = range.end;
        }
        prop_assert_eq!(plain.cache, fused.cache);
        prop_assert_eq!(plain.get(Buf::Logits), fused.get(Buf::Logits));
    }
}
