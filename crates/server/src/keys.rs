//! Who may come in, and how much each may ask: bearer keys with owners.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::{Duration, Instant},
};

use djinn_engine::Quota;
use serde::Deserialize;
use subtle::ConstantTimeEq;

use crate::ServeError;

/// Whose requests these are where a server has no keys.
pub const ANYBODY: &str = "local";

/// Somebody who may come in.
#[derive(Clone, Debug, PartialEq)]
pub struct Owner {
    /// What sessions are kept under.
    pub name: String,
    /// Whether models may be loaded, pushed and unloaded.
    pub admin: bool,
    /// Requests a minute.
    pub requests_per_minute: Option<f64>,
    /// Requests that are under way at once.
    pub requests_at_once: Option<usize>,
    /// What it may have of every model at once.
    pub quota: Quota,
}

impl Owner {
    /// Everybody, where there are no keys.
    fn anybody() -> Self {
        Owner {
            name: ANYBODY.to_owned(),
            admin: true,
            requests_per_minute: None,
            requests_at_once: None,
            quota: Quota::default(),
        }
    }
}

/// The file of keys.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    key: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    owner: String,
    /// The key itself, or the BLAKE3 of it in hexadecimal.
    key: Option<String>,
    blake3: Option<String>,
    #[serde(default)]
    admin: bool,
    requests_per_minute: Option<f64>,
    requests_at_once: Option<usize>,
    sessions: Option<usize>,
    pages: Option<usize>,
}

/// Keys shorter than this are guessed.
const SHORTEST: usize = 16;

type Digest = [u8; 32];

/// Who has which key.
struct Known {
    owners: Vec<(Digest, Arc<Owner>)>,
}

/// The keys of a server, as they stand.
pub struct Keys {
    path: Option<PathBuf>,
    known: RwLock<Arc<Known>>,
    anybody: Arc<Owner>,
    /// By owner: what is left of this minute's requests, and how many are under way.
    used: Mutex<HashMap<String, Used>>,
}

#[derive(Clone, Copy)]
struct Used {
    left: f64,
    at: Instant,
    under_way: usize,
}

impl Keys {
    /// Reads a file of keys; without one everybody may do everything.
    pub fn open(path: Option<&Path>) -> Result<Self, String> {
        let owners = path.map(read).transpose()?.unwrap_or_default();
        Ok(Keys {
            path: path.map(Path::to_owned),
            known: RwLock::new(Arc::new(Known { owners })),
            anybody: Arc::new(Owner::anybody()),
            used: Mutex::default(),
        })
    }

    /// Whether nobody needs one.
    pub fn is_open(&self) -> bool {
        self.path.is_none()
    }

    /// Reads the file again. Where that fails the keys stay as they are.
    pub fn reload(&self) -> Result<usize, String> {
        let Some(path) = &self.path else {
            return Ok(0);
        };
        let owners = read(path)?;
        let count = owners.len();
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        *known = Arc::new(Known { owners });
        Ok(count)
    }

    /// Every owner there is.
    pub fn owners(&self) -> Vec<Arc<Owner>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known
            .owners
            .iter()
            .map(|(_, owner)| Arc::clone(owner))
            .collect()
    }

    /// Whose key this is. Takes as long whichever it is, and whether or not it is any.
    pub fn owner(&self, authorization: Option<&[u8]>) -> Result<Arc<Owner>, ServeError> {
        if self.is_open() {
            return Ok(Arc::clone(&self.anybody));
        }
        let sent = authorization.and_then(bearer).unwrap_or_default();
        let sent = *blake3::hash(sent).as_bytes();
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let known = Arc::clone(&known);
        let mut found = None;
        for (digest, owner) in &known.owners {
            if bool::from(digest.ct_eq(&sent)) {
                found = Some(owner);
            }
        }
        found.cloned().ok_or(ServeError::Unauthenticated)
    }

    /// Lets a request of an owner in, unless there were too many; it is under way until the permit
    /// is dropped.
    pub fn admit(self: &Arc<Self>, owner: &Arc<Owner>) -> Result<Permit, ServeError> {
        let now = Instant::now();
        let mut all = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let most = owner.requests_per_minute.unwrap_or(f64::INFINITY);
        let used = all.entry(owner.name.clone()).or_insert(Used {
            left: most,
            at: now,
            under_way: 0,
        });
        if let Some(limit) = owner.requests_at_once
            && used.under_way >= limit
        {
            return Err(ServeError::Busy(format!(
                "{} has {limit} requests under way, and may have no more: wait for one",
                owner.name
            )));
        }
        if most.is_finite() {
            let back = (now - used.at).as_secs_f64() * most / 60.0;
            used.left = (used.left + back).min(most.max(1.0));
            used.at = now;
            if used.left < 1.0 {
                let retry = Duration::from_secs_f64((1.0 - used.left) * 60.0 / most.max(1e-9));
                return Err(ServeError::Rate { retry });
            }
            used.left -= 1.0;
        }
        used.under_way += 1;
        Ok(Permit {
            keys: Arc::clone(self),
            owner: owner.name.clone(),
        })
    }
}

/// A request that is under way.
pub struct Permit {
    keys: Arc<Keys>,
    owner: String,
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut all = self
            .keys
            .used
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(used) = all.get_mut(&self.owner) {
            used.under_way = used.under_way.saturating_sub(1);
        }
    }
}

/// The key of an `authorization` header.
fn bearer(header: &[u8]) -> Option<&[u8]> {
    let (scheme, key) = header.split_at_checked(7)?;
    scheme
        .eq_ignore_ascii_case(b"bearer ")
        .then(|| key.trim_ascii())
}

