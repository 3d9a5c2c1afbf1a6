//! Tests that products give the same bits on every device, close to the exact result.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod support;

use djinn_device::{Phase, View, Weight};
use djinn_types::{DType, Order};
use proptest::prelude::*;
use support::{FLOATS, Image, Refusal, assert_near, devices};

struct Case {
    image: Image,
    x: View,
    weight: Weight,
    bias: Option<View>,
    out: View,
}

fn case(
    seed: u64,
    rows: usize,
    k: usize,
    n: usize,
    dtype: DType,
    order: Order,
    bias: bool,
) -> Case {
    let mut image = Image::new(seed);
    let x = image.f32(rows, k);
    let view = match order {
        Order::OutIn => image.floats(dtype, n, k),
        Order::InOut => image.floats(dtype, k, n),
    };
    let bias_dtype = FLOATS[image.below(3)];
    let bias = bias.then(|| image.floats(bias_dtype, 1, n));
    let out = image.room(DType::F32, rows, n);
    Case {
        image,
        x,
        weight: Weight { view, order },
        bias,
        out,
    }
}

fn check(case: &Case) {
    let Case {
        image,
        x,
        weight,
        bias,
        out,
    } = case;
    let after = image.after(&[*out], |device| {
        device.linear(*x, *weight, *bias, *out, Phase::Prompt)
    });
    for r in 0..out.rows {
        for c in 0..out.cols {
            let (mut want, mut size) = (0.0, 0.0);
            for k in 0..x.cols {
                let w = match weight.order {
                    Order::OutIn => image.get(weight.view, c, k),
                    Order::InOut => image.get(weight.view, k, c),
                };
                want += image.get(*x, r, k) * w;
                size += (image.get(*x, r, k) * w).abs();
            }
            if let Some(bias) = bias {
                want += image.get(*bias, 0, c);
                size += image.get(*bias, 0, c).abs();
            }
            assert_near(after.get(*out, r, c), want, size, &format!("[{r}, {c}]"));
        }
    }
    // Rows alone give the same bits as rows together.
    let device = &devices()[0];
    for r in [0, out.rows / 2, out.rows - 1] {
        let alone = image.on(device, |device| {
            device.linear(x.rows(r, 1), *weight, *bias, out.rows(r, 1), Phase::Prompt)
        });
        for c in 0..out.cols {
            assert_eq!(
                alone.bits(*out, r, c),
                after.bits(*out, r, c),
                "row {r} alone"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn products_are_exact_to_the_bit(
        seed: u64,
        rows in 1usize..40,
        k in 1usize..200,
        n in 1usize..140,
        dtype in 0usize..3,
        out_in: bool,
        bias: bool,
    ) {
        let order = if out_in { Order::OutIn } else { Order::InOut };
        check(&case(seed, rows, k, n, FLOATS[dtype], order, bias));
    }
}

#[test]
fn long_rows_are_blocked_without_changing_bits() {
    for dtype in FLOATS {
        for k in [768, 769, 1536, 2000] {
            for rows in [1, 2, 14, 31] {
                check(&case(7, rows, k, 19, dtype, Order::OutIn, true));
            }
        }
        for rows in [2, 31] {
            check(&case(8, rows, 600, 70, dtype, Order::InOut, true));
        }
    }
}

#[test]
fn many_rows_are_split_without_changing_bits() {
    check(&case(9, 300, 20, 30, DType::Bf16, Order::OutIn, true));
    check(&case(9, 300, 20, 30, DType::Bf16, Order::InOut, false));
}

#[test]
fn without_inputs_the_output_is_the_bias() {
    for order in [Order::OutIn, Order::InOut] {
        for rows in [1, 40] {
            check(&case(3, rows, 0, 5, DType::F32, order, true));
        }
        check(&case(3, 2, 5, 0, DType::F32, order, true));
    }
}

#[test]
fn nan_and_infinity_pass_through() {
    for order in [Order::OutIn, Order::InOut] {
        for rows in [1, 40] {
            let mut case = case(5, rows, 33, 20, DType::F32, order, false);
            case.image.set(case.x, 0, 32, f32::NAN);
            let devices = devices();
            let device = &devices[devices.len() - 1];
            let Case {
                image,
                x,
                weight,
                out,
                ..
            } = case;
            let after = image.on(device, |device| {
                device.linear(x, weight, None, out, Phase::Prompt)
            });
            assert!((0..20).all(|c| after.get(out, 0, c).is_nan()));
            assert!(rows == 1 || (0..20).all(|c| after.get(out, 1, c).is_finite()));
        }
    }
}

#[test]
fn mismatched_operands_are_refused() {
    let Case {
        image,
        x,
        weight,
        out,
        ..
    } = case(1, 4, 8, 6, DType::Bf16, Order::OutIn, false);
    let refused = |x, weight, out: View, expect: Refusal| {
        let error = image.error(|device| device.linear(x, weight, None, out, Phase::Prompt));
        assert_eq!(error, expect);
    };
    refused(x.cols(0, 7), weight, out, Refusal::Shape("linear"));
    refused(x, weight, out.rows(0, 3), Refusal::Shape("linear"));
    refused(
        x,
        weight,
        View {
            dtype: DType::Bf16,
            ..out
        },
        Refusal::Shape("linear"),
    );
    refused(
        x,
        weight,
        View {
            offset: x.offset + 4,
            ..out
        },
        Refusal::Shape("linear"),
    );
    refused(
        x,
        weight,
        View { stride: 5, ..out },
        Refusal::Shape("linear"),
    );
    refused(
        x,
        weight,
        View {
            offset: u64::MAX - 8,
            ..out
        },
        Refusal::OutOfSlab("linear"),
    );
    let integers = Weight {
        view: View {
            dtype: DType::I32,
            ..weight.view
        },
        ..weight
    };
    refused(x, integers, out, Refusal::Shape("linear"));
}
