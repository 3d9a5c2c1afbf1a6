//! Axis scales: the position of a value on an axis, and the ticks.

/// Largest magnitude on an axis; larger values are drawn at its end, so that sums stay finite.
const HUGE: f64 = 1e150;
/// Smallest magnitude on a logarithmic axis.
const TINY: f64 = 1e-150;
/// Largest ratio of a logarithmic axis with ticks at 1, 2 and 5; longer axes have ticks at decades.
const FINE: f64 = 500.0;

/// A tick of an axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Tick {
    /// Value of the tick.
    pub at: f64,
    /// Text beside the tick.
    pub label: String,
}

/// Mapping of values to positions on an axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scale {
    /// Linear from `lo` to `hi`, with a tick every `step`.
    Linear { lo: f64, hi: f64, step: f64 },
    /// Logarithmic: all decades have the same length.
    Log { lo: f64, hi: f64 },
}

impl Scale {
    /// Linear scale from zero to a tick above all values, with at most `most` ticks.
    pub fn from_zero(values: impl IntoIterator<Item = f64>, most: usize) -> Self {
        let (lo, hi) = range(values.into_iter().chain([0.0]));
        let step = step(hi - lo, most);
        let lo = (lo / step).floor() * step;
        let hi = (hi / step - 1e-9).ceil() * step;
        Scale::Linear { lo, hi, step }
    }

    /// Linear scale from the smallest to the largest value.
    pub fn tight(values: impl IntoIterator<Item = f64>, most: usize) -> Self {
        let (lo, hi) = range(values.into_iter());
        let step = step(hi - lo, most);
        Scale::Linear { lo, hi, step }
    }

    /// Linear scale for counts: ticks only at whole numbers.
    pub fn whole(values: impl IntoIterator<Item = f64>, most: usize) -> Self {
        match Scale::tight(values, most) {
            Scale::Linear { lo, hi, step } => Scale::Linear {
                lo,
                hi,
                step: step.max(1.0),
            },
            log => log,
        }
    }

    /// Logarithmic scale from the smallest to the largest value, for an axis with its own ticks.
    pub fn log_tight(values: &[f64]) -> Self {
        let usable = |value: &&f64| **value > 0.0 && value.is_finite();
        let lo = values
            .iter()
            .filter(usable)
            .copied()
            .fold(f64::INFINITY, f64::min);
        let hi = values.iter().filter(usable).copied().fold(0.0, f64::max);
        match lo < hi {
            true => Scale::Log { lo, hi },
            false => Scale::log(values.iter().copied()),
        }
    }

    /// Logarithmic scale from a tick below all positive values to a tick above.
    pub fn log(values: impl IntoIterator<Item = f64>) -> Self {
        let positive = values
            .into_iter()
            .filter(|value| *value > 0.0 && value.is_finite());
        let (mut lo, mut hi) = (f64::INFINITY, 0.0);
        for value in positive {
            let value = value.clamp(TINY, HUGE);
            (lo, hi) = (value.min(lo), value.max(hi));
        }
        if hi == 0.0 {
            (lo, hi) = (1.0, 10.0);
        }
        let (lo, mut hi) = (one_two_five(lo, false), one_two_five(hi, true));
        if hi <= lo {
            hi = one_two_five(lo * 1.5, true);
        }
        if hi / lo <= FINE * (1.0 + 1e-9) {
            return Scale::Log { lo, hi };
        }
        let (lo, hi) = (decade(lo, false), decade(hi, true));
        let stride = stride(lo, hi);
        let hi = lo + (hi - lo + stride - 1) / stride * stride;
        Scale::Log {
            lo: power(lo),
            hi: power(hi),
        }
    }

    /// Returns the position of a value on the axis, from 0 to 1.
    pub fn place(&self, value: f64) -> f64 {
        let share = match *self {
            Scale::Linear { lo, hi, .. } => (value.clamp(-HUGE, HUGE) - lo) / (hi - lo),
            Scale::Log { lo, hi } => {
                (value.max(TINY).log10() - lo.log10()) / (hi.log10() - lo.log10())
            }
        };
        if share.is_finite() {
            share.clamp(0.0, 1.0)
        } else {
            0.0
        }
    }

