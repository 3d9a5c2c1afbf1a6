//! Statistics of a number over several runs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Statistics of one number over several runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Stats {
    /// Number of runs that measured the value.
    pub count: u64,
    /// Arithmetic mean.
    pub mean: f64,
    /// Sample standard deviation.
    pub std: f64,
    /// Median.
    pub median: f64,
    /// Smallest value.
    pub min: f64,
    /// Largest value.
    pub max: f64,
}

impl Stats {
    /// Computes the statistics of values; `None` if there are none or one is not finite.
    pub fn of(values: &[f64]) -> Option<Self> {
        if values.is_empty() || values.iter().any(|value| !value.is_finite()) {
            return None;
        }
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len();
        let mean = sorted.iter().sum::<f64>() / count as f64;
        let squares: f64 = sorted.iter().map(|value| (value - mean).powi(2)).sum();
        Some(Stats {
            count: count as u64,
            mean,
            std: match count {
                1 => 0.0,
                _ => (squares / (count - 1) as f64).sqrt(),
            },
            median: (sorted[(count - 1) / 2] + sorted[count / 2]) / 2.0,
            min: sorted[0],
            max: sorted[count - 1],
        })
    }

    /// Returns the distance between the smallest and the largest value, as a share of the median.
    pub fn spread(&self) -> f64 {
        match self.median {
            0.0 => 0.0,
            median => (self.max - self.min) / median.abs(),
        }
    }

    /// Whether both are statistics of the same values, up to rounding.
    pub(super) fn agrees_with(&self, other: &Stats) -> bool {
        let near = |a: f64, b: f64| (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1e-9);
        // The deviation is a difference of large numbers, so its error follows their size.
        let size = self.max.abs().max(self.min.abs());
        self.count == other.count
            && near(self.mean, other.mean)
            && near(self.median, other.median)
            && near(self.min, other.min)
            && near(self.max, other.max)
            && (self.std - other.std).abs() <= 1e-6 * size.max(1e-9)
    }
}

/// Returns the smallest value that at least `percent` percent of the values do not exceed; `None` for no
/// values.
pub fn percentile(values: &[f64], percent: usize) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len();
    let at = (count * percent).div_ceil(100).clamp(1, count.max(1)) - 1;
    sorted.get(at).copied()
}

#[cfg(test)]
mod tests {
    use super::{Stats, percentile};

    #[test]
    fn percentiles_are_measured_values() {
        let values: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        let all = [50, 90, 99, 100].map(|percent| percentile(&values, percent));
        assert_eq!(all, [100.0, 180.0, 198.0, 200.0].map(Some));
        assert_eq!(percentile(&[7.0], 99), Some(7.0));
        assert_eq!(percentile(&[], 50), None);
    }

    #[test]
    fn statistics_of_several_values() {
        let stats = Stats::of(&[4.0, 1.0, 2.0, 3.0]).unwrap();
        let expect = (4, 2.5, 2.5, 1.0, 4.0);
        let found = (stats.count, stats.mean, stats.median, stats.min, stats.max);
        assert_eq!(found, expect);
        assert!((stats.std - 1.290_994_448_7).abs() < 1e-9);
        assert!((stats.spread() - 1.2).abs() < 1e-12);
        assert_eq!(Stats::of(&[7.0]).unwrap().std, 0.0);
        assert_eq!(Stats::of(&[]), None);
        assert_eq!(Stats::of(&[1.0, f64::NAN]), None);
    }
}
