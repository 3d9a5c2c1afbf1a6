//! Fast kernels: aligned operands, shapes of real models, rows that must give the same bits in
//! any batch, and replays.

use super::pair::{Case, CaseFn, DevicePair, ReportFn, difference};
use crate::{Attention, Edit, KvLayer, NormParams, Phase, Result, Rows, View, Weight};
use djinn_types::{DType, NormKind, Order};

pub(super) const ALL: [CaseFn; 4] = [products, attention, rows_alone, replayed];

/// Largest error of sums on tensor cores, which drop bits of terms far smaller than the sum.
const TENSOR: f64 = 1e-5;
pub(super) const HALVES: [DType; 2] = [DType::F16, DType::Bf16];
pub(super) const PHASES: [Phase; 2] = [Phase::Prompt, Phase::Generated];

/// Largest error of attention that rounds queries and probabilities to the keys' type.
pub(super) fn rounded(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 1e-3,
        _ => 8e-3,
    }
}

/// Allocates f32 numbers that are exact in a type, so that rounding to it changes nothing.
fn exact(pair: &mut DevicePair<'_>, dtype: DType, rows: usize, cols: usize) -> Result<View> {
    let view = pair.place(DType::F32, rows, cols, 0);
    let numbers = (0..rows * cols).map(|_| {
        let x = pair.float();
        match dtype {
            DType::F16 => half::f16::from_f32(x).to_f32(),
            DType::Bf16 => half::bf16::from_f32(x).to_f32(),
            _ => x,
        }
    });
    let bytes: Vec<u8> = numbers.flat_map(f32::to_le_bytes).collect();
    pair.upload(view, &bytes)?;
    Ok(view)
}

pub(super) fn weight(
    pair: &mut DevicePair<'_>,
    dtype: DType,
    order: Order,
    shape: [usize; 2],
) -> Result<Weight> {
    let [inputs, outputs] = shape;
    let view = match order {
        Order::OutIn => pair.floats(dtype, outputs, inputs, 0)?,
        Order::InOut => pair.floats(dtype, inputs, outputs, 0)?,
    };
    Ok(Weight { view, order })
}

fn products(pair: &mut DevicePair<'_>, report: ReportFn<'_>) -> Result<()> {
    let shapes = [
        [1, 8, 8],
        [1, 1024, 96],
        [2, 72, 33],
        [9, 2048, 136],
        [16, 4096, 64],
        [17, 520, 100],
        [40, 1024, 200],
        [64, 5120, 72],
        [130, 512, 264],
    ];
    for dtype in HALVES {
        for order in [Order::OutIn, Order::InOut] {
            for phase in PHASES {
                for [rows, inputs, outputs] in shapes {
                    pair.start_aligned(TENSOR);
                    let x = exact(pair, dtype, rows, inputs)?;
                    let weight = weight(pair, dtype, order, [inputs, outputs])?;
                    pair.both[1].warm_up(weight)?;
                    let bias = pair.floats(dtype, 1, outputs, 0)?;
                    for bias in [None, Some(bias)] {
                        let out = pair.poisoned(rows, outputs, 0)?;
                        let shape = format!("[{rows}, {inputs}] to {outputs}");
                        let what = format!(
                            "{phase:?} {order:?} {dtype} {shape} bias {}",
                            bias.is_some()
                        );
                        pair.check("linear", what, out, report, |device| {
                            device.linear(x, weight, bias, out, phase)
                        })?;
                    }
                }
            }
        }
    }
    Ok(())
}

/// Rows of three sessions: one with a long context, one that begins, one in between.
pub(super) struct ThreeSessions {
    pub(super) rows: Rows,
    pub(super) kv: KvLayer,
    pub(super) how: Attention,
    pub(super) count: usize,
}