    /// Returns the ticks of the scale, in increasing order.
    pub fn ticks(&self) -> Vec<Tick> {
        let tick = |at, step| Tick {
            at,
            label: label(at, step),
        };
        match *self {
            Scale::Linear { lo, hi, step } => {
                let (first, last) = ((lo / step - 1e-9).ceil(), (hi / step + 1e-9).floor());
                let count = (last - first).clamp(0.0, 100.0) as u32;
                (0..=count)
                    .map(|i| tick((first + f64::from(i)) * step, step))
                    .filter(|tick| tick.at <= hi + step * 1e-6)
                    .collect()
            }
            Scale::Log { lo, hi } => log_ticks(lo, hi).map(|at| tick(at, at)).collect(),
        }
    }
}

/// Returns the smallest and the largest value, widened where they are equal.
fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (mut lo, mut hi) = (f64::INFINITY, f64::NEG_INFINITY);
    for value in values.filter(|value| value.is_finite()) {
        let value = value.clamp(-HUGE, HUGE);
        (lo, hi) = (value.min(lo), value.max(hi));
    }
    if lo > hi {
        return (0.0, 1.0);
    }
    let size = lo.abs().max(hi.abs());
    if size < TINY {
        return (0.0, 1.0);
    }
    if hi - lo < size * 1e-6 {
        return match lo {
            _ if lo > 0.0 => (lo - size * 0.05, hi + size * 0.05),
            _ => (lo - size * 0.05, (hi + size * 0.05).max(0.0)),
        };
    }
    (lo, hi)
}

/// Returns a step of 1, 2 or 5 times a power of ten that gives at most `most` ticks.
fn step(span: f64, most: usize) -> f64 {
    let least = span / (most.max(3) - 2) as f64;
    one_two_five(least, true)
}

/// Rounds a value up (`above`) or down to 1, 2 or 5 times a power of ten.
fn one_two_five(value: f64, above: bool) -> f64 {
    let exponent = decade(value, false);
    let inside = [1.0, 2.0, 5.0, 10.0].map(|part| part * power(exponent));
    let slack = 1e-9;
    match above {
        true => *inside
            .iter()
            .find(|at| **at >= value * (1.0 - slack))
            .unwrap_or(&inside[3]),
        false => *inside
            .iter()
            .rfind(|at| **at <= value * (1.0 + slack))
            .unwrap_or(&inside[0]),
    }
}

fn power(exponent: i32) -> f64 {
    10f64.powi(exponent)
}

fn decade(value: f64, above: bool) -> i32 {
    let exponent = value.max(TINY).log10();
    let exponent = match above {
        true => (exponent - 1e-9).ceil(),
        false => (exponent + 1e-9).floor(),
    };
    exponent as i32
}

/// Number of decades between two ticks.
fn stride(lo: i32, hi: i32) -> i32 {
    ((hi - lo) + 6) / 7
}

fn log_ticks(lo: f64, hi: f64) -> Box<dyn Iterator<Item = f64>> {
    let (first, last) = (decade(lo, false), decade(hi, true));
    if hi / lo > FINE * (1.0 + 1e-9) {
        let stride = stride(first, last).max(1);
        return Box::new((first..=last).step_by(stride as usize).map(power));
    }
    let each = |exponent: i32| [1.0, 2.0, 5.0].map(|part| part * power(exponent));
    let inside = move |at: &f64| *at >= lo * (1.0 - 1e-9) && *at <= hi * (1.0 + 1e-9);
    Box::new((first..=last).flat_map(each).filter(inside))
}

/// Formats a tick value with the digits that its step needs.
fn label(value: f64, step: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let fine = decade(step, false);
    if value.abs() >= 1e6 || value.abs() < 1e-4 {
        let digits = (decade(value.abs(), false) - fine).clamp(0, 6) as usize;
        let text = format!("{value:.digits$e}");
        return match text.split_once('e') {
            Some((mantissa, exponent)) if mantissa.contains('.') => {
                let mantissa = mantissa.trim_end_matches('0').trim_end_matches('.');
                minus(&format!("{mantissa}e{exponent}"))
            }
            _ => minus(&text),
        };
    }
    let digits = (-fine).clamp(0, 8) as usize;
    minus(&grouped(&format!("{value:.digits$}")))
}

fn minus(text: &str) -> String {
    text.replace('-', "−")
}

