//! Elementary functions that give the same bits on every instruction set.

use super::lanes::Simd;
use djinn_types::Activation;

/// Exponential function: `e^x`, within 2 units in the last place, with the gradual underflow,
/// infinities and NaN of IEEE 754.
#[inline(always)]
pub(super) fn exp<S: Simd>(s: S, x: S::V) -> S::V {
    // The result is 0 or infinite beyond these bounds. The second operand of `max` and `min` is
    // `x`, so NaN stays NaN.
    let x = s.max(s.splat(-104.5), s.min(s.splat(89.0), x));
    let n = s.round(s.mul(x, s.splat(std::f32::consts::LOG2_E)));
    // Computes x - n ln 2, with ln 2 in two parts so that the first product is exact.
    let r = s.fma(n, s.splat(-0.693_359_4), x);
    let r = s.fma(n, s.splat(2.121_944_4e-4), r);
    let mut p = s.splat(1.987_569_1e-4);
    for c in [
        1.398_199_9e-3,
        8.333_452e-3,
        4.166_579_6e-2,
        0.166_666_65,
        0.5,
    ] {
        p = s.fma(p, r, s.splat(c));
    }
    let e = s.add(s.fma(p, s.mul(r, r), r), s.splat(1.0));
    // Multiplies by 2^n in two steps, because one factor cannot represent the smallest n. Only
    // the last product rounds.
    let half = s.round(s.mul(n, s.splat(0.5)));
    s.mul(s.mul(e, s.pow2(half)), s.pow2(s.sub(n, half)))
}

/// Logistic function, `1 / (1 + e^-x)`.
#[inline(always)]
fn sigmoid<S: Simd>(s: S, x: S::V) -> S::V {
    let e = exp(s, s.mul(x, s.splat(-1.0)));
    s.div(s.splat(1.0), s.add(s.splat(1.0), e))
}

/// The error function: a polynomial near zero, and `1 - e^p` elsewhere.
#[inline(always)]
fn erf<S: Simd>(s: S, x: S::V) -> S::V {
    let t = s.abs(x);
    let t2 = s.mul(x, x);
    let mut far = s.fma(s.splat(-1.728_534_7e-5), t, s.splat(3.831_971_3e-4));
    let odd = s.fma(s.splat(-3.883_964_4e-3), t, s.splat(2.425_462_2e-2));
    far = s.fma(far, t2, odd);
    for c in [-0.106_777_88, -0.634_846_7, -0.128_717_51] {
        far = s.fma(far, t, s.splat(c));
    }
    far = s.sub(s.mul(far, t), t);
    far = s.copysign(s.sub(s.splat(1.0), exp(s, far)), x);

    let mut near = s.splat(-5.967_617e-4);
    for c in [
        4.991_194_2e-3,
        -2.676_813_5e-2,
        0.112_819_93,
        -0.376_125_34,
        0.128_379_17,
    ] {
        near = s.fma(near, t2, s.splat(c));
    }
    near = s.fma(near, x, x);
    s.if_greater(t, s.splat(0.927_734_4), far, near)
}

/// Applies an [`Activation`] to sixteen numbers.
#[inline(always)]
pub(super) fn activation<S: Simd>(s: S, f: Activation, x: S::V) -> S::V {
    match f {
        Activation::Silu => s.mul(x, sigmoid(s, x)),
        Activation::Gelu => {
            let erf = erf(s, s.mul(x, s.splat(std::f32::consts::FRAC_1_SQRT_2)));
            s.mul(s.mul(x, s.splat(0.5)), s.add(s.splat(1.0), erf))
        }
        Activation::GeluTanh => {
            // (1 + tanh u) / 2 is sigmoid(2u), without the cancellation.
            let cube = s.mul(s.mul(x, x), x);
            let inner = s.fma(cube, s.splat(0.044_715), x);
            s.mul(x, sigmoid(s, s.mul(inner, s.splat(1.595_769))))
        }
        // The second operand of `max` is `x`, so NaN stays NaN.
        Activation::Relu => s.max(s.splat(0.0), x),
    }
}

