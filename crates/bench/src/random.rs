//! Random numbers that follow from a seed, and the ranges they are drawn from.

use std::str::FromStr;

/// A number, or two bounds that a number is drawn between.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Between<T> {
    /// Lower bound.
    pub from: T,
    /// Upper bound, inclusive for whole numbers.
    pub to: T,
}

impl<T: FromStr + PartialOrd + Copy> FromStr for Between<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.parse().ok();
        let (from, to) = text.split_once("..").unwrap_or((text, text));
        match (number(from), number(to)) {
            (Some(from), Some(to)) if from <= to => Ok(Between { from, to }),
            _ => Err("expected a number, or two like 16..64, the lower first".to_owned()),
        }
    }
}

/// Generator of random numbers (SplitMix64).
pub struct SplitMix(pub u64);

impl SplitMix {
    /// Number that is at least 0 and below 1.
    pub fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Whole number between two bounds.
    pub fn count(&mut self, between: Between<usize>) -> usize {
        let span = (between.to - between.from + 1) as f64;
        between.from + (self.uniform() * span) as usize
    }

    /// Number between two bounds.
    pub fn time(&mut self, between: Between<f64>) -> f64 {
        between.from + self.uniform() * (between.to - between.from)
    }
}
