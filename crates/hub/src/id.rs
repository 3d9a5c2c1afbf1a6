//! A model's name on the hub.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::HubError;

/// The hub's own limit on each half of a name.
const PART_CHARS_MAX: usize = 96;

/// `org/name`, or `name` alone for the hub's oldest models.
///
/// Checked on the way in, so that it can stand in a URL and name a folder as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelId(String);

impl ModelId {
    /// As it is written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Where the model lies under Djinn's home.
    pub(crate) fn folder_in(&self, home: &Path) -> PathBuf {
        home.join("models").join(&self.0)
    }

    /// How the Hugging Face cache names the model's folder.
    pub(crate) fn hf_folder(&self) -> String {
        format!("models--{}", self.0.replace('/', "--"))
    }
}

impl FromStr for ModelId {
    type Err = HubError;

    fn from_str(given: &str) -> Result<Self, HubError> {
        let parts: Vec<&str> = given.split('/').collect();
        if parts.len() <= 2 && parts.iter().all(|part| is_name(part)) {
            Ok(Self(given.to_owned()))
        } else {
            Err(HubError::BadId {
                given: given.to_owned(),
            })
        }
    }
}

impl fmt::Display for ModelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The hub's rule. It has no `--`, which is what makes [`ModelId::hf_folder`] unambiguous, and no
/// dot in front, which keeps `..` and hidden files out of the folders.
fn is_name(part: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=PART_CHARS_MAX).contains(&part.len())
        && part.chars().all(allowed)
        && !part.starts_with(['-', '.'])
        && !part.ends_with(['-', '.'])
        && !part.contains("--")
        && !part.contains("..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_what_the_hub_takes() {
        for good in ["gpt2", "org/name", "Qwen/Qwen2.5-0.5B_x", "a/b"] {
            assert_eq!(good.parse::<ModelId>().unwrap().as_str(), good);
        }
    }

    #[test]
    fn refuses_what_cannot_be_a_folder_or_a_url() {
        let long = "x".repeat(97);
        for bad in [
            "", "/", "org/", "/name", "a/b/c", "../b", "a/..", "a/.b", "a b", "a/b?c", "a%2fb",
            "a\\b", "a--b/c", "é/b", &long,
        ] {
            assert!(bad.parse::<ModelId>().is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn names_its_folders() {
        let id: ModelId = "org/name".parse().unwrap();
        assert_eq!(
            id.folder_in(Path::new("/d")),
            Path::new("/d/models/org/name")
        );
        assert_eq!(id.hf_folder(), "models--org--name");
    }
}
