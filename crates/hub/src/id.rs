//! Name of a model on the hub.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::HubError;

/// Largest number of characters in each part of a name, as on the hub.
const PART_CHARS_MAX: usize = 96;

/// Name of a model: `org/name`, or only `name` for the oldest models of the hub.
///
/// The name is checked when parsed, so it is safe in URLs and as the path of a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelId(String);

impl ModelId {
    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the folder of the model in Djinn's home folder.
    pub(crate) fn folder_in(&self, home: &Path) -> PathBuf {
        home.join("models").join(&self.0)
    }

    /// Returns the name of the model's folder in the Hugging Face cache.
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

/// Returns whether a part of a name follows the rules of the hub. Without `--` the result of
/// [`ModelId::hf_folder`] is unambiguous; without a leading dot no part is `..` or a hidden file.
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
    fn valid_names_are_accepted() {
        for good in ["gpt2", "org/name", "Qwen/Qwen2.5-0.5B_x", "a/b"] {
            assert_eq!(good.parse::<ModelId>().unwrap().as_str(), good);
        }
    }

    #[test]
    fn names_unsafe_in_folders_or_urls_are_rejected() {
        let long = "x".repeat(97);
        for bad in [
            "", "/", "org/", "/name", "a/b/c", "../b", "a/..", "a/.b", "a b", "a/b?c", "a%2fb",
            "a\\b", "a--b/c", "é/b", &long,
        ] {
            assert!(bad.parse::<ModelId>().is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn names_give_folders() {
        let id: ModelId = "org/name".parse().unwrap();
        assert_eq!(
            id.folder_in(Path::new("/d")),
            Path::new("/d/models/org/name")
        );
        assert_eq!(id.hf_folder(), "models--org--name");
    }
}
