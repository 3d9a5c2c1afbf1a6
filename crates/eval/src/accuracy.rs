//! Comparison of logits and tokens with those of the reference run.

use djinn_report::NORM_LIMIT;

/// Difference between logits and those of the reference run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogitDifference {
    /// Euclidean norm of the difference; `f64::MAX` if the logits cannot be compared.
    pub norm: f64,
}

impl LogitDifference {
    /// Compares logits with the reference. Different lengths and NaN count as the largest difference.
    pub fn of(found: &[f32], reference: &[f32]) -> Self {
        if found.len() != reference.len() || found.is_empty() {
            return LogitDifference { norm: f64::MAX };
        }
        let norm = norm(
            found
                .iter()
                .zip(reference)
                .map(|(a, b)| f64::from(*a) - f64::from(*b)),
        );
        LogitDifference {
            norm: if norm.is_finite() { norm } else { f64::MAX },
        }
    }

    /// Whether the difference is below the limit.
    pub fn matches(self) -> bool {
        self.norm < NORM_LIMIT
    }
}

/// Returns the norm of the change of logits as a share of their norm.
pub fn relative_change(before: &[f32], after: &[f32]) -> f64 {
    let difference = LogitDifference::of(after, before).norm;
    difference / norm(before.iter().map(|value| f64::from(*value)))
}

/// Returns the Euclidean norm.
fn norm(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|value| value * value).sum::<f64>().sqrt()
}

/// Returns the number of tokens that differ.
pub fn differing_tokens(before: &[u32], after: &[u32]) -> usize {
    let pairs = before.iter().zip(after).filter(|(a, b)| a != b);
    pairs.count() + before.len().abs_diff(after.len())
}

#[cfg(test)]
mod tests {
    use super::{LogitDifference, differing_tokens, relative_change};

    #[test]
    fn changed_logits_do_not_match() {
        let reference = [1.0, -2.0, 3.0, 0.5];
        assert_eq!(LogitDifference::of(&reference, &reference).norm, 0.0);
        assert!(LogitDifference::of(&reference, &reference).matches());
        let mut changed = reference;
        changed[2] += 0.05;
        assert!(LogitDifference::of(&changed, &reference).matches());
        changed[2] += 0.1;
        assert!(!LogitDifference::of(&changed, &reference).matches());
        assert!(!LogitDifference::of(&reference[..3], &reference).matches());
        assert!(!LogitDifference::of(&[], &[]).matches());
        changed[0] = f32::NAN;
        assert!(!LogitDifference::of(&changed, &reference).matches());
    }

    #[test]
    fn changes_and_differing_tokens_are_counted() {
        assert!((relative_change(&[3.0, 4.0], &[3.0, 3.0]) - 0.2).abs() < 1e-12);
        assert_eq!(differing_tokens(&[1, 2, 3], &[1, 5, 3]), 1);
        assert_eq!(differing_tokens(&[1, 2, 3], &[1, 2]), 1);
    }
}
