//! Token bucket: a rate with a burst.

use std::time::{Duration, Instant};

/// Bucket that fills at a rate up to its size. Each use takes one token.
#[derive(Clone, Copy, Debug)]
pub struct TokenBucket {
    left: f64,
    refilled: Instant,
}

impl TokenBucket {
    /// Creates a full bucket of `size` tokens.
    pub fn full(size: f64, now: Instant) -> Self {
        TokenBucket {
            left: size,
            refilled: now,
        }
    }

    /// Takes a token from a bucket of `size` tokens that fills with `per_second` tokens a second. Returns the
    /// time until the next token if there is none.
    pub fn take(&mut self, per_second: f64, size: f64, now: Instant) -> Result<(), Duration> {
        let passed = now.saturating_duration_since(self.refilled).as_secs_f64();
        self.left = (self.left + passed * per_second).min(size);
        self.refilled = now;
        if self.left < 1.0 {
            let seconds = (1.0 - self.left) / per_second.max(1e-9);
            return Err(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX));
        }
        self.left -= 1.0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::TokenBucket;

    #[test]
    fn a_bucket_empties_and_fills() {
        let now = Instant::now();
        let mut bucket = TokenBucket::full(2.0, now);
        assert_eq!(bucket.take(0.5, 2.0, now), Ok(()));
        assert_eq!(bucket.take(0.5, 2.0, now), Ok(()));
        assert_eq!(bucket.take(0.5, 2.0, now), Err(Duration::from_secs(2)));
        let later = now + Duration::from_secs(100);
        assert_eq!(bucket.take(0.5, 2.0, later), Ok(()));
        assert_eq!(bucket.take(0.5, 2.0, later), Ok(()));
        assert!(
            bucket.take(0.5, 2.0, later).is_err(),
            "no more than its size"
        );
    }
}
