//! Times in UTC, as result files store them.

use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds of a day.
const DAY: u64 = 86_400;
/// Days of 400 years of the Gregorian calendar.
const DAYS_OF_400_YEARS: u64 = 146_097;
/// Days from 1 March of the year 0 to 1 January 1970.
const DAYS_TO_1970: u64 = 719_468;

/// Returns a time in RFC 3339 format, with whole seconds. A time before 1970 counts as 1970.
pub fn utc_text(time: SystemTime) -> String {
    let seconds = time
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    let (year, month, day) = date(seconds / DAY);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Returns year, month and day of a number of days since 1970. Years are counted from March, so that a
/// leap day is the last day of its year.
fn date(days_since_1970: u64) -> (u64, u64, u64) {
    let days = days_since_1970 + DAYS_TO_1970;
    let (era, day) = (days / DAYS_OF_400_YEARS, days % DAYS_OF_400_YEARS);
    // Every 4 years have a leap day, every 100 years lack one, and the last of 400 years has one.
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    // The months from March on have 153 days in every five.
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next_year) = match month {
        0..=9 => (month + 3, 0),
        _ => (month - 9, 1),
    };
    (400 * era + year + next_year, month, day)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::utc_text;

    #[test]
    fn times_are_dates_of_the_gregorian_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_763_456_789, "2025-11-18T09:06:29Z"),
            (1_798_761_600, "2027-01-01T00:00:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(
                utc_text(UNIX_EPOCH + Duration::from_secs(seconds)),
                expected
            );
        }
    }
}
