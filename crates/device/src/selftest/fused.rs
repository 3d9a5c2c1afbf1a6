//! Fused operations against the equivalent plain operations, to the bit.

use djinn_types::{Activation, DType, NormKind, Order, RopeStyle};

use super::fast::{HALVES, PHASES, ThreeSessions, rounded, same, weight};
use super::pair::{CaseFn, DevicePair, ReportFn};
use crate::{
    Device, Edit, NormParams, Phase, Projection, Qkv, Result, Rotation, Stream, View, Weight,
};

pub(super) const ALL: [CaseFn; 4] = [groups, gates, sums, rotations_and_blocks];

/// Row counts of the smallest, a middle and the largest shape of the GEMV kernels.
const ROWS: [usize; 3] = [1, 7, 33];

/// Two outputs of the same shape: one for the fused operation, one for the plain ones.
fn twice(pair: &mut DevicePair<'_>, rows: usize, cols: usize) -> Result<[View; 2]> {
    Ok([pair.poisoned(rows, cols, 0)?, pair.poisoned(rows, cols, 0)?])
}

/// Checks `linear_group` with more products than one launch takes, in both storage orders.
fn groups(pair: &mut DevicePair<'_>, report: ReportFn<'_>) -> Result<()> {
    for dtype in [DType::F16, DType::Bf16, DType::F32] {
        for order in [Order::OutIn, Order::InOut] {
            for phase in PHASES {
                for rows in ROWS {
                    pair.start_aligned(0.0);
                    let inputs = 256;
                    let x = pair.floats(DType::F32, rows, inputs, 0)?;
                    let mut parts = [const { Vec::new() }; 2];
                    for outputs in [512, 128, 128, 96, 40] {
                        let weight = weight(pair, dtype, order, [inputs, outputs])?;
                        let bias = pair.floats(dtype, 1, outputs, 0)?;
                        let bias = (outputs != 128).then_some(bias);
                        let outs = twice(pair, rows, outputs)?;
                        for (parts, out) in parts.iter_mut().zip(outs) {
                            parts.push(Projection { weight, bias, out });
                        }
                    }
                    let device = pair.both[1];
                    device.linear_group(x, &parts[0], phase)?;
                    for part in &parts[1] {
                        device.linear(x, part.weight, part.bias, part.out, phase)?;
                        device.synchronize(Stream::Compute)?;
                    }
                    for (fused, plain) in parts[0].iter().zip(&parts[1]) {
                        let cols = fused.out.cols;
                        let what =
                            format!("{phase:?} {order:?} {dtype} [{rows}, {inputs}] to {cols}");
                        same(pair, "linear_group", what, [fused.out, plain.out], report)?;
                    }
                }
            }
        }
    }
    Ok(())
}

/// Checks `linear_gated`, and the product of its output that follows in a model.
fn gates(pair: &mut DevicePair<'_>, report: ReportFn<'_>) -> Result<()> {
    for dtype in [DType::F16, DType::Bf16, DType::F32] {
        for phase in PHASES {
            for rows in ROWS {
                pair.start_aligned(0.0);
                let (inputs, hidden) = (256, 680);
                let x = pair.floats(DType::F32, rows, inputs, 0)?;
                let mut matrix = |shape| weight(pair, dtype, Order::OutIn, shape);
                let (wg, wu) = (matrix([inputs, hidden])?, matrix([inputs, hidden])?);
                let wd = matrix([hidden, inputs])?;
                let (gate, up) = (twice(pair, rows, hidden)?, twice(pair, rows, hidden)?);
                let (out, down) = (twice(pair, rows, hidden)?, twice(pair, rows, inputs)?);
                let device = pair.both[1];
                let part = |weight: Weight, out: View| Projection {
                    weight,
                    bias: None,
                    out,
                };
                let f = Activation::Silu;
                device.linear_gated(x, part(wg, gate[0]), part(wu, up[0]), f, out[0], phase)?;
                device.linear(out[0], wd, None, down[0], phase)?;
                device.synchronize(Stream::Compute)?;
                device.linear(x, wg, None, gate[1], phase)?;
                device.synchronize(Stream::Compute)?;
                device.linear(x, wu, None, up[1], phase)?;
                device.synchronize(Stream::Compute)?;
                device.gate(f, gate[1], up[1], out[1])?;
                device.synchronize(Stream::Compute)?;
                device.linear(out[1], wd, None, down[1], phase)?;
                let what = format!("{phase:?} {dtype} [{rows}, {inputs}] to {hidden}");
                same(pair, "linear_gated", what.clone(), out, report)?;
                same(pair, "linear_gated", what + ", then down", down, report)?;
            }
        }
    }
    Ok(())
}

