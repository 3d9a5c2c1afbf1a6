//! Whether what was computed is what had to be.

use djinn_report::NORM_LIMIT;

/// Logits beside the reference's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Logits {
    /// Length of their difference; infinite where they cannot be compared.
    pub norm: f64,
}

impl Logits {
    /// Compares; of another length nothing is alike, and what is no number is like nothing.
    pub fn beside(found: &[f32], reference: &[f32]) -> Self {
        if found.len() != reference.len() || found.is_empty() {
            return Logits { norm: f64::MAX };
        }
        let norm = length(
            found
                .iter()
                .zip(reference)
                .map(|(a, b)| f64::from(*a) - f64::from(*b)),
        );
        Logits {
            norm: if norm.is_finite() { norm } else { f64::MAX },
        }
    }

    /// Whether they are near enough.
    pub fn matches(self) -> bool {
        self.norm < NORM_LIMIT
    }
}

/// How much logits changed, of their length.
pub fn share(before: &[f32], after: &[f32]) -> f64 {
    let off = Logits::beside(after, before).norm;
    off / length(before.iter().map(|value| f64::from(*value)))
}

fn length(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|value| value * value).sum::<f64>().sqrt()
}

/// Of tokens, how many are others.
pub fn others(before: &[u32], after: &[u32]) -> usize {
    let pairs = before.iter().zip(after).filter(|(a, b)| a != b);
    pairs.count() + before.len().abs_diff(after.len())
}

#[cfg(test)]
mod tests {
    use super::{Logits, others, share};

    #[test]
    fn logits_that_were_touched_do_not_match() {
        let reference = [1.0, -2.0, 3.0, 0.5];
        assert_eq!(Logits::beside(&reference, &reference).norm, 0.0);
        assert!(Logits::beside(&reference, &reference).matches());
        let mut touched = reference;
        touched[2] += 0.05;
        assert!(Logits::beside(&touched, &reference).matches());
        touched[2] += 0.1;
        assert!(!Logits::beside(&touched, &reference).matches());
        assert!(!Logits::beside(&reference[..3], &reference).matches());
        assert!(!Logits::beside(&[], &[]).matches());
        touched[0] = f32::NAN;
        assert!(!Logits::beside(&touched, &reference).matches());
    }

    #[test]
    fn shares_and_counts() {
        assert!((share(&[3.0, 4.0], &[3.0, 3.0]) - 0.2).abs() < 1e-12);
        assert_eq!(others(&[1, 2, 3], &[1, 5, 3]), 1);
        assert_eq!(others(&[1, 2, 3], &[1, 2]), 1);
    }
}
