//! API keys in use: authentication, rate limits and requests in flight.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::Instant,
};

use djinn_engine::Quota;
use subtle::ConstantTimeEq;

use super::key_file::{self, KeyDigest, KeyFileError, KeyOwner};
use crate::{ServeError, guard::TokenBucket};

/// Owner of all requests on a server without keys.
pub const LOCAL_OWNER: &str = "local";

/// Digests of all keys, each with its owner.
type KnownKeys = Vec<(KeyDigest, Arc<KeyOwner>)>;

/// API keys of a server, and the current usage of each owner.
pub struct KeyStore {
    path: Option<PathBuf>,
    keys: RwLock<Arc<KnownKeys>>,
    local: Arc<KeyOwner>,
    usage: Mutex<HashMap<String, OwnerUsage>>,
}

/// Current usage of one owner: its rate and a counter.
#[derive(Clone, Copy)]
struct OwnerUsage {
    requests: TokenBucket,
    in_flight: usize,
}

impl KeyStore {
    /// Reads a key file. Without a file, every request is accepted as the owner `local`, with
    /// admin rights.
    pub fn open(path: Option<&Path>, local: &str) -> Result<Self, KeyFileError> {
        let local = KeyOwner {
            name: local.to_owned(),
            admin: true,
            requests_per_minute: None,
            requests_at_once: None,
            quota: Quota::default(),
        };
        let keys = path.map(read).transpose()?.unwrap_or_default();
        Ok(KeyStore {
            path: path.map(Path::to_owned),
            keys: RwLock::new(Arc::new(keys)),
            local: Arc::new(local),
            usage: Mutex::default(),
        })
    }

    /// Reads the key file again and returns the number of keys. On an error the current keys stay valid.
    pub fn reload(&self) -> Result<usize, KeyFileError> {
        let Some(path) = &self.path else {
            return Ok(0);
        };
        let keys = read(path)?;
        let count = keys.len();
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(keys);
        Ok(count)
    }

