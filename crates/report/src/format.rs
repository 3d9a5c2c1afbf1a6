//! Formatting of numbers for readers: three significant digits and a suitable unit.

use crate::{draw::grouped, result::Stats};

/// Formats a number with three significant digits.
pub fn digits(value: f64) -> String {
    let size = value.abs();
    if value == 0.0 {
        return "0".to_owned();
    }
    if !value.is_finite() {
        return "not a number".to_owned();
    }
    if !(1e-4..1e9).contains(&size) {
        return format!("{value:.2e}");
    }
    let decade = size.log10().floor() as i32;
    let after = (2 - decade).max(0) as usize;
    grouped(&format!("{value:.after$}"))
}

/// Returns the factor and the unit in which a number of this size is shown.
fn unit_of(size: f64, unit: &str) -> (f64, &str) {
    match unit {
        "ms" if size >= 1_000.0 => (1e-3, "s"),
        "MB" if size >= 1_000.0 => (1e-3, "GB"),
        "share" => (100.0, "%"),
        unit => (1.0, unit),
    }
}

fn plain(value: f64, unit: &str) -> String {
    match unit {
        "" if value.fract() == 0.0 && value.abs() < 1e9 => grouped(&format!("{value}")),
        _ => digits(value),
    }
}

fn with(text: &str, unit: &str) -> String {
    match unit {
        "" => text.to_owned(),
        unit => format!("{text} {unit}"),
    }
}

/// Formats a number with its unit.
pub fn show(value: f64, unit: &str) -> String {
    let (factor, unit) = unit_of(value.abs(), unit);
    with(&plain(value * factor, unit), unit)
}

/// Formats a memory size; whole gigabytes without decimals: `16 GB`.
pub fn show_size(mb: f64) -> String {
    match mb % 1000.0 == 0.0 && (1e3..1e9).contains(&mb) {
        true => format!("{} GB", mb / 1000.0),
        false => show(mb, "MB"),
    }
}

/// Formats a range, in the unit of the larger number.
pub fn show_range(low: f64, high: f64, unit: &str) -> String {
    let (factor, unit) = unit_of(low.abs().max(high.abs()), unit);
    let (low, high) = (plain(low * factor, unit), plain(high * factor, unit));
    match low == high {
        true => with(&low, unit),
        false => with(&format!("{low}–{high}"), unit),
    }
}

/// Formats statistics: the median, the range, and the spread as a share of the median.
pub fn show_stats(stats: &Stats, unit: &str) -> String {
    let median = show(stats.median, unit);
    if stats.count < 2 {
        return format!("{median} (1 run)");
    }
    if stats.min == stats.max {
        return median;
    }
    let range = show_range(stats.min, stats.max, unit);
    match stats.median {
        0.0 => format!("{median} ({range})"),
        _ => format!(
            "{median} ({range}; spread {})",
            show(stats.spread(), "share")
        ),
    }
}

/// Formats a ratio: `3.25 ×`.
pub fn times(ratio: f64) -> String {
    match ratio {
        ratio if (0.995..10.0).contains(&ratio) => format!("{ratio:.2} ×"),
        ratio if (10.0..100.0).contains(&ratio) => format!("{ratio:.1} ×"),
        ratio => format!("{} ×", digits(ratio)),
    }
}

#[cfg(test)]
mod tests {
    use super::{digits, show, show_range, show_size, show_stats, times};
    use crate::result::Stats;

    #[test]
    fn numbers_have_three_significant_digits() {
        let cases = [
            (0.0, "0"),
            (1234.5, "1234"),
            (12345.6, "12,346"),
            (99.95, "100.0"),
            (45.678, "45.7"),
            (1.0, "1.00"),
            (0.012345, "0.0123"),
            (1e-7, "1.00e-7"),
            (3e12, "3.00e12"),
            (-2.5, "-2.50"),
            (f64::NAN, "not a number"),
        ];
        for (value, expect) in cases {
            assert_eq!(digits(value), expect, "{value}");
        }
    }

    #[test]
    fn units_follow_the_size() {
        assert_eq!(show(23_456.0, "ms"), "23.5 s");
        assert_eq!(show(0.973, "share"), "97.3 %");
        assert_eq!(show(16_384.0, "MB"), "16.4 GB");
        assert_eq!(show(50.0, ""), "50");
        assert_eq!(show_size(16_000.0), "16 GB");
        assert_eq!(show_size(16_384.0), "16.4 GB");
        assert_eq!(show_range(1.0, 2.5, "ms"), "1.00–2.50 ms");
        assert_eq!(show_range(5.0, 5.0, ""), "5");
        assert_eq!(times(3.2468), "3.25 ×");
        assert_eq!(times(0.5), "0.500 ×");
        let stats = Stats::of(&[10.0, 11.0, 12.0]).unwrap();
        assert_eq!(
            show_stats(&stats, "ms"),
            "11.0 ms (10.0–12.0 ms; spread 18.2 %)"
        );
        assert_eq!(show_stats(&Stats::of(&[3.0]).unwrap(), ""), "3 (1 run)");
        assert_eq!(show_stats(&Stats::of(&[3.0, 3.0]).unwrap(), ""), "3");
    }
}
