//! Tests of operations that work row by row or element by element.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod support;

use djinn_device::{Edit, NormParams, Rotation, View};
use djinn_types::{Activation, DType, NormKind, RopeStyle};
use proptest::prelude::*;
use support::{FLOATS, Image, Refusal, assert_near};

const ACTIVATIONS: [Activation; 4] = [
    Activation::Silu,
    Activation::Gelu,
    Activation::GeluTanh,
    Activation::Relu,
];

fn params(kind: NormKind, eps: f32, weight: View, bias: Option<View>) -> NormParams {
    NormParams {
        kind,
        eps,
        weight,
        bias,
    }
}

fn rotation(table: View, d_head: usize, style: RopeStyle) -> Rotation {
    Rotation {
        table,
        d_head,
        style,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn gather(seed: u64, rows in 1usize..20, cols in 1usize..200, dtype in 0usize..3, accumulate: bool) {
        let mut image = Image::new(seed);
        let table = image.floats(FLOATS[dtype], 11, cols);
        let ids = image.ids(rows, 1, |r, _| (r * 7 % 11) as i32);
        let out = image.f32(rows, cols);
        let after = image.after(&[out], |device| device.gather(table, ids, out, accumulate));
        for r in 0..rows {
            for c in 0..cols {
                let before = if accumulate { image.get(out, r, c) } else { 0.0 };
                let want = before + image.get(table, r * 7 % 11, c);
                assert_near(after.get(out, r, c), want, 4.0, "gather");
            }
        }
    }

    #[test]
    fn scatter_add(seed: u64, rows in 1usize..12, cols in 1usize..3000) {
        let mut image = Image::new(seed);
        let src = image.f32(rows, cols);
        let ids = image.ids(rows, 1, |r, _| ((r * 5 + 2) % 13) as i32);
        let weights = image.f32(rows, 3).cols(1, 1);
        let out = image.f32(13, cols);
        let after = image.after(&[out], |device| device.scatter_add(src, ids, weights, out));
        for r in 0..13 {
            for c in (0..cols).step_by(7) {
                let mut want = image.get(out, r, c);
                for s in (0..rows).filter(|s| (s * 5 + 2) % 13 == r) {
                    want += image.get(weights, s, 0) * image.get(src, s, c);
                }
                assert_near(after.get(out, r, c), want, 6.0, "scatter_add");
            }
        }
    }

    #[test]
    fn norm(seed: u64, rows in 1usize..20, cols in 1usize..200, w in 0usize..3, b in 0usize..4,
            layer: bool, in_place: bool) {
        let mut image = Image::new(seed);
        let x = image.f32(rows, cols);
        let weight = image.floats(FLOATS[w], 1, cols);
        let bias = FLOATS.get(b).map(|&dtype| image.floats(dtype, 1, cols));
        let out = if in_place { x } else { image.room(DType::F32, rows, cols) };
        let kind = if layer { NormKind::Layer } else { NormKind::Rms };
        let after = image.after(&[out], |device| device.norm(params(kind, 1e-3, weight, bias), x, out));
        for r in 0..rows {
            let row = image.row(x, r);
            let mean = if layer { row.iter().sum::<f64>() / cols as f64 } else { 0.0 };
            let square = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / cols as f64;
            for (c, x) in row.iter().enumerate() {
                let mut want = (x - mean) / (square + 1e-3).sqrt() * image.get(weight, 0, c);
                want += bias.map_or(0.0, |bias| image.get(bias, 0, c));
                assert_near(after.get(out, r, c), want, 40.0, "norm");
            }
        }
    }

    #[test]
    fn activations(seed: u64, rows in 1usize..20, cols in 1usize..200, f in 0usize..4, in_place: bool) {
        let mut image = Image::new(seed);
        let x = image.f32(rows, cols);
        for c in 0..cols {
            let x0 = image.number() * 30.0;
            image.set(x, 0, c, x0);
        }
        let up = image.f32(rows, cols);
        let out = if in_place { x } else { image.room(DType::F32, rows, cols) };
        let f = ACTIVATIONS[f];
        let plain = image.after(&[out], |device| device.activate(f, x, out));
        let gated = image.after(&[out], |device| device.gate(f, x, up, out));
        for r in 0..rows {
            for c in 0..cols {
                let x = image.get(x, r, c);
                let tanh = (0.797_884_560_802_865_4 * (x + 0.044715 * x * x * x)).tanh();
                let got = plain.get(out, r, c);
                match f {
                    Activation::Silu => assert_near(got, x / (1.0 + (-x).exp()), x.abs(), "silu"),
                    Activation::GeluTanh => assert_near(got, 0.5 * x * (1.0 + tanh), x.abs(), "gelu"),
                    // The tanh form is within 0.001 of the error function's.
                    Activation::Gelu => assert_near(got, 0.5 * x * (1.0 + tanh), 1e3, "gelu"),
                    Activation::Relu => assert!(got == x.max(0.0)),
                }
                assert_near(gated.get(out, r, c), got * image.get(up, r, c), 120.0, "gate");
            }
        }
    }

    #[test]
    fn add_and_split(seed: u64, rows in 1usize..20, groups in 1usize..6, width in 1usize..40, extra in 0usize..30) {
        let mut image = Image::new(seed);
        let stride = width + extra;
        let x = image.f32(rows, 2 + groups * stride);
        let out = image.f32(rows, groups * width);
        let split = image.after(&[out], |device| device.split(x, 2, stride, width, out));
        for r in 0..rows {
            for c in 0..out.cols {
                let want = image.get(x, r, 2 + c / width * stride + c % width);
                assert_eq!(split.get(out, r, c), want);
            }
        }
        let x = x.cols(1, out.cols);
        let sum = image.after(&[out], |device| device.add(x, out));
        for r in 0..rows {
            for c in 0..out.cols {
                let want = image.get(x, r, c) as f32 + image.get(out, r, c) as f32;
                assert_eq!(sum.get(out, r, c), f64::from(want));
            }
        }
    }

    #[test]
    fn rotary(seed: u64, rows in 1usize..20, heads in 1usize..5, n in 1usize..40, rest in 0usize..20,
              halves: bool, dtype in 0usize..3) {
        let mut image = Image::new(seed);
        let positions = image.ids(rows, 1, |r, _| (r * 37) as i32);
        let frequencies = image.floats(FLOATS[dtype], 1, n);
        let table = image.room(DType::F32, rows, 2 * n);
        let d_head = 2 * n + rest;
        let x = image.f32(rows, heads * d_head);
        let tabled =
            image.after(&[table], |device| device.rope_table(positions, frequencies, 1.5, table));
        for r in 0..rows {
            for i in 0..n {
                let angle = f64::from((r * 37) as f32 * image.get(frequencies, 0, i) as f32);
                assert_near(tabled.get(table, r, i), angle.cos() * 1.5, 1.5, "cos");
                assert_near(tabled.get(table, r, n + i), angle.sin() * 1.5, 1.5, "sin");
            }
        }
        let style = if halves { RopeStyle::Halves } else { RopeStyle::Interleaved };
        let after = tabled.after(&[x], |device| device.rope(x, rotation(table, d_head, style)));
        for r in 0..rows {
            for head in 0..heads {
                for i in 0..n {
                    let (a, b) = if halves { (i, n + i) } else { (2 * i, 2 * i + 1) };
                    let (a, b) = (head * d_head + a, head * d_head + b);
                    let (x1, x2) = (tabled.get(x, r, a), tabled.get(x, r, b));
                    let (c, s) = (tabled.get(table, r, i), tabled.get(table, r, n + i));
                    assert_near(after.get(x, r, a), x1 * c - x2 * s, 6.0, "rope");
                    assert_near(after.get(x, r, b), x2 * c + x1 * s, 6.0, "rope");
                }
                for c in head * d_head + 2 * n..(head + 1) * d_head {
                    assert_eq!(after.bits(x, r, c), tabled.bits(x, r, c));
                }
            }
        }
    }

    #[test]
    fn routing(seed: u64, rows in 1usize..20, experts in 1usize..70, k in 1usize..9, renormalise: bool) {
        let k = k.min(experts);
        let mut image = Image::new(seed);
        let logits = image.f32(rows, experts);
        // Equal logits: the lower id wins.
        for r in 0..rows {
            for c in 0..experts {
                let coarse = (image.get(logits, r, c) * 4.0).round() as f32 / 4.0;
                image.set(logits, r, c, coarse);
            }
        }
        let ids = image.room(DType::I32, rows, k);
        let weights = image.room(DType::F32, rows, k);
        let after =
            image.after(&[ids, weights], |device| device.route(logits, renormalise, ids, weights));
        for r in 0..rows {
            let row = image.row(logits, r);
            let mut order: Vec<usize> = (0..experts).collect();
            order.sort_by(|&a, &b| row[b].total_cmp(&row[a]).then(a.cmp(&b)));
            // -0.0 and 0.0 are equal logits, but not for `total_cmp`.
            order.sort_by(|&a, &b| row[b].partial_cmp(&row[a]).unwrap().then(a.cmp(&b)));
            let mut chosen = order[..k].to_vec();
            chosen.sort_unstable();
            let sum_all: f64 = row.iter().map(|x| x.exp()).sum();
            let sum: f64 = chosen.iter().map(|&id| row[id].exp()).sum();
            for (i, &id) in chosen.iter().enumerate() {
                assert_eq!(after.get(ids, r, i), id as f64);
                let want = row[id].exp() / if renormalise { sum } else { sum_all };
                assert_near(after.get(weights, r, i), want, 1.0, "weight");
            }
        }
    }

    #[test]
    fn edits(seed: u64, rows in 1usize..20, cols in 1usize..200, shared: bool, kind in 0usize..5) {
        let mut image = Image::new(seed);
        let x = image.f32(rows, cols);
        let operand = image.f32(if shared { 1 } else { rows }, cols);
        let edit = match kind {
            0 => Edit::Scale(1.7),
            1 => Edit::Add { operand, factor: -0.3 },
            2 => Edit::Replace(operand),
            3 => Edit::Zero,
            _ => Edit::ProjectOut(operand),
        };
        let after = image.after(&[x], |device| device.edit(x, edit));
        for r in 0..rows {
            let (old, u) = (image.row(x, r), image.row(operand, if shared { 0 } else { r }));
            let along: f64 = old.iter().zip(&u).map(|(a, b)| a * b).sum();
            let square: f64 = u.iter().map(|u| u * u).sum();
            for c in 0..cols {
                let want = match kind {
                    0 => old[c] * f64::from(1.7f32),
                    1 => old[c] - f64::from(0.3f32) * u[c],
                    2 => u[c],
                    3 => 0.0,
                    _ if square == 0.0 => old[c],
                    _ => old[c] - along / square * u[c],
                };
                let size = if square < 1e-20 { 1e9 } else { 8.0 };
                assert_near(after.get(x, r, c), want, size, "edit");
            }
        }
    }
}

#[test]
fn a_zero_operand_projects_nothing_out_and_a_tiny_one_still_does() {
    let mut image = Image::new(5);
    let x = image.f32(1, 40);
    let operand = image.room(DType::F32, 1, 40);
    for (size, changes) in [(0.0, false), (1e-30, true), (1e30, true)] {
        (0..40).for_each(|c| image.set(operand, 0, c, size));
        let after = image.after(&[x], |device| device.edit(x, Edit::ProjectOut(operand)));
        let mean = image.row(x, 0).iter().sum::<f64>() / 40.0;
        for c in 0..40 {
            let want = image.get(x, 0, c) - if changes { mean } else { 0.0 };
            assert_near(after.get(x, 0, c), want, 4.0, "project out");
        }
    }
}

#[test]
fn large_matrices_are_divided_without_changing_bits() {
    let mut image = Image::new(6);
    let x = image.f32(60, 2000);
    let weight = image.floats(DType::Bf16, 1, 2000);
    let out = image.room(DType::F32, 60, 2000);
    image.after(&[out], |device| {
        device.norm(params(NormKind::Rms, 1e-5, weight, None), x, out)
    });
    image.after(&[out], |device| device.gate(Activation::Silu, x, x, out));
}

#[test]
fn nan_does_not_crash() {
    let mut image = Image::new(7);
    let x = image.room(DType::F32, 3, 50);
    let (out, unit) = (image.f32(3, 50), image.f32(1, 50));
    let (ids, weights) = (image.room(DType::I32, 3, 5), image.room(DType::F32, 3, 5));
    for device in support::devices().iter() {
        let after = image.on(device, |device| {
            device.norm(params(NormKind::Layer, 1e-5, unit, None), x, out)?;
            device.activate(Activation::Gelu, x, x)?;
            device.edit(x, Edit::ProjectOut(unit))?;
            device.route(x, true, ids, weights)
        });
        for r in 0..3 {
            let chosen: Vec<f64> = after.row(ids, r);
            assert_eq!(chosen, [0.0, 1.0, 2.0, 3.0, 4.0]);
        }
    }
}

#[test]
fn mismatched_operands_are_refused() {
    let mut image = Image::new(8);
    let (a, b) = (image.f32(4, 8), image.f32(4, 8));
    let ids = image.ids(4, 1, |r, _| r as i32 - 1);
    let high = image.ids(4, 1, |r, _| r as i32 + 1);
    let positions = image.ids(4, 1, |r, _| r as i32);
    let other = image.f32(3, 8);
    let shifted = View {
        offset: a.offset + 4,
        ..a
    };
    let cases: Vec<(&str, Refusal)> = vec![
        ("gather", image.error(|d| d.gather(a, ids, b, false))),
        ("gather", image.error(|d| d.gather(a, high, b, true))),
        (
            "gather",
            image.error(|d| d.gather(a, positions, shifted, false)),
        ),
        (
            "gather",
            image.error(|d| d.gather(a, other.cols(0, 1), b.rows(0, 3), false)),
        ),
        (
            "scatter_add",
            image.error(|d| d.scatter_add(a, ids, a.cols(0, 1), b)),
        ),
        (
            "scatter_add",
            image.error(|d| d.scatter_add(a, positions, b.cols(0, 1), b)),
        ),
        (
            "norm",
            image.error(|d| d.norm(params(NormKind::Rms, 0.0, b, None), a, a)),
        ),
        (
            "norm",
            image.error(|d| d.norm(params(NormKind::Rms, 0.0, b.rows(0, 1), None), a, shifted)),
        ),
        (
            "activate",
            image.error(|d| d.activate(Activation::Relu, a, other)),
        ),
        ("gate", image.error(|d| d.gate(Activation::Relu, a, b, b))),
        ("add", image.error(|d| d.add(a, a))),
        ("split", image.error(|d| d.split(a, 1, 4, 4, b))),
        ("split", image.error(|d| d.split(a, 0, 3, 3, b))),
        (
            "rope",
            image.error(|d| d.rope(a, rotation(b.cols(0, 2), 3, RopeStyle::Halves))),
        ),
        (
            "rope",
            image.error(|d| d.rope(a, rotation(b, 4, RopeStyle::Halves))),
        ),
        (
            "rope_table",
            image.error(|d| d.rope_table(ids.rows(0, 3), a.rows(0, 1).cols(0, 4), 1.0, b)),
        ),
        (
            "route",
            image.error(|d| d.route(a, true, View { cols: 9, ..ids }, b)),
        ),
        ("edit", image.error(|d| d.edit(a, Edit::Replace(other)))),
        ("edit", image.error(|d| d.edit(a, Edit::Replace(a)))),
    ];
    for (op, refusal) in cases {
        assert_eq!(refusal, Refusal::Shape(op));
    }
}