impl ThreeSessions {
    /// Creates the rows. `shape` is query heads, key-value heads, elements of a head, and keys
    /// of the longest session.
    pub(super) fn new(
        pair: &mut DevicePair<'_>,
        dtype: DType,
        phase: Phase,
        shape: [usize; 4],
    ) -> Result<Self> {
        let [heads, kv_heads, d_head, keys] = shape;
        let (page_tokens, sessions) = (16, 3);
        let table_pages = keys.div_ceil(page_tokens);
        let runs = match phase {
            Phase::Generated => [keys - 1..keys, 0..1, keys / 2..keys / 2 + 1],
            Phase::Prompt => [
                keys - keys.min(70)..keys,
                0..keys.min(40),
                keys / 3..keys / 2 + 1,
            ],
        };
        let placed: Vec<(i32, i32)> = (0..)
            .zip(runs)
            .flat_map(|(session, run)| run.map(move |p| (session, p as i32)))
            .collect();
        let dealt = (0..sessions * table_pages)
            .map(|i| (sessions * (i % table_pages) + i / table_pages) as i32);
        let count = placed.len();
        let rows = Rows {
            positions: pair.ids(count, 1, &placed.iter().map(|p| p.1).collect::<Vec<_>>())?,
            sequences: pair.ids(count, 1, &placed.iter().map(|p| p.0).collect::<Vec<_>>())?,
            tables: pair.ids(sessions, table_pages, &dealt.collect::<Vec<_>>())?,
            phase,
        };
        let mut kv = KvLayer {
            offset: 0,
            page_bytes: 0,
            pages: sessions * table_pages,
            page_tokens,
            kv_heads,
            d_head,
            dtype,
        };
        kv.page_bytes = kv.layer_bytes() + 64;
        let elements = kv.page_bytes as usize * kv.pages / dtype.bytes();
        kv.offset = pair.floats(dtype, 1, elements, 0)?.offset;
        let how = Attention {
            heads,
            scale: 1.0 / (d_head as f32).sqrt(),
            window: (!keys.is_multiple_of(2)).then_some(keys / 2 + 1),
        };
        Ok(ThreeSessions {
            rows,
            kv,
            how,
            count,
        })
    }
}

fn attention(pair: &mut DevicePair<'_>, report: ReportFn<'_>) -> Result<()> {
    let shapes = [
        [1, 1, 8, 2],
        [4, 2, 32, 37],
        [12, 1, 64, 130],
        [6, 2, 80, 64],
        [8, 8, 128, 701],
        [16, 2, 128, 1500],
    ];
    for dtype in HALVES {
        for phase in PHASES {
            for shape in shapes {
                let limit = match phase {
                    Phase::Prompt => rounded(dtype),
                    Phase::Generated => TENSOR,
                };
                pair.start_aligned(limit);
                let ThreeSessions {
                    rows,
                    kv,
                    how,
                    count,
                } = ThreeSessions::new(pair, dtype, phase, shape)?;
                let [heads, kv_heads, d_head, keys] = shape;
                let width = heads * d_head;
                let k = pair.floats(DType::F32, count, kv_heads * d_head, 0)?;
                let v = pair.floats(DType::F32, count, kv_heads * d_head, 0)?;
                let q = pair.floats(DType::F32, count, width, 0)?;
                let out = pair.poisoned(count, width, 0)?;
                let what = format!(
                    "{phase:?} {dtype} {heads}/{kv_heads} x {d_head}, {keys} keys, {:?}",
                    how.window
                );
                pair.check("attend", what, out, report, |device| {
                    device.append(k, v, rows, kv)?;
                    device.attend(q, rows, kv, how, out)
                })?;
            }
        }
    }
    Ok(())
}

