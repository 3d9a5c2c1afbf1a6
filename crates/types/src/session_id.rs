//! Identifiers of sessions.

use std::{fmt, str::FromStr};

use crate::text::shown;

/// Identifier of a session: a ULID, unique for ever. The first 48 bits are the time of creation
/// in milliseconds since 1970, the other 80 bits are random, so that identifiers sort by age.
/// Sessions that were saved by releases before 0.2 keep their numbers, which sort first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId {
    // Two halves: a number of 128 bits would align errors that name a session to 16 bytes.
    high: u64,
    low: u64,
}

/// Digits of the text form, in order of their values.
const DIGITS: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

/// Number of digits of the text form.
const LENGTH: usize = 26;

/// Number of random bits.
const RANDOM_BITS: u32 = 80;

impl SessionId {
    /// Creates an identifier from its 128 bits.
    pub const fn from_bits(bits: u128) -> Self {
        SessionId {
            high: (bits >> 64) as u64,
            low: bits as u64,
        }
    }

    /// Returns the 128 bits of the identifier.
    pub const fn bits(self) -> u128 {
        ((self.high as u128) << 64) | self.low as u128
    }

    /// Creates the identifier of a session that is created at `millis` milliseconds since 1970.
    /// Only the lower 80 bits of `random` count.
    pub fn from_parts(millis: u64, random: u128) -> Self {
        let random = random & ((1 << RANDOM_BITS) - 1);
        SessionId::from_bits((u128::from(millis) << RANDOM_BITS) | random)
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = self.bits();
        let digit = |at: usize| DIGITS[(bits >> (5 * at)) as usize & 31] as char;
        let text: String = (0..LENGTH).rev().map(digit).collect();
        f.pad(&text)
    }
}

/// Error of a text that is no identifier of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseSessionIdError {
    /// Beginning of the text.
    pub text: String,
}

impl fmt::Display for ParseSessionIdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "'{}' is not the id of a session: expected {LENGTH} digits and letters, or the number \
             of a session of an older version",
            self.text
        )
    }
}

impl std::error::Error for ParseSessionIdError {}

impl FromStr for SessionId {
    type Err = ParseSessionIdError;

    /// Parses the 26 digits of an identifier, in upper or lower case, or the decimal number of a
    /// session that an older version saved.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseSessionIdError { text: shown(text) };
        if text.len() != LENGTH {
            let is_number = text.len() <= 20 && text.bytes().all(|byte| byte.is_ascii_digit());
            let number = text.parse::<u64>().ok().filter(|_| is_number);
            return number
                .map(|n| SessionId::from_bits(n.into()))
                .ok_or_else(error);
        }
        let mut bits: u128 = 0;
        for byte in text.bytes() {
            let byte = byte.to_ascii_uppercase();
            let digit = DIGITS.iter().position(|&digit| digit == byte);
            let digit = digit.ok_or_else(error)? as u128;
            // The first digit has three bits.
            if bits >> (u128::BITS - 5) != 0 {
                return Err(error());
            }
            bits = (bits << 5) | digit;
        }
        Ok(SessionId::from_bits(bits))
    }
}

#[cfg(test)]
mod tests {
    use super::SessionId;

    #[test]
    fn text_and_back() {
        let id = SessionId::from_parts(1_469_918_176_385, 0x7CAB_DEF0_1234_5678_9ABC);
        let text = id.to_string();
        assert_eq!(text.len(), 26);
        assert!(text.starts_with("01ARYZ6S41"), "{text}");
        assert_eq!(text.parse(), Ok(id));
        assert_eq!(text.to_lowercase().parse(), Ok(id));
        for id in [SessionId::from_bits(0), SessionId::from_bits(u128::MAX)] {
            assert_eq!(id.to_string().parse(), Ok(id));
        }
        assert_eq!(
            SessionId::from_bits(u128::MAX).to_string(),
            "7ZZZZZZZZZZZZZZZZZZZZZZZZZ"
        );
    }

    #[test]
    fn numbers_of_older_versions_come_first() {
        assert_eq!("17".parse(), Ok(SessionId::from_bits(17)));
        assert_eq!(
            u64::MAX.to_string().parse(),
            Ok(SessionId::from_bits(u64::MAX.into()))
        );
        assert!(SessionId::from_bits(u64::MAX.into()) < SessionId::from_parts(1, 0));
        assert!(SessionId::from_parts(1, u128::MAX) < SessionId::from_parts(2, 0));
    }

    #[test]
    fn other_texts_are_refused() {
        let wrong = [
            "",
            "x",
            "+1",
            "-1",
            "1 ",
            "18446744073709551616",
            "8ZZZZZZZZZZZZZZZZZZZZZZZZZ",
        ];
        let long = "0".repeat(1 << 20);
        for text in wrong
            .into_iter()
            .chain([long.as_str(), "01ARYZ6S41TSV4RRFFQ69G5FAU"])
        {
            let error = text.parse::<SessionId>().unwrap_err();
            assert!(error.to_string().len() < 300);
        }
    }
}