/// Inserts thousands separators where the whole part has five digits or more.
pub fn grouped(text: &str) -> String {
    let (whole, rest) = text
        .split_once('.')
        .map_or((text, None), |(w, r)| (w, Some(r)));
    let (sign, digits) = whole
        .strip_prefix('-')
        .map_or(("", whole), |digits| ("-", digits));
    let mut parts = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && digits.len() > 4 && (digits.len() - i) % 3 == 0 {
            parts.push(',');
        }
        parts.push(digit);
    }
    let rest = rest.map_or(String::new(), |rest| format!(".{rest}"));
    format!("{sign}{parts}{rest}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Scale, grouped};

    fn labels(scale: Scale) -> String {
        let labels: Vec<String> = scale.ticks().into_iter().map(|tick| tick.label).collect();
        labels.join(" ")
    }

    #[test]
    fn ticks_are_round() {
        let cases = [
            (Scale::from_zero([53.2], 7), "0 20 40 60"),
            (Scale::from_zero([0.031], 7), "0 0.01 0.02 0.03 0.04"),
            (Scale::from_zero([0.0, 0.0], 7), "0 0.2 0.4 0.6 0.8 1.0"),
            (Scale::from_zero([], 7), "0 0.2 0.4 0.6 0.8 1.0"),
            (
                Scale::from_zero([20000.0], 6),
                "0 5000 10,000 15,000 20,000",
            ),
            (Scale::from_zero([3e9], 6), "0 1e9 2e9 3e9"),
            (Scale::tight([0.0, 39.0], 7), "0 10 20 30"),
            (Scale::tight([12.0], 7), "11.5 12.0 12.5"),
            (Scale::log([1.3, 88.0]), "1 2 5 10 20 50 100"),
            (Scale::log([0.13, 880.0]), "0.1 1 10 100 1000"),
            (Scale::log([2.1, 260.0]), "2 5 10 20 50 100 200 500"),
            (Scale::whole([0.0, 1.0], 8), "0 1"),
            (Scale::log([5.0]), "5 10"),
            (Scale::log([0.0, -1.0]), "1 2 5 10"),
            (Scale::log([1e-3, 1e9]), "0.001 0.1 10 1000 100,000 1e7 1e9"),
        ];
        for (scale, expect) in cases {
            assert_eq!(labels(scale), expect, "{scale:?}");
        }
        assert_eq!(grouped("-1234567.25"), "-1,234,567.25");
    }

    fn any_number() -> impl Strategy<Value = f64> {
        prop_oneof![
            Just(0.0),
            Just(f64::MAX),
            Just(f64::MIN_POSITIVE),
            Just(f64::NAN),
            -1e3..1e3f64,
            (-300..300i32).prop_map(|e| 10f64.powi(e)),
            any::<f64>(),
        ]
    }

    proptest! {
        #[test]
        fn ticks_rise_and_cover_all_values(values in prop::collection::vec(any_number(), 0..6), most in 3..12usize) {
            let usable = |value: &&f64| value.is_finite() && value.abs() < 1e149 && value.abs() > 1e-149;
            for scale in [
                Scale::from_zero(values.clone(), most),
                Scale::tight(values.clone(), most),
                Scale::log(values.clone()),
            ] {
                let ticks = scale.ticks();
                prop_assert!(ticks.windows(2).all(|two| two[0].at < two[1].at), "{scale:?} {ticks:?}");
                prop_assert!(ticks.len() <= most.max(9), "{scale:?} {ticks:?}");
                prop_assert!(ticks.iter().all(|tick| tick.at.is_finite() && !tick.label.is_empty()));
                for value in &values {
                    let place = scale.place(*value);
                    prop_assert!((0.0..=1.0).contains(&place), "{value} at {place}");
                }
                if matches!(scale, Scale::Linear { .. }) && scale == Scale::tight(values.clone(), most) {
                    continue;
                }
                let log = matches!(scale, Scale::Log { .. });
                let (first, last) = (ticks[0].at, ticks[ticks.len() - 1].at);
                for value in values.iter().filter(usable).filter(|value| !log || **value > 0.0) {
                    let slack = value.abs() * 1e-6 + if log { 0.0 } else { (last - first) * 1e-6 };
                    let covered = *value >= first - slack && *value <= last + slack;
                    prop_assert!(covered, "{value} {scale:?} {ticks:?}");
                }
            }
        }
    }
}