    fn keys(&self) -> Arc<KnownKeys> {
        Arc::clone(&self.keys.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Owners of all keys.
    pub fn owners(&self) -> Vec<Arc<KeyOwner>> {
        let keys = self.keys();
        keys.iter().map(|(_, owner)| Arc::clone(owner)).collect()
    }

    /// Authenticates an `authorization` header. The call takes the same time for every key, valid
    /// or not.
    pub fn authenticate(&self, authorization: Option<&[u8]>) -> Result<Arc<KeyOwner>, ServeError> {
        if self.path.is_none() {
            return Ok(Arc::clone(&self.local));
        }
        let sent = authorization.and_then(bearer_token).unwrap_or_default();
        let sent = *blake3::hash(sent).as_bytes();
        let mut found = None;
        for (digest, owner) in self.keys().iter() {
            if bool::from(digest.ct_eq(&sent)) {
                found = Some(Arc::clone(owner));
            }
        }
        found.ok_or(ServeError::Unauthenticated)
    }

    /// Admits a request unless its owner exceeds a limit. The request counts as in flight until the permit
    /// is dropped.
    pub fn admit(self: &Arc<Self>, owner: &KeyOwner) -> Result<RequestPermit, ServeError> {
        self.admit_at(owner, Instant::now())
    }

    fn admit_at(
        self: &Arc<Self>,
        owner: &KeyOwner,
        now: Instant,
    ) -> Result<RequestPermit, ServeError> {
        let mut all = self.usage.lock().unwrap_or_else(PoisonError::into_inner);
        let rate = owner.requests_per_minute.unwrap_or(f64::INFINITY);
        let usage = all.entry(owner.name.clone()).or_insert(OwnerUsage {
            requests: TokenBucket::full(rate, now),
            in_flight: 0,
        });
        if let Some(limit) = owner.requests_at_once
            && usage.in_flight >= limit
        {
            return Err(ServeError::Busy(format!(
                "Too many requests of '{}' in flight (limit {limit}); wait for one to finish",
                owner.name
            )));
        }
        if rate.is_finite() {
            let taken = usage.requests.take(rate / 60.0, rate.max(1.0), now);
            taken.map_err(|retry| ServeError::Rate { retry })?;
        }
        usage.in_flight += 1;
        Ok(RequestPermit {
            keys: Arc::clone(self),
            owner: owner.name.clone(),
        })
    }
}

fn read(path: &Path) -> Result<KnownKeys, KeyFileError> {
    let keys = key_file::read(path)?.into_iter();
    Ok(keys
        .map(|(digest, owner)| (digest, Arc::new(owner)))
        .collect())
}

/// Permit of a request in flight.
pub struct RequestPermit {
    keys: Arc<KeyStore>,
    owner: String,
}

impl Drop for RequestPermit {
    fn drop(&mut self) {
        let mut all = self
            .keys
            .usage
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(usage) = all.get_mut(&self.owner) {
            usage.in_flight = usage.in_flight.saturating_sub(1);
        }
    }
}

/// Key in an `authorization: Bearer KEY` header.
fn bearer_token(header: &[u8]) -> Option<&[u8]> {
    let (scheme, key) = header.split_at_checked(7)?;
    scheme
        .eq_ignore_ascii_case(b"bearer ")
        .then(|| key.trim_ascii())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::{
        fs,
        sync::Arc,
        time::{Duration, Instant},
    };

    use super::{KeyStore, LOCAL_OWNER};
    use crate::{ErrorCode, ServeError};

    fn keys(text: &str) -> Arc<KeyStore> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys.toml");
        fs::write(&path, text).unwrap();
        Arc::new(KeyStore::open(Some(&path), LOCAL_OWNER).unwrap())
    }

    const ADA: &str = "[[key]]\nowner = 'ada'\nkey = 'ada-0123456789abcdef'\n";
    const ADA_HEADER: &[u8] = b"Bearer ada-0123456789abcdef";

    #[test]
    fn a_valid_key_authenticates_its_owner() {
        let keys = keys(ADA);
        let owner = |header: Option<&str>| {
            let owner = keys.authenticate(header.map(str::as_bytes));
            owner.map(|owner| owner.name.clone())
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
            let error = owner(wrong).unwrap_err();
            assert_eq!(error.code(), ErrorCode::Unauthenticated, "{wrong:?}");
        }
    }

    #[test]
    fn a_key_file_may_hold_digests_instead_of_keys() {
        let hash = blake3::hash(b"ada-0123456789abcdef").to_hex();
        let keys = keys(&format!("[[key]]\nowner = 'ada'\nblake3 = '{hash}'\n"));
        assert!(keys.authenticate(Some(ADA_HEADER)).is_ok());
    }

    #[test]
    fn the_rate_limit_rejects_and_refills() {
        let keys = keys(&format!(
            "{ADA}requests_per_minute = 2\nrequests_at_once = 5\n"
        ));
        let ada = keys.authenticate(Some(ADA_HEADER)).unwrap();
        let now = Instant::now();
        drop(keys.admit_at(&ada, now).unwrap());
        drop(keys.admit_at(&ada, now).unwrap());
        let rejected = keys.admit_at(&ada, now).err().unwrap();
        assert_eq!(rejected.code(), ErrorCode::Limited);
        let ServeError::Rate { retry } = rejected else {
            panic!("{rejected}");
        };
        assert_eq!(retry.as_secs_f64().round(), 30.0);
        assert!(keys.admit_at(&ada, now + Duration::from_secs(31)).is_ok());
    }

    #[test]
    fn the_limit_of_requests_in_flight_rejects() {
        let keys = keys(&format!("{ADA}requests_at_once = 2\n"));
        let ada = keys.authenticate(Some(ADA_HEADER)).unwrap();
        let first = keys.admit(&ada).unwrap();
        let _second = keys.admit(&ada).unwrap();
        let rejected = keys.admit(&ada).err().unwrap();
        assert_eq!(rejected.code(), ErrorCode::Limited);
        drop(first);
        assert!(keys.admit(&ada).is_ok());
    }

    #[test]
    fn without_keys_every_request_is_local() {
        let keys = KeyStore::open(None, LOCAL_OWNER).unwrap();
        assert_eq!(keys.authenticate(None).unwrap().name, LOCAL_OWNER);
    }
}
