//! Key file: TOML tables of API keys, their owners and the owners' limits.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use djinn_engine::Quota;
use serde::Deserialize;

/// Length in characters below which an API key is rejected as guessable.
const KEY_LENGTH_MIN: usize = 16;

/// BLAKE3 digest of an API key.
pub type KeyDigest = [u8; 32];

/// Owner of one or more API keys.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyOwner {
    /// Name of the owner. Sessions belong to this name.
    pub name: String,
    /// Whether the owner may load, push and unload models.
    pub admin: bool,
    /// Limit of requests per minute.
    pub requests_per_minute: Option<f64>,
    /// Limit of requests in flight.
    pub requests_at_once: Option<usize>,
    /// Limit of sessions and KV pages on every model.
    pub quota: Quota,
}

/// Error of a key file.
#[derive(Debug, thiserror::Error)]
#[error("Key file {}: {problem}", .path.display())]
pub struct KeyFileError {
    /// Path of the key file.
    pub path: PathBuf,
    /// Reason why the file is rejected.
    pub problem: KeyFileProblem,
}

/// Reason why a key file is rejected.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileProblem {
    /// The file cannot be read.
    #[error(transparent)]
    Read(#[from] io::Error),
    /// The file is not valid TOML, or has unknown fields.
    #[error("{0}")]
    Parse(String),
    /// The file contains no key.
    #[error("the file has no keys; add [[key]] tables with owner and key")]
    Empty,
    /// A key is too short.
    #[error("the key of '{0}' is shorter than {KEY_LENGTH_MIN} characters; use a longer one")]
    ShortKey(String),
    /// A digest is not 64 hexadecimal digits.
    #[error("the blake3 digest of '{0}' is not 64 hexadecimal digits")]
    Digest(String),
    /// An entry has neither a key nor a digest, or both.
    #[error("the entry of '{0}' needs exactly one of key and blake3")]
    KeyOrDigest(String),
    /// An owner has an empty name, or one with control characters.
    #[error("an entry has an empty or unprintable owner; set owner to a name")]
    OwnerName,
    /// A rate limit is not positive.
    #[error("requests_per_minute of '{0}' must be greater than 0")]
    Rate(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyFile {
    #[serde(default)]
    key: Vec<KeyEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyEntry {
    owner: String,
    /// API key in clear text; an entry has either `key` or `blake3`.
    key: Option<String>,
    /// BLAKE3 digest of the API key in hexadecimal.
    blake3: Option<String>,
    #[serde(default)]
    admin: bool,
    requests_per_minute: Option<f64>,
    requests_at_once: Option<usize>,
    sessions: Option<usize>,
    pages: Option<usize>,
}

/// Reads a key file: the digest of each key with its owner.
pub fn read(path: &Path) -> Result<Vec<(KeyDigest, KeyOwner)>, KeyFileError> {
    parse(path).map_err(|problem| KeyFileError {
        path: path.to_owned(),
        problem,
    })
}

fn parse(path: &Path) -> Result<Vec<(KeyDigest, KeyOwner)>, KeyFileProblem> {
    let text = fs::read_to_string(path)?;
    let file: KeyFile =
        toml::from_str(&text).map_err(|error| KeyFileProblem::Parse(error.message().to_owned()))?;
    match file.key.is_empty() {
        true => Err(KeyFileProblem::Empty),
        false => file.key.into_iter().map(check).collect(),
    }
}

fn check(entry: KeyEntry) -> Result<(KeyDigest, KeyOwner), KeyFileProblem> {
    let name = entry.owner;
    let digest = match (entry.key, entry.blake3) {
        (Some(key), None) if key.len() < KEY_LENGTH_MIN => {
            return Err(KeyFileProblem::ShortKey(name));
        }
        (Some(key), None) => blake3::hash(key.as_bytes()),
        (None, Some(hex)) => match blake3::Hash::from_hex(&hex) {
            Ok(digest) => digest,
            Err(_) => return Err(KeyFileProblem::Digest(name)),
        },
        _ => return Err(KeyFileProblem::KeyOrDigest(name)),
    };
    if name.is_empty() || name.chars().any(char::is_control) {
        return Err(KeyFileProblem::OwnerName);
    }
    if entry
        .requests_per_minute
        .is_some_and(|rate| rate.is_nan() || rate <= 0.0)
    {
        return Err(KeyFileProblem::Rate(name));
    }
    let owner = KeyOwner {
        name,
        admin: entry.admin,
        requests_per_minute: entry.requests_per_minute,
        requests_at_once: entry.requests_at_once,
        quota: Quota {
            sessions: entry.sessions.unwrap_or(usize::MAX),
            pages: entry.pages.unwrap_or(usize::MAX),
            ..Quota::default()
        },
    };
    Ok((*digest.as_bytes(), owner))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::{KeyFileProblem as P, read};

    #[test]
    fn invalid_key_files_are_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys.toml");
        let check = |text: &str, expect: fn(&P) -> bool| {
            std::fs::write(&path, text).unwrap();
            let error = read(&path).unwrap_err();
            assert!(expect(&error.problem), "{text}: {error}");
        };
        check("", |p| matches!(p, P::Empty));
        check(
            "[[key]]\nowner = 'ada'\nkey = 'short'\n",
            |p| matches!(p, P::ShortKey(owner) if owner == "ada"),
        );
        check("[[key]]\nowner = 'ada'\n", |p| {
            matches!(p, P::KeyOrDigest(_))
        });
        check("[[key]]\nowner = 'ada'\nblake3 = 'xyz'\n", |p| {
            matches!(p, P::Digest(_))
        });
        check("[[key]]\nowner = ''\nkey = '0123456789abcdef'\n", |p| {
            matches!(p, P::OwnerName)
        });
        let typo = "[[key]]\nowner = 'ada'\nkey = '0123456789abcdef'\nadmn = true\n";
        check(typo, |p| matches!(p, P::Parse(_)));
        let rate = "[[key]]\nowner = 'ada'\nkey = '0123456789abcdef'\nrequests_per_minute = 0.0\n";
        check(rate, |p| matches!(p, P::Rate(_)));
    }

    #[test]
    fn a_missing_key_file_is_an_error_with_its_path() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("absent.toml");
        let error = read(&path).unwrap_err();
        assert_eq!(error.path, path);
        assert!(matches!(error.problem, P::Read(_)));
    }
}
