//! The secret that proves who asks.

use std::fmt;

use crate::HubError;

/// A hub token. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// A token as a person or a file holds it, line end included.
    pub fn new(text: &str) -> Result<Self, HubError> {
        let text = text.trim();
        if !text.is_empty() && text.chars().all(|c| c.is_ascii_graphic()) {
            Ok(Self(text.to_owned()))
        } else {
            Err(HubError::BadToken)
        }
    }

    /// The header that carries it.
    pub(crate) fn header(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_trimmed_checked_and_never_shown() {
        let token = Token::new(" hf_secret\n").unwrap();
        assert_eq!(token.header(), "Bearer hf_secret");
        assert_eq!(format!("{token:?}"), "Token(..)");
        for bad in ["", " ", "hf secret", "hf\r\nHost: x", "h\u{e9}"] {
            assert!(Token::new(bad).is_err(), "{bad:?} was taken");
        }
    }
}
