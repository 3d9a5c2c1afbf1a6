//! Parsers of values that several flags take.

use std::time::Duration;

/// A count of at least 1.
pub fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".to_owned()),
        Ok(n) => Ok(n),
        Err(e) => Err(format!("{e}")),
    }
}

/// A rate in GB/s.
pub fn gigabytes_per_second(text: &str) -> Result<f64, String> {
    positive(text, "GB/s")
}

/// A number of sessions per second.
pub fn sessions_per_second(text: &str) -> Result<f64, String> {
    positive(text, "sessions per second")
}

/// A duration in seconds above 0.
pub fn positive_seconds(text: &str) -> Result<f64, String> {
    positive(text, "seconds")
}

fn positive(text: &str, unit: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(x) if x > 0.0 && x < 1e6 => Ok(x),
        _ => Err(format!("must be a number of {unit} above 0")),
    }
}

/// A duration in seconds, 0 included.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok();
    seconds
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| format!("'{text}' is not a number of seconds, 0 or more"))
}

/// Interval between updates.
pub fn update_interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok();
    let seconds = seconds.filter(|s| (0.05..=3600.0).contains(s));
    let seconds =
        seconds.ok_or_else(|| format!("'{text}' is not a number of seconds from 0.05 to 3600"))?;
    Ok(Duration::from_secs_f64(seconds))
}

/// A token and the number to add to its logit: `ID=X`.
pub fn logit_bias(text: &str) -> Result<(u32, f32), String> {
    let parsed = text
        .split_once('=')
        .and_then(|(id, bias)| Some((id.parse().ok()?, bias.parse().ok()?)));
    parsed.ok_or_else(|| format!("'{text}' is not ID=X, as in 42=-1.5"))
}

#[cfg(test)]
mod tests {
    use super::{logit_bias, positive_seconds, update_interval};

    #[test]
    fn biases() {
        assert_eq!(logit_bias("42=-1.5"), Ok((42, -1.5)));
        assert!(logit_bias("42").is_err());
        assert!(logit_bias("x=1").is_err());
    }

    #[test]
    fn durations() {
        assert_eq!(positive_seconds("0.5"), Ok(0.5));
        assert!(positive_seconds("0").is_err() && positive_seconds("x").is_err());
        assert!(update_interval("0.01").is_err() && update_interval("1").is_ok());
    }
}