/// Checks `add_norm` with an output apart from the addend, and with the addend as output.
fn sums(pair: &mut DevicePair<'_>, report: ReportFn<'_>) -> Result<()> {
    for dtype in [DType::F16, DType::Bf16, DType::F32] {
        for kind in [NormKind::Rms, NormKind::Layer] {
            for (rows, cols) in [(1, 8), (5, 520), (40, 1024)] {
                pair.start_aligned(0.0);
                let start = pair.floats(DType::F32, rows, cols, 0)?;
                let addend = pair.floats(DType::F32, rows, cols, 0)?;
                let params = NormParams {
                    kind,
                    eps: 1e-5,
                    weight: pair.floats(dtype, 1, cols, 0)?,
                    bias: Some(pair.floats(dtype, 1, cols, 0)?),
                };
                let (x, out) = (twice(pair, rows, cols)?, twice(pair, rows, cols)?);
                let device = pair.both[1];
                for x in x {
                    device.edit(x, Edit::Replace(start))?;
                }
                device.add_norm(addend, x[0], params, out[0])?;
                device.add(addend, x[1])?;
                device.synchronize(Stream::Compute)?;
                device.norm(params, x[1], out[1])?;
                let what = format!("{kind:?} {dtype} [{rows}, {cols}]");
                same(pair, "add_norm", format!("sum, {what}"), x, report)?;
                same(pair, "add_norm", what.clone(), out, report)?;
                // Repeats the operation with the addend as output.
                device.edit(x[0], Edit::Replace(start))?;
                device.add_norm(addend, x[0], params, addend)?;
                let what = format!("in place, {what}");
                same(pair, "add_norm", what, [addend, out[1]], report)?;
            }
        }
    }
    Ok(())
}

fn rotations_and_blocks(pair: &mut DevicePair<'_>, report: ReportFn<'_>) -> Result<()> {
    for dtype in [DType::F16, DType::Bf16, DType::F32] {
        for phase in PHASES {
            for style in [RopeStyle::Halves, RopeStyle::Interleaved] {
                let shapes = [
                    [1, 1, 8, 2],
                    [4, 2, 32, 37],
                    [12, 1, 64, 130],
                    [8, 8, 128, 701],
                    [16, 2, 128, 1500],
                ];
                // Prompts have many rows: long contexts add time and no coverage.
                let count = match (phase, dtype) {
                    (Phase::Generated, DType::F16 | DType::Bf16) => 5,
                    _ => 3,
                };
                for shape in shapes.into_iter().take(count) {
                    rotation(pair, dtype, phase, style, shape, report)?;
                }
            }
        }
    }
    for dtype in HALVES {
        for phase in PHASES {
            block(pair, dtype, phase, report)?;
        }
    }
    Ok(())
}

/// Checks `rope_append` and `rope_append_attend`: the output, and the queries, keys and pages
/// that they write.
fn rotation(
    pair: &mut DevicePair<'_>,
    dtype: DType,
    phase: Phase,
    style: RopeStyle,
    shape: [usize; 4],
    report: ReportFn<'_>,
) -> Result<()> {
    let [heads, kv_heads, d_head, keys] = shape;
    for attends in [false, true] {
        pair.start_aligned(0.0);
        let ThreeSessions {
            rows,
            kv,
            how,
            count,
        } = ThreeSessions::new(pair, dtype, phase, shape)?;
        let (wide, narrow) = (heads * d_head, kv_heads * d_head);
        let raw_q = pair.floats(DType::F32, count, wide, 0)?;
        let raw_k = pair.floats(DType::F32, count, narrow, 0)?;
        let v = pair.floats(DType::F32, count, narrow, 0)?;
        // In some shapes all elements of a head are rotated, in others half of them.
        let rotated = match keys.is_multiple_of(2) {
            true => d_head,
            false => d_head / 2,
        };
        let rotation = Rotation {
            table: pair.floats(DType::F32, count, rotated, 0)?,
            d_head,
            style,
        };
        let (q, k) = (twice(pair, count, wide)?, twice(pair, count, narrow)?);
        let (z, again) = (twice(pair, count, wide)?, twice(pair, count, wide)?);
        let device = pair.both[1];
        for at in 0..2 {
            device.edit(q[at], Edit::Replace(raw_q))?;
            device.edit(k[at], Edit::Replace(raw_k))?;
            let qkv = Qkv {
                q: q[at],
                k: k[at],
                v,
            };
            match (at, attends) {
                (0, true) => device.rope_append_attend(qkv, rotation, rows, kv, how, z[0])?,
                (0, false) => {
                    device.rope_append(qkv, rotation, rows, kv)?;
                    device.attend(q[0], rows, kv, how, z[0])?;
                }
                _ => {
                    device.rope(q[1], rotation)?;
                    device.synchronize(Stream::Compute)?;
                    device.rope(k[1], rotation)?;
                    device.synchronize(Stream::Compute)?;
                    device.append(k[1], v, rows, kv)?;
                    device.synchronize(Stream::Compute)?;
                    device.attend(q[1], rows, kv, how, z[1])?;
                }
            }
            // Attends again from the written pages alone.
            device.synchronize(Stream::Compute)?;
            device.attend(q[at], rows, kv, how, again[at])?;
        }
        let op = match attends {
            true => "rope_append_attend",
            false => "rope_append",
        };
        let what =
            format!("{phase:?} {style:?} {dtype} {heads}/{kv_heads} x {d_head}, {keys} keys");
        let kinds = [("output", z), ("queries", q), ("keys", k), ("pages", again)];
        for (kind, both) in kinds {
            same(pair, op, format!("{kind}, {what}"), both, report)?;
        }
    }
    Ok(())
}

