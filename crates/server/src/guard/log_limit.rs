//! Log lines that strangers cause, at a bounded rate and of a bounded length.

use std::{
    sync::{Mutex, PoisonError},
    time::Instant,
};

use super::bucket::TokenBucket;

/// Lines per second that strangers may cause.
const LINES_PER_SECOND: f64 = 5.0;
/// Lines that strangers may cause at once.
const BURST: f64 = 50.0;
/// Largest length of a client's text in a line.
const TEXT_CHARS_MAX: usize = 100;

/// Limit on the rate of log lines.
pub struct LogLimit {
    state: Mutex<LimitState>,
}

struct LimitState {
    bucket: TokenBucket,
    suppressed: u64,
}

impl LogLimit {
    /// Creates a limit that allows a burst of lines at once.
    pub fn new() -> Self {
        LogLimit {
            state: Mutex::new(LimitState {
                bucket: TokenBucket::full(BURST, Instant::now()),
                suppressed: 0,
            }),
        }
    }

    /// Whether a line may be written now, and how many lines before it were not; `None` if not.
    pub fn allow(&self) -> Option<u64> {
        self.allow_at(Instant::now())
    }

    fn allow_at(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.bucket.take(LINES_PER_SECOND, BURST, now).is_err() {
            state.suppressed += 1;
            return None;
        }
        Some(std::mem::take(&mut state.suppressed))
    }
}

/// A client's text as it may appear in the log: printable and short.
pub fn for_log(text: &str) -> String {
    let mut printable = text.chars().take(TEXT_CHARS_MAX).collect::<String>();
    printable = printable.escape_debug().to_string();
    match text.chars().nth(TEXT_CHARS_MAX) {
        Some(_) => printable + "…",
        None => printable,
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{BURST, LogLimit, for_log};

    #[test]
    fn lines_are_limited_and_the_suppressed_ones_counted() {
        let (limit, now) = (LogLimit::new(), Instant::now());
        let written = (0..1000).filter_map(|_| limit.allow_at(now)).count();
        assert_eq!(written, BURST as usize);
        let later = now + Duration::from_secs(1);
        assert_eq!(limit.allow_at(later), Some(1000 - BURST as u64));
        assert_eq!(limit.allow_at(later), Some(0));
    }

    #[test]
    fn texts_are_short_and_printable() {
        assert_eq!(for_log("/v1\n"), "/v1\\n");
        assert!(for_log(&"x".repeat(10_000)).chars().count() < 200);
    }
}
