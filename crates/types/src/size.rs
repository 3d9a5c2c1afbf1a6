//! Sizes in bytes as users write and read them.

use std::{fmt, str::FromStr};

/// A number of bytes: `16GB`, `1.5GiB`, `512`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size(pub u64);

/// Error of parsing a [`Size`] or an [`Amount`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseSizeError {
    text: String,
}

impl fmt::Display for ParseSizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = &self.text;
        write!(
            f,
            "'{text}' is not a size; write 512MB, 16GB or 1.5GiB, or a share such as 0.5 where \
             the flag accepts one"
        )
    }
}

impl std::error::Error for ParseSizeError {}

const UNITS: [(&str, u64); 10] = [
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("b", 1),
    ("", 1),
];

impl Size {
    /// Rounds up to a size that its text states exactly, so that an error can name it and the user
    /// can type it.
    pub fn rounded_up(self) -> Self {
        let step = match self.0 {
            0..1_000 => 1,
            1_000..1_000_000 => 100,
            1_000_000..1_000_000_000 => 100_000,
            1_000_000_000..1_000_000_000_000 => 10_000_000,
            _ => 10_000_000_000,
        };
        Size(self.0.checked_next_multiple_of(step).unwrap_or(self.0))
    }
}

impl FromStr for Size {
    type Err = ParseSizeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseSizeError { text: text.into() };
        let lower = text.trim().to_ascii_lowercase();
        let digits = lower
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(lower.len());
        let (number, unit) = (&lower[..digits], lower[digits..].trim());
        // A fraction without a unit is a fraction of a byte, which is invalid.
        if unit.is_empty() && number.contains('.') {
            return Err(error());
        }
        let number: f64 = number.parse().map_err(|_| error())?;
        let (_, factor) = UNITS
            .iter()
            .find(|(name, _)| *name == unit)
            .ok_or_else(error)?;
        let bytes = number * *factor as f64;
        // An f64 above 2^53 does not represent every byte count.
        if bytes > (1u64 << 53) as f64 {
            return Err(error());
        }
        Ok(Size(bytes as u64))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0 as f64;
        match self.0 {
            0..1_000 => write!(f, "{} B", self.0),
            1_000..1_000_000 => write!(f, "{:.1} kB", bytes / 1e3),
            1_000_000..1_000_000_000 => write!(f, "{:.1} MB", bytes / 1e6),
            1_000_000_000..1_000_000_000_000 => write!(f, "{:.2} GB", bytes / 1e9),
            _ => write!(f, "{:.2} TB", bytes / 1e12),
        }
    }
}

/// Amount of memory: a number of bytes (`16GB`) or a share of all memory (`0.5`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// Number of bytes.
    Bytes(u64),
    /// Share of all memory, above 0 and at most 1.
    Share(f64),
}

impl fmt::Display for Amount {
    /// Writes the amount in a form that parses back to the same amount.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Amount::Bytes(bytes) => write!(f, "{bytes}B"),
            // A share has a point and no exponent.
            Amount::Share(share) if share.fract() == 0.0 => write!(f, "{share}.0"),
            Amount::Share(share) => write!(f, "{share}"),
        }
    }
}

impl Amount {
    /// Returns the number of bytes, given that all memory is `all` bytes.
    pub fn of(self, all: u64) -> u64 {
        match self {
            Amount::Bytes(bytes) => bytes,
            Amount::Share(share) => (all as f64 * share) as u64,
        }
    }
}

impl FromStr for Amount {
    type Err = ParseSizeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bare = text.trim();
        match bare.parse::<f64>() {
            Ok(share) if bare.contains('.') && share > 0.0 && share <= 1.0 => {
                Ok(Amount::Share(share))
            }
            _ => Ok(Amount::Bytes(text.parse::<Size>()?.0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Amount, Size};

    #[test]
    fn rounded_up_sizes_read_back_from_their_text() {
        let check = |bytes: u64, expect: &str| {
            let up = Size(bytes).rounded_up();
            assert!(up.0 >= bytes, "{bytes}: {up}");
            assert_eq!(up.to_string(), expect, "{bytes}");
            assert_eq!(expect.replace(' ', "").parse(), Ok(up), "{bytes}");
        };
        check(0, "0 B");
        check(999, "999 B");
        check(1_001, "1.1 kB");
        check(999_999, "1.0 MB");
        check(1_000_001, "1.1 MB");
        check(16_051_234, "16.1 MB");
        check(999_999_999, "1.00 GB");
        check(1_000_000_001, "1.01 GB");
        check(12_345_678_901, "12.35 GB");
        check(999_999_999_999, "1.00 TB");
        check(1_234_567_890_123, "1.24 TB");
    }

    #[test]
    fn parses_amounts() {
        let check = |text: &str, expect: Option<Amount>| {
            assert_eq!(text.parse().ok(), expect, "{text}");
        };
        check("0.5", Some(Amount::Share(0.5)));
        check("1.0", Some(Amount::Share(1.0)));
        check("16GB", Some(Amount::Bytes(16_000_000_000)));
        check("16GiB", Some(Amount::Bytes(16 << 30)));
        check("0.5GB", Some(Amount::Bytes(500_000_000)));
        check("4096", Some(Amount::Bytes(4096)));
        check("1.5", None);
        check("0.0", None);
        check("half", None);
        for share in [1.0, 0.5, 5e-39, f64::MIN_POSITIVE] {
            let shown = Amount::Share(share).to_string();
            check(&shown, Some(Amount::Share(share)));
        }
        assert_eq!(Amount::Share(0.5).of(1000), 500);
        assert_eq!(Amount::Bytes(7).of(1000), 7);
    }

    #[test]
    fn parses_sizes() {
        let check = |text: &str, expect: Option<u64>| {
            assert_eq!(text.parse().ok(), expect.map(Size), "{text}");
        };
        check("512", Some(512));
        check("16GB", Some(16_000_000_000));
        check("16 GiB", Some(16 << 30));
        check("1.5kib", Some(1536));
        check("0.5MB", Some(500_000));
        check("", None);
        check("GB", None);
        check("-1GB", None);
        check("1.2.3", None);
        check("16 bananas", None);
        check("1.5", None);
        check("99999999999TB", None);
    }

    #[test]
    fn displays_sizes() {
        let check = |bytes: u64, expect: &str| assert_eq!(Size(bytes).to_string(), expect);
        check(999, "999 B");
        check(1_500, "1.5 kB");
        check(13_900_000, "13.9 MB");
        check(26_030_000_000, "26.03 GB");
        check(1_400_000_000_000, "1.40 TB");
    }
}