/// Checks a block of a model with fused operations against the reference device, and against the
/// same block with plain operations.
fn block(
    pair: &mut DevicePair<'_>,
    dtype: DType,
    phase: Phase,
    report: ReportFn<'_>,
) -> Result<()> {
    pair.start_aligned(6.0 * rounded(dtype));
    let shape @ [heads, kv_heads, d_head, _] = [8, 4, 64, 300];
    let ThreeSessions {
        rows,
        kv,
        how,
        count,
    } = ThreeSessions::new(pair, dtype, phase, shape)?;
    let (wide, narrow, hidden) = (heads * d_head, kv_heads * d_head, 1000);
    let start = pair.floats(DType::F32, count, wide, 0)?;
    let [resid, first] = twice(pair, count, wide)?;
    let mut place = |cols| pair.poisoned(count, cols, 0);
    let (norm, z, sum) = (place(wide)?, place(wide)?, place(wide)?);
    let (q, k, v) = (place(wide)?, place(narrow)?, place(narrow)?);
    let (gate, up, down) = (place(hidden)?, place(hidden)?, place(wide)?);
    let params = NormParams {
        kind: NormKind::Rms,
        eps: 1e-5,
        weight: pair.floats(dtype, 1, wide, 0)?,
        bias: None,
    };
    let rotation = Rotation {
        table: pair.floats(DType::F32, count, d_head / 2, 0)?,
        d_head,
        style: RopeStyle::Halves,
    };
    let mut part = |inputs: usize, out: View| -> Result<Projection> {
        Ok(Projection {
            weight: weight(pair, dtype, Order::OutIn, [inputs, out.cols])?,
            bias: None,
            out,
        })
    };
    let qkv_parts = [part(wide, q)?, part(wide, k)?, part(wide, v)?];
    let (wo, wg, wu) = (part(wide, sum)?, part(wide, gate)?, part(wide, up)?);
    let wd = part(hidden, down)?;
    let qkv = Qkv { q, k, v };
    let f = Activation::Silu;
    let linear = |device: &dyn Device, x: View, part: Projection| {
        device.linear(x, part.weight, part.bias, part.out, phase)
    };
    let fused = |device: &dyn Device| {
        device.edit(resid, Edit::Replace(start))?;
        device.norm(params, resid, norm)?;
        device.linear_group(norm, &qkv_parts, phase)?;
        device.rope_append_attend(qkv, rotation, rows, kv, how, z)?;
        linear(device, z, wo)?;
        device.add_norm(sum, resid, params, norm)?;
        device.linear_gated(norm, wg, wu, f, gate, phase)?;
        linear(device, gate, wd)?;
        device.add(down, resid)
    };
    let plain = |device: &dyn Device| {
        let then = |done: Result<()>| done.and_then(|()| device.synchronize(Stream::Compute));
        device.edit(resid, Edit::Replace(start))?;
        then(device.norm(params, resid, norm))?;
        for part in qkv_parts {
            then(linear(device, norm, part))?;
        }
        then(device.rope(q, rotation))?;
        then(device.rope(k, rotation))?;
        then(device.append(k, v, rows, kv))?;
        then(device.attend(q, rows, kv, how, z))?;
        then(linear(device, z, wo))?;
        then(device.add(sum, resid))?;
        then(device.norm(params, resid, norm))?;
        then(linear(device, norm, wg))?;
        then(linear(device, norm, wu))?;
        then(device.gate(f, gate, up, gate))?;
        then(linear(device, gate, wd))?;
        then(device.add(down, resid))
    };
    let what = format!("{phase:?} {dtype}");
    pair.check("block, fused", what.clone(), resid, report, fused)?;
    let device = pair.both[1];
    device.edit(first, Edit::Replace(resid))?;
    plain(device)?;
    same(pair, "block, plain", what, [first, resid], report)
}
