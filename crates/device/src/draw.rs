//! Sampling of one element of a row by weight.
//!
//! The weight of an element is `exp((x − largest) / temperature)`, scaled to an integer.
//! Integers have the same sum in any order, so every device chooses the same element.

use std::cmp::Reverse;

/// Parameters of a random choice among the elements of a row. The elements are ranked in
/// descending order; of equal elements the one in the lower column ranks first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draw {
    /// Divisor of the differences to the largest element; 0 chooses the largest.
    pub temperature: f32,
    /// Number of largest elements to keep; 0 keeps all.
    pub top_k: u32,
    /// Share of the total weight to keep, from the largest element down; 1 keeps all.
    pub top_p: f32,
    /// Least weight of a kept element, as a share of the largest weight; 0 keeps all.
    pub min_p: f32,
    /// Random number that selects among the kept elements, as a fraction of 2⁶⁴.
    pub at: u64,
}

/// Weight of the largest element.
const ONE: f32 = (1u64 << 40) as f32;
/// Coefficients of f⁶ to f⁰ in the polynomial for 2ᶠ, with f between −½ and ½.
const POWER: [f32; 7] = [
    1.540_353_1e-4,
    1.333_355_8e-3,
    9.618_129e-3,
    5.550_411e-2,
    2.402_265e-1,
    6.931_472e-1,
    1.0,
];

impl Draw {
    /// Chooses the largest element.
    pub const LARGEST: Draw = Draw {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        at: 0,
    };

    /// Number of words that encode a draw for a device.
    pub const WORDS: usize = 6;

    /// Encodes the draw for a device.
    pub fn words(self) -> [i32; Self::WORDS] {
        let [t, p, m] =
            [self.temperature, self.top_p, self.min_p].map(|x| x.to_bits().cast_signed());
        let (low, high) = (self.at as u32, (self.at >> 32) as u32);
        [
            t,
            self.top_k.cast_signed(),
            p,
            m,
            low.cast_signed(),
            high.cast_signed(),
        ]
    }

    /// Decodes the words of a draw.
    pub(crate) fn from_words(words: [i32; Self::WORDS]) -> Self {
        let [t, top_k, p, m, low, high] = words.map(i32::cast_unsigned);
        let [temperature, top_p, min_p] = [t, p, m].map(f32::from_bits);
        Draw {
            temperature,
            top_k,
            top_p,
            min_p,
            at: u64::from(high) << 32 | u64::from(low),
        }
    }

    /// Returns the column of the chosen element; `None` if the row contains NaN.
    pub fn choose(self, row: &[f32]) -> Option<u32> {
        let (place, largest) = largest(row)?;
        if self.temperature == 0.0 {
            return Some(place);
        }
        let weigh = |(place, &x): (u32, &f32)| WeightedElement {
            key: u64::from(order(x)) << 32 | u64::from(!place),
            weight: weight(x, largest, self.temperature),
        };
        let mut all: Vec<WeightedElement> = (0..).zip(row).map(weigh).collect();
        let top_k = self.top_k as usize;
        if top_k > 0 && top_k < all.len() {
            all.select_nth_unstable_by_key(top_k - 1, |e| Reverse(e.key));
            all.truncate(top_k);
        }
        let mut total = sum(&all);
        let least = (f64::from(self.min_p) * f64::from(ONE)).ceil() as u64;
        let heavy = all.iter().filter(|e| e.weight >= least);
        let kept: u64 = heavy.map(|e| e.weight).sum();
        if self.top_p < 1.0 {
            let wanted = (f64::from(self.top_p) * total as f64).ceil() as u64;
            (_, total) = find(&mut all, wanted.clamp(1, total) - 1);
        }
        let total = total.min(kept);
        let target = (u128::from(self.at) * u128::from(total)) >> 64;
        let (key, _) = find(&mut all, target as u64);
        Some(!(key as u32))
    }
}

#[derive(Clone, Copy)]
struct WeightedElement {
    /// Sort key: higher for larger elements, and among equal ones for lower columns.
    key: u64,
    weight: u64,
}

fn sum(elements: &[WeightedElement]) -> u64 {
    elements.iter().map(|e| e.weight).sum()
}

/// Returns the column and the value of the largest element, of equal ones the lowest
/// column.
fn largest(row: &[f32]) -> Option<(u32, f32)> {
    let mut best = (0, f32::NEG_INFINITY);
    for (place, &x) in (0..).zip(row) {
        if x.is_nan() {
            return None;
        }
        if x > best.1 {
            best = (place, x);
        }
    }
    Some(best)
}

/// Maps floats to integers in the same order.
fn order(x: f32) -> u32 {
    let bits = x.to_bits();
    if bits >> 31 == 1 {
        !bits
    } else {
        bits | 1 << 31
    }
}

/// Integer weight of an element. Every step rounds the same way on all devices.
fn weight(x: f32, largest: f32, temperature: f32) -> u64 {
    if x == largest {
        return ONE as u64;
    }
    let y = (x - largest) / temperature * std::f32::consts::LOG2_E;
    if y < -41.0 {
        return 0;
    }
    let whole = y.round_ties_even();
    let rest = y - whole;
    let power = POWER.into_iter().reduce(|sum, c| sum * rest + c);
    let scale = f32::from_bits(((whole as i32 + 127) as u32) << 23);
    (power.expect("some") * scale * ONE) as u64
}

