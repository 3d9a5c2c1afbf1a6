//! Access token of the hub.

use std::fmt;

use crate::HubError;

/// Access token of the hub. No output contains its text.
#[derive(Clone, PartialEq, Eq)]
pub struct HubToken(String);

impl HubToken {
    /// Checks a token. Whitespace around it is ignored.
    pub fn new(text: &str) -> Result<Self, HubError> {
        let text = text.trim();
        if !text.is_empty() && text.chars().all(|c| c.is_ascii_graphic()) {
            Ok(Self(text.to_owned()))
        } else {
            Err(HubError::BadToken)
        }
    }

    /// Returns the value of the `authorization` header.
    pub(crate) fn header(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

impl fmt::Debug for HubToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HubToken(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_trimmed_checked_and_never_shown() {
        let token = HubToken::new(" hf_secret\n").unwrap();
        assert_eq!(token.header(), "Bearer hf_secret");
        assert_eq!(format!("{token:?}"), "HubToken(..)");
        for bad in ["", " ", "hf secret", "hf\r\nHost: x", "h\u{e9}"] {
            assert!(HubToken::new(bad).is_err(), "{bad:?} was accepted");
        }
    }
}