#[cfg(test)]
mod tests {
    use super::super::lanes::Scalar;
    use super::*;

    fn scalar(f: impl Fn([f32; 16]) -> [f32; 16], x: f32) -> f32 {
        f([x; 16])[0]
    }

    fn exp1(x: f32) -> f32 {
        scalar(|x| exp(Scalar, x), x)
    }

    /// Reference error function: its series, or one minus its continued fraction.
    fn erf64(x: f64) -> f64 {
        let t = x.abs();
        if t < 2.5 {
            let (mut term, mut sum) = (t, t);
            for n in 1..80 {
                term *= -t * t / f64::from(n);
                sum += term / f64::from(2 * n + 1);
            }
            (sum * 2.0 / std::f64::consts::PI.sqrt()).copysign(x)
        } else {
            let mut fraction = 0.0;
            for n in (1..100).rev() {
                fraction = f64::from(n) / 2.0 / (t + fraction);
            }
            let complement = (-t * t).exp() / std::f64::consts::PI.sqrt() / (t + fraction);
            (1.0 - complement).copysign(x)
        }
    }

    #[test]
    fn exp_is_within_two_ulp_and_right_at_the_ends() {
        let mut x = -103.9f32;
        while x < 88.7 {
            let (got, want) = (exp1(x), f64::from(x).exp());
            let ulp = f64::from(f32::from_bits(1)).max(want * f64::from(f32::EPSILON) / 2.0);
            let error = (f64::from(got) - want).abs() / ulp;
            assert!(error < 4.0, "exp({x}) = {got}: {error} half ulp");
            x += 0.0137;
        }
        assert_eq!(exp1(0.0), 1.0);
        assert_eq!(exp1(-0.0), 1.0);
        assert_eq!(exp1(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp1(-105.0), 0.0);
        assert_eq!(exp1(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp1(88.8), f32::INFINITY);
        assert!(exp1(88.7) < f32::INFINITY);
        assert!(exp1(-103.0) > 0.0);
        assert!(exp1(f32::NAN).is_nan());
    }

    #[test]
    fn erf_is_within_a_millionth() {
        let mut x = -6.0f32;
        while x < 6.0 {
            let (got, want) = (scalar(|x| erf(Scalar, x), x), erf64(f64::from(x)));
            assert!(
                (f64::from(got) - want).abs() < 2e-7,
                "erf({x}) = {got}, not {want}"
            );
            x += 0.0031;
        }
        assert_eq!(scalar(|x| erf(Scalar, x), f32::INFINITY), 1.0);
        assert_eq!(scalar(|x| erf(Scalar, x), f32::NEG_INFINITY), -1.0);
        assert!(scalar(|x| erf(Scalar, x), f32::NAN).is_nan());
    }

    #[test]
    fn activations_are_close_to_their_definitions() {
        let gelu_tanh = |x: f64| {
            let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            0.5 * x * (1.0 + u.tanh())
        };
        let mut x = -12.0f32;
        while x < 12.0 {
            let wide = f64::from(x);
            let cases = [
                (Activation::Silu, wide / (1.0 + (-wide).exp())),
                (
                    Activation::Gelu,
                    0.5 * wide * (1.0 + erf64(wide / 2f64.sqrt())),
                ),
                (Activation::GeluTanh, gelu_tanh(wide)),
                (Activation::Relu, wide.max(0.0)),
            ];
            for (f, want) in cases {
                let got = scalar(|x| activation(Scalar, f, x), x);
                let error = (f64::from(got) - want).abs();
                assert!(
                    error < 1e-6 * want.abs().max(1.0),
                    "{f:?}({x}) = {got}, not {want}"
                );
            }
            x += 0.0173;
        }
    }
}
