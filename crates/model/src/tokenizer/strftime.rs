//! The current date for chat templates, formatted as by Python's `strftime`.

use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = [
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
];

/// Formats the current time, in UTC.
pub(crate) fn strftime_now(format: &str) -> Result<String, String> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    strftime(format, since.map_or(0, |since| since.as_secs()))
}

/// Formats a time, given in seconds since 1970.
fn strftime(format: &str, seconds: u64) -> Result<String, String> {
    let (days, second) = (seconds / 86400, seconds % 86400);
    let date = CivilDate::from_days(days);
    let month = MONTHS[date.month - 1];
    let weekday = DAYS[(days % 7) as usize];
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = chars.next();
        // The directive `%-d` is the number without a leading zero.
        let bare = directive == Some('-');
        if bare {
            directive = chars.next();
        }
        let number = match directive {
            Some('d') => date.day as u64,
            Some('m') => date.month as u64,
            Some('y') => date.year % 100,
            Some('H') => second / 3600,
            Some('I') => (second / 3600 + 11) % 12 + 1,
            Some('M') => second / 60 % 60,
            Some('S') => second % 60,
            word => {
                out.push_str(&match word {
                    Some('Y') => date.year.to_string(),
                    Some('B') => month.to_owned(),
                    Some('b') => month[..3].to_owned(),
                    Some('A') => weekday.to_owned(),
                    Some('a') => weekday[..3].to_owned(),
                    Some('p') => if second < 43200 { "AM" } else { "PM" }.to_owned(),
                    Some('%') => "%".to_owned(),
                    _ => {
                        return Err(format!(
                            "strftime_now: format '{format}' has an unsupported directive"
                        ));
                    }
                });
                continue;
            }
        };
        let width = if bare { 0 } else { 2 };
        // Writing to a string cannot fail.
        let _ = write!(out, "{number:0width$}");
    }
    Ok(out)
}

struct CivilDate {
    year: u64,
    month: usize,
    day: usize,
}

impl CivilDate {
    /// Converts a number of days since 1970 to a date. The computation uses years that start in
    /// March, in which the leap day is the last day and all months follow one rule.
    fn from_days(days: u64) -> Self {
        let days = days + 719_468;
        let (era, of_era) = (days / 146_097, days % 146_097);
        let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year + year / 4 - year / 100);
        let march = (5 * of_year + 2) / 153;
        let month = if march < 10 { march + 3 } else { march - 9 };
        CivilDate {
            year: era * 400 + year + u64::from(month <= 2),
            month: month as usize,
            day: (of_year - (153 * march + 2) / 5 + 1) as usize,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::strftime;

    #[test]
    fn dates_are_formatted_as_in_python() {
        let check = |seconds: u64, format: &str, expect: &str| {
            assert_eq!(strftime(format, seconds).as_deref(), Ok(expect));
        };
        check(0, "%Y-%m-%d %H:%M:%S %A", "1970-01-01 00:00:00 Thursday");
        check(951_782_400, "%d %b %Y", "29 Feb 2000");
        check(1_721_979_045, "%d %b %Y", "26 Jul 2024");
        check(
            1_721_979_045,
            "%B %-d, %y, %a %I:%M %p",
            "July 26, 24, Fri 07:30 AM",
        );
        check(1_735_689_599, "%Y-%m-%d %H%%", "2024-12-31 23%");
        check(1_735_689_600, "%Y-%m-%d", "2025-01-01");
        assert!(strftime("%Q", 0).is_err());
        assert!(strftime("%", 0).is_err());
    }
}
