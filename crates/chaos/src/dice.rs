//! Random choices that follow from a seed.

/// Generator of random choices (SplitMix64). Equal seeds give equal choices.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Creates a generator for one part of a run; each part has its own choices.
    pub fn new(seed: u64, part: u64) -> Self {
        let mut dice = Dice(seed ^ part.wrapping_mul(0xd6e8_feb8_6659_fd93));
        dice.number();
        dice
    }

    /// Next random number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// Number from 0 to `count - 1`.
    ///
    /// # Panics
    /// If `count` is zero.
    pub fn below(&mut self, count: usize) -> usize {
        (self.number() % count as u64) as usize
    }

    /// Number from `low` to `high`, both included.
    pub fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    /// Whether an event with a chance of 1 in `count` happens.
    pub fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    /// One of several values.
    ///
    /// # Panics
    /// If there are no values.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }

    /// Reorders values.
    pub fn shuffle<T>(&mut self, values: &mut [T]) {
        for end in (1..values.len()).rev() {
            values.swap(end, self.below(end + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Dice;

    #[test]
    fn equal_seeds_give_equal_choices() {
        let draw = |seed, part| {
            let mut dice = Dice::new(seed, part);
            (0..8).map(|_| dice.between(3, 90)).collect::<Vec<_>>()
        };
        assert_eq!(draw(1, 2), draw(1, 2));
        assert_ne!(draw(1, 2), draw(1, 3));
        assert_ne!(draw(1, 2), draw(2, 2));
        assert!(draw(5, 5).iter().all(|n| (3..=90).contains(n)));
    }
}