/// Checks that each row alone gives the same bits as among other rows.
fn rows_alone(pair: &mut DevicePair<'_>, report: ReportFn<'_>) -> Result<()> {
    for dtype in HALVES {
        for phase in PHASES {
            pair.start_aligned(0.0);
            let (rows, inputs, outputs) = (67, 1536, 320);
            let x = pair.floats(DType::F32, rows, inputs, 0)?;
            let matrix = weight(pair, dtype, Order::OutIn, [inputs, outputs])?;
            let all = pair.poisoned(rows, outputs, 0)?;
            let alone = pair.poisoned(rows, outputs, 0)?;
            let device = pair.both[1];
            device.warm_up(matrix)?;
            device.linear(x, matrix, None, all, phase)?;
            // Computes rows in groups of several sizes, and outputs in pieces.
            let mut first = 0;
            for run in [1, 2, 5, 8, 9, 16, 26] {
                for cut in [(0, 64), (64, 256)] {
                    let weight = Weight {
                        view: matrix.view.rows(cut.0, cut.1),
                        ..matrix
                    };
                    let out = alone.rows(first, run).cols(cut.0, cut.1);
                    device.linear(x.rows(first, run), weight, None, out, phase)?;
                }
                first += run;
            }
            assert_eq!(first, rows);
            same(
                pair,
                "linear alone",
                format!("{phase:?} {dtype}"),
                [all, alone],
                report,
            )?;

            let shape = [8, 4, 128, 400];
            let ThreeSessions {
                rows,
                kv,
                how,
                count,
            } = ThreeSessions::new(pair, dtype, phase, shape)?;
            let q = pair.floats(DType::F32, count, 8 * 128, 0)?;
            let all = pair.poisoned(count, 8 * 128, 0)?;
            let alone = pair.poisoned(count, 8 * 128, 0)?;
            let device = pair.both[1];
            device.attend(q, rows, kv, how, all)?;
            let mut first = 0;
            for run in [1, 2, 3, 7, 20].into_iter().cycle() {
                let run = run.min(count - first);
                if run == 0 {
                    break;
                }
                let part = rows.rows(first, run);
                device.attend(q.rows(first, run), part, kv, how, alone.rows(first, run))?;
                first += run;
            }
            same(
                pair,
                "attend alone",
                format!("{phase:?} {dtype}"),
                [all, alone],
                report,
            )?;
        }
    }
    Ok(())
}

/// Checks that a replay gives the same bits as the first run.
fn replayed(pair: &mut DevicePair<'_>, report: ReportFn<'_>) -> Result<()> {
    for dtype in HALVES {
        pair.start_aligned(0.0);
        let (rows, width) = (5, 512);
        let x = pair.floats(DType::F32, rows, width, 0)?;
        let scale = pair.floats(dtype, 1, width, 0)?;
        let matrix = weight(pair, dtype, Order::OutIn, [width, width])?;
        let (norm, first) = (
            pair.poisoned(rows, width, 0)?,
            pair.poisoned(rows, width, 0)?,
        );
        let again = pair.poisoned(rows, width, 0)?;
        let params = NormParams {
            kind: NormKind::Rms,
            eps: 1e-5,
            weight: scale,
            bias: None,
        };
        let device = pair.both[1];
        let work = |out: View| {
            device.norm(params, x, norm)?;
            device.linear(norm, matrix, None, out, Phase::Generated)
        };
        work(first)?;
        for _ in 0..4 {
            device.edit(again, Edit::Zero)?;
            let number = u64::from(dtype == DType::F16);
            device.replay(number, &mut || work(again))?;
            same(pair, "replay", dtype.to_string(), [first, again], report)?;
        }
    }
    Ok(())
}

/// Reports whether two matrices of the device are equal to the bit.
pub(super) fn same(
    pair: &DevicePair<'_>,
    op: &'static str,
    what: String,
    both: [View; 2],
    report: ReportFn<'_>,
) -> Result<()> {
    let mut found = [const { Vec::new() }; 2];
    for (view, found) in both.iter().zip(&mut found) {
        *found = vec![0.0; view.rows * view.cols];
        pair.both[1].download(*view, found)?;
    }
    let bits = |numbers: &[f32]| numbers.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let same = bits(&found[0]) == bits(&found[1]);
    let off = difference(&found[0], &found[1]);
    report(Case {
        op,
        what,
        error: if same {
            0.0
        } else {
            off.max(f64::MIN_POSITIVE)
        },
        limit: 0.0,
    });
    Ok(())
}
