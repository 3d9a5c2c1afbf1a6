//! Ids of requests.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

use axum::http::{HeaderMap, HeaderName};

/// Header with the id of a request.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Largest length of an id that a client may choose.
const LENGTH_MAX: usize = 128;

/// Id of a request: the client's, if it is short and plain, or a new one.
pub fn of(headers: &HeaderMap) -> String {
    let sent = headers.get(REQUEST_ID).and_then(|id| id.to_str().ok());
    let is_plain = |id: &&str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-:/+=".contains(c);
        !id.is_empty() && id.len() <= LENGTH_MAX && id.chars().all(plain)
    };
    sent.filter(is_plain).map_or_else(new, str::to_owned)
}

/// Creates an id that no other request has: the time and a counter, mixed so that ids do not look alike.
fn new() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.unwrap_or_default().as_nanos() as u64;
    let mut hasher = blake3::Hasher::new();
    hasher.update(&now.to_le_bytes());
    hasher.update(&COUNT.fetch_add(1, Ordering::Relaxed).to_le_bytes());
    hasher.update(&std::process::id().to_le_bytes());
    format!("req-{}", &hasher.finalize().to_hex()[..24])
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::HashSet;

    use axum::http::HeaderMap;

    use super::{REQUEST_ID, new, of};

    #[test]
    fn plain_ids_are_accepted_and_others_replaced() {
        let id = |sent: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, sent.parse().unwrap());
            of(&headers)
        };
        assert_eq!(id("abc-123"), "abc-123");
        for other in ["", "a b", "<script>", &"x".repeat(200)] {
            assert!(id(other).starts_with("req-"), "{other}");
        }
    }

    #[test]
    fn new_ids_differ() {
        let ids: HashSet<String> = (0..1000).map(|_| new()).collect();
        assert_eq!(ids.len(), 1000);
    }
}
