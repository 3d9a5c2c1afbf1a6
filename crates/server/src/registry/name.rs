//! Names of models: the allowed characters, and the default name of a reference.

use crate::ServeError;

/// Largest length of a name in characters.
const LENGTH_MAX: usize = 128;

/// Returns an error unless a name is safe in paths, URLs and session names.
pub fn check_name(name: &str) -> Result<(), ServeError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
    let part = |part: &str| !part.is_empty() && !part.starts_with('.');
    match name.len() <= LENGTH_MAX && name.chars().all(plain) && name.split('/').all(part) {
        true => Ok(()),
        false => Err(ServeError::Invalid(format!(
            "'{}' is not a valid model name: use at most {LENGTH_MAX} letters, digits, '.', '_' and '-', with \
             '/' between parts",
            name.escape_debug().take(LENGTH_MAX).collect::<String>()
        ))),
    }
}

/// Default name of a model: the last part of its reference.
pub fn default_name(reference: &str) -> String {
    let bare = reference.strip_prefix("shape:").unwrap_or(reference);
    let bare = bare.split('?').next().unwrap_or(bare);
    let pushed = bare.strip_prefix("pushed:");
    let bare = pushed.map_or(bare, |hash| hash.get(..12).unwrap_or(hash));
    let last = bare
        .trim_end_matches('/')
        .rsplit('/')
        .next()
        .unwrap_or(bare);
    let plain = |c: char| match c.is_ascii_alphanumeric() || "._-".contains(c) {
        true => c,
        false => '-',
    };
    last.trim_start_matches('.').chars().map(plain).collect()
}

/// Name of the folder that stores a model's sessions.
pub(super) fn as_folder(name: &str) -> String {
    name.replace('/', "--")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{check_name, default_name};

    #[test]
    fn valid_and_invalid_names() {
        for good in ["a", "stories-7m", "org/name", "Qwen2.5-0.5B", "x_1"] {
            assert!(check_name(good).is_ok(), "{good}");
        }
        for bad in [
            "", "..", "a/..", "../a", "/a", "a//b", "a/", ".a", "a b", "a\0", "a:1", "ä",
        ] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
        assert!(check_name(&"a".repeat(129)).is_err());
    }

    #[test]
    fn default_names() {
        assert_eq!(default_name("/x/models/stories-7m/"), "stories-7m");
        assert_eq!(default_name("Qwen/Qwen2.5-0.5B"), "Qwen2.5-0.5B");
        assert_eq!(default_name("shape:llama-2-13b?layers=2"), "llama-2-13b");
        assert_eq!(default_name("pushed:0123456789abcdef"), "0123456789ab");
    }

    proptest! {
        #[test]
        fn no_valid_name_escapes_its_folder(name in ".{0,40}") {
            if check_name(&name).is_ok() {
                let path = std::path::Path::new("/a").join(&name);
                let plain = |c: std::path::Component<'_>| {
                    matches!(c, std::path::Component::RootDir | std::path::Component::Normal(_))
                };
                prop_assert!(path.starts_with("/a") && path.components().all(plain));
            }
        }
    }
}
