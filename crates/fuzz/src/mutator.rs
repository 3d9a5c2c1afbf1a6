//! A seeded mutator: the same seed gives the same inputs.

/// Numbers at the edges of integer types, as values of length fields and of digits in text.
const EDGES: [u64; 16] = [
    0,
    1,
    7,
    8,
    16,
    127,
    255,
    256,
    65_535,
    65_536,
    1 << 31,
    u32::MAX as u64,
    1 << 40,
    i64::MAX as u64,
    1 << 63,
    u64::MAX,
];

/// Makes inputs from the seeds and the dictionary of a target.
pub struct Mutator<'a> {
    state: u64,
    seeds: &'a [Vec<u8>],
    tokens: &'a [&'a str],
    longest: usize,
}

impl<'a> Mutator<'a> {
    /// Creates a mutator. `longest` limits the length of its inputs in bytes.
    pub fn new(seed: u64, seeds: &'a [Vec<u8>], tokens: &'a [&'a str], longest: usize) -> Self {
        Mutator {
            state: seed,
            seeds,
            tokens,
            longest,
        }
    }

    /// Next random number: splitmix64.
    fn number(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Random number below `end`; 0 if `end` is 0.
    fn below(&mut self, end: usize) -> usize {
        (self.number() % end.max(1) as u64) as usize
    }

    /// Random range of at most `longest` bytes inside `len` bytes.
    fn range(&mut self, len: usize, longest: usize) -> std::ops::Range<usize> {
        let start = self.below(len);
        let length = 1 + self.below(longest);
        start..(start + length).min(len)
    }

    /// Returns the next input: a seed after one to eight changes.
    pub fn next_input(&mut self) -> Vec<u8> {
        let mut data = match self.seeds.len() {
            0 => Vec::new(),
            count => self.seeds[self.below(count)].clone(),
        };
        let changes = 1 << self.below(4);
        for _ in 0..changes {
            self.change(&mut data);
        }
        data.truncate(self.longest);
        data
    }

    fn change(&mut self, data: &mut Vec<u8>) {
        let at = self.below(data.len());
        match self.below(12) {
            0 => self.flip_bit(data, at),
            1 => {
                let byte = self.number() as u8;
                data.splice(at..(at + 1).min(data.len()), [byte]);
            }
            2 => self.insert_token(data, at),
            3 => {
                let range = self.range(data.len(), 32);
                data.drain(range);
            }
            4 => {
                let range = self.range(data.len(), 64);
                let copy = data[range].to_vec();
                data.splice(at..at, copy);
            }
            5 => self.splice_seed(data, at),
            6 => self.set_field(data, at),
            7 | 8 => self.set_digits(data, at),
            9 => self.replace_token(data),
            10 => {
                let (from, to) = (self.range(data.len(), 32), at);
                let copy = data[from].to_vec();
                let end = (to + copy.len()).min(data.len());
                data.splice(to..end, copy);
            }
            _ => data.truncate(at.max(1)),
        }
    }

    fn flip_bit(&mut self, data: &mut [u8], at: usize) {
        if let Some(byte) = data.get_mut(at) {
            *byte ^= 1 << self.below(8);
        }
    }

    fn token(&mut self) -> &'a str {
        match self.tokens.len() {
            0 => "",
            count => self.tokens[self.below(count)],
        }
    }

    fn insert_token(&mut self, data: &mut Vec<u8>, at: usize) {
        data.splice(at..at, self.token().bytes());
    }

    /// Replaces an occurrence of one token by another.
    fn replace_token(&mut self, data: &mut Vec<u8>) {
        let (old, new) = (self.token().as_bytes(), self.token());
        let mut windows = data.windows(old.len().max(1));
        if let Some(at) = windows.position(|window| window == old) {
            data.splice(at..at + old.len(), new.bytes());
        }
    }

    /// Replaces the rest of the input by the end of another seed.
    fn splice_seed(&mut self, data: &mut Vec<u8>, at: usize) {
        if self.seeds.is_empty() {
            return;
        }
        let other = &self.seeds[self.below(self.seeds.len())];
        let from = self.below(other.len());
        data.truncate(at);
        data.extend_from_slice(&other[from..]);
    }

    fn edge(&mut self) -> u64 {
        let near = self.number() % 3;
        let edge = EDGES[self.below(EDGES.len())];
        edge.wrapping_add(near).wrapping_sub(1)
    }

    /// Overwrites a little-endian field with a number at the edge of its type.
    fn set_field(&mut self, data: &mut [u8], at: usize) {
        let width = 1 << self.below(4);
        let edge = self.edge().to_le_bytes();
        if let Some(field) = data.get_mut(at..at + width) {
            field.copy_from_slice(&edge[..width]);
        }
    }

    /// Replaces the first run of digits after a position by another number.
    fn set_digits(&mut self, data: &mut Vec<u8>, at: usize) {
        let is_digit = |byte: &u8| byte.is_ascii_digit();
        let Some(skipped) = data[at..].iter().position(is_digit) else {
            return;
        };
        let start = at + skipped;
        let length = data[start..].iter().take_while(|byte| is_digit(byte));
        let length = length.count();
        let number = match self.below(4) {
            0 => self.below(20).to_string(),
            1 => format!("-{}", self.edge()),
            2 => format!("{}e{}", self.below(99), self.below(400)),
            _ => self.edge().to_string(),
        };
        data.splice(start..start + length, number.bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::Mutator;

    #[test]
    fn a_seed_gives_the_same_inputs() {
        let seeds = [b"{\"a\": 12}".to_vec(), b"GGUF\x03\0\0\0".to_vec()];
        let inputs = |seed| {
            let mut mutator = Mutator::new(seed, &seeds, &["a", "b"], 64);
            (0..500).map(|_| mutator.next_input()).collect::<Vec<_>>()
        };
        assert_eq!(inputs(1), inputs(1));
        assert_ne!(inputs(1), inputs(2));
        assert!(inputs(3).iter().all(|input| input.len() <= 64));
    }

    #[test]
    fn no_seeds_and_no_tokens_are_allowed() {
        let mut mutator = Mutator::new(1, &[], &[], 16);
        for _ in 0..1000 {
            mutator.next_input();
        }
    }
}