/// Returns the key of the element at which the weights, summed from the highest key down,
/// first exceed a target, and that sum.
fn find(mut among: &mut [WeightedElement], target: u64) -> (u64, u64) {
    let mut before = 0;
    while among.len() > 1 {
        let middle = among.len() / 2;
        among.select_nth_unstable_by_key(middle, |e| Reverse(e.key));
        let (high, low) = among.split_at_mut(middle);
        let upper = sum(high);
        if before + upper > target {
            among = high;
        } else {
            before += upper;
            among = low;
        }
    }
    (among[0].key, before + among[0].weight)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Draw, ONE, weight};

    fn warm(change: impl FnOnce(&mut Draw)) -> Draw {
        let mut draw = Draw {
            temperature: 1.0,
            ..Draw::LARGEST
        };
        change(&mut draw);
        draw
    }

    /// Elements chosen for evenly spaced random numbers.
    fn kept(draw: Draw, row: &[f32]) -> Vec<u32> {
        let at = |i: u64| Draw {
            at: i << 54,
            ..draw
        };
        let mut all: Vec<u32> = (0..1024).map(|i| at(i).choose(row).unwrap()).collect();
        all.dedup();
        all
    }

    #[test]
    fn filters() {
        // Probabilities 0.1, 0.2, 0.3, 0.4.
        let row: Vec<f32> = [0.1f32, 0.2, 0.3, 0.4].iter().map(|p| p.ln()).collect();
        let check = |draw: Draw, expect: &[u32]| assert_eq!(kept(draw, &row), expect, "{draw:?}");
        check(Draw::LARGEST, &[3]);
        check(warm(|_| {}), &[3, 2, 1, 0]);
        check(warm(|d| d.top_k = 2), &[3, 2]);
        check(warm(|d| d.top_k = 99), &[3, 2, 1, 0]);
        check(warm(|d| d.top_p = 0.69), &[3, 2]);
        check(warm(|d| d.top_p = 0.3), &[3]);
        check(warm(|d| d.min_p = 0.6), &[3, 2]);
        check(warm(|d| d.min_p = 1.0), &[3]);
        check(warm(|d| (d.top_k, d.top_p) = (3, 0.5)), &[3, 2]);
        check(warm(|d| d.temperature = 1e-30), &[3]);
    }

    #[test]
    fn equals_go_to_the_lowest_place_and_nothing_is_drawn_from_nan() {
        let infinite = f32::NEG_INFINITY;
        assert_eq!(Draw::LARGEST.choose(&[1.0, 3.0, 3.0]), Some(1));
        assert_eq!(Draw::LARGEST.choose(&[infinite; 3]), Some(0));
        assert_eq!(Draw::LARGEST.choose(&[1.0, f32::NAN, 5.0]), None);
        assert_eq!(warm(|_| {}).choose(&[1.0, f32::NAN]), None);
        assert_eq!(kept(warm(|d| d.top_k = 2), &[3.0; 4]), [0, 1]);
        assert_eq!(kept(warm(|_| {}), &[infinite, 2.0, infinite]), [1]);
        assert_eq!(kept(warm(|_| {}), &[f32::INFINITY, 2.0]), [0]);
        assert_eq!(kept(warm(|_| {}), &[infinite; 2]), [0, 1]);
    }

    proptest! {
        #[test]
        fn weights_are_those_of_the_exponential(x in -30f32..0.0, temperature in 0.1f32..3.0) {
            let expect = (f64::from(x) / f64::from(temperature)).exp();
            let found = weight(x, 0.0, temperature) as f64 / f64::from(ONE);
            // Allows for the rounding of the exponent, and of the weight to an integer.
            prop_assert!((found - expect).abs() <= 4e-6 * expect + 1e-12, "{found} {expect}");
        }

        #[test]
        fn words_say_the_same(temperature: f32, top_k: u32, at: u64) {
            let draw = Draw { temperature, top_k, top_p: 0.9, min_p: 0.1, at };
            let again = Draw::from_words(draw.words());
            prop_assert_eq!(again.words(), draw.words());
        }

        /// Compares the choice with a plain one that sorts all elements and sums them in order.
        #[test]
        fn chooses_as_if_sorted(
            row in prop::collection::vec(prop_oneof![-20f32..20.0, Just(1.0), Just(f32::NEG_INFINITY)], 1..60),
            temperature in 0.01f32..3.0, top_k in 0u32..70, top_p in 0.01f32..=1.0,
            min_p in 0.0f32..=1.0, at: u64,
        ) {
            let draw = Draw { temperature, top_k, top_p, min_p, at };
            let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let mut sorted: Vec<(u32, f32)> = (0..).zip(row.iter().copied()).collect();
            sorted.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            if top_k > 0 {
                sorted.truncate(top_k as usize);
            }
            let weighed: Vec<(u32, u64)> =
                sorted.iter().map(|&(place, x)| (place, weight(x, largest, temperature))).collect();
            let total: u64 = weighed.iter().map(|e| e.1).sum();
            let (mut sum, mut left) = (0, Vec::new());
            for (place, weight) in weighed {
                let enough = top_p < 1.0 && sum as f64 >= f64::from(top_p) * total as f64;
                if enough || (weight as f64) < f64::from(min_p) * f64::from(ONE) {
                    break;
                }
                sum += weight;
                left.push((place, weight));
            }
            let mut target = ((u128::from(at) * u128::from(sum)) >> 64) as u64;
            let expect = left.iter().find(|(_, weight)| {
                let here = target < *weight;
                target = target.saturating_sub(*weight);
                here
            });
            prop_assert_eq!(draw.choose(&row), expect.map(|e| e.0));
        }
    }
}