fn read(path: &Path) -> Result<Vec<(Digest, Arc<Owner>)>, String> {
    let error = |what: &dyn std::fmt::Display| format!("{}: {what}", path.display());
    let text = fs::read_to_string(path).map_err(|e| error(&e))?;
    let file: File = toml::from_str(&text).map_err(|e| error(&e.message()))?;
    if file.key.is_empty() {
        return Err(error(
            &"no keys: it wants [[key]] tables with owner and key",
        ));
    }
    let owners: Result<Vec<_>, String> = file.key.into_iter().map(known).collect();
    owners.map_err(|e| error(&e))
}

fn known(entry: Entry) -> Result<(Digest, Arc<Owner>), String> {
    let name = entry.owner;
    let digest = match (entry.key, entry.blake3) {
        (Some(key), None) if key.len() < SHORTEST => {
            return Err(format!(
                "the key of '{name}' is shorter than {SHORTEST} characters"
            ));
        }
        (Some(key), None) => blake3::hash(key.as_bytes()),
        (None, Some(hex)) => blake3::Hash::from_hex(&hex)
            .map_err(|_| format!("the blake3 of '{name}' is not 64 hexadecimal digits"))?,
        _ => return Err(format!("'{name}' wants either key or blake3")),
    };
    if name.is_empty() || name.chars().any(char::is_control) {
        return Err("an owner has no name".to_owned());
    }
    if entry
        .requests_per_minute
        .is_some_and(|rate| rate.is_nan() || rate <= 0.0)
    {
        return Err(format!("requests_per_minute of '{name}' is not above 0"));
    }
    let quota = Quota {
        sessions: entry.sessions.unwrap_or(usize::MAX),
        pages: entry.pages.unwrap_or(usize::MAX),
    };
    let owner = Owner {
        name,
        admin: entry.admin,
        requests_per_minute: entry.requests_per_minute,
        requests_at_once: entry.requests_at_once,
        quota,
    };
    Ok((*digest.as_bytes(), Arc::new(owner)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::{fs, sync::Arc};

    use super::{ANYBODY, Keys};
    use crate::error::Kind;

    fn keys(text: &str) -> Result<Keys, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys.toml");
        fs::write(&path, text).unwrap();
        Keys::open(Some(&path))
    }

    const ADA: &str = "[[key]]\nowner = 'ada'\nkey = 'ada-0123456789abcdef'\n";

    #[test]
    fn who_has_a_key_comes_in() {
        let keys = keys(ADA).unwrap();
        let owner = |header: Option<&str>| {
            keys.owner(header.map(str::as_bytes))
                .map(|o| o.name.clone())
        };
        assert_eq!(owner(Some("Bearer ada-0123456789abcdef")).unwrap(), "ada");
        assert_eq!(owner(Some("bearer ada-0123456789abcdef ")).unwrap(), "ada");
        for wrong in [
            None,
            Some(""),
            Some("Bearer"),
            Some("Bearer "),
            Some("Bearer ada-0123456789abcdeg"),
            Some("Basic ada-0123456789abcdef"),
            Some("ada-0123456789abcdef"),
        ] {
            assert!(owner(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_key_may_be_kept_as_its_hash() {
        let hash = blake3::hash(b"ada-0123456789abcdef").to_hex();
        let keys = keys(&format!("[[key]]\nowner = 'ada'\nblake3 = '{hash}'\n")).unwrap();
        assert!(keys.owner(Some(b"Bearer ada-0123456789abcdef")).is_ok());
    }

    #[test]
    fn files_that_would_let_anybody_in_are_refused() {
        for (text, why) in [
            ("", "no keys"),
            ("[[key]]\nowner = 'ada'\nkey = 'short'\n", "shorter"),
            ("[[key]]\nowner = 'ada'\n", "either key or blake3"),
            ("[[key]]\nowner = 'ada'\nblake3 = 'xyz'\n", "hexadecimal"),
            ("[[key]]\nowner = ''\nkey = '0123456789abcdef'\n", "no name"),
            (
                "[[key]]\nowner = 'ada'\nkey = '0123456789abcdef'\nadmn = true\n",
                "admn",
            ),
        ] {
            let error = keys(text).err().unwrap();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn too_many_requests_wait() {
        let text = format!("{ADA}requests_per_minute = 2\nrequests_at_once = 5\n");
        let keys = Arc::new(keys(&text).unwrap());
        let ada = keys.owner(Some(b"Bearer ada-0123456789abcdef")).unwrap();
        drop(keys.admit(&ada).unwrap());
        drop(keys.admit(&ada).unwrap());
        let refused = keys.admit(&ada).err().unwrap();
        assert_eq!(refused.kind(), Kind::Limited);
        assert!(refused.to_string().contains("30 s") || refused.to_string().contains("29 s"));
    }

    #[test]
    fn too_many_at_once_wait() {
        let text = format!("{ADA}requests_at_once = 2\n");
        let keys = Arc::new(keys(&text).unwrap());
        let ada = keys.owner(Some(b"Bearer ada-0123456789abcdef")).unwrap();
        let first = keys.admit(&ada).unwrap();
        let _second = keys.admit(&ada).unwrap();
        assert!(keys.admit(&ada).is_err());
        drop(first);
        assert!(keys.admit(&ada).is_ok());
    }

    #[test]
    fn without_keys_everybody_is_one() {
        let keys = Keys::open(None).unwrap();
        assert_eq!(keys.owner(None).unwrap().name, ANYBODY);
    }
}
