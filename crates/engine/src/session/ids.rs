//! Identifiers of new sessions.

use std::{
    hash::{BuildHasher, RandomState},
    time::{SystemTime, UNIX_EPOCH},
};

use djinn_types::SessionId;

/// Generator of identifiers. Every identifier sorts after all that the generator made or noted
/// before, whatever the clock does.
#[derive(Debug)]
pub(crate) struct SessionIds {
    last: SessionId,
}

impl Default for SessionIds {
    fn default() -> Self {
        let last = SessionId::from_bits(0);
        SessionIds { last }
    }
}

impl SessionIds {
    /// Returns a new identifier.
    pub fn next(&mut self) -> SessionId {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let millis = now.map_or(0, |since| since.as_millis() as u64);
        self.next_at(millis)
    }

    fn next_at(&mut self, millis: u64) -> SessionId {
        // Every hasher of the standard library has random keys.
        let random = |half: u8| u128::from(RandomState::new().hash_one((half, self.last)));
        let fresh = SessionId::from_parts(millis, (random(0) << 64) | random(1));
        self.last = fresh.max(SessionId::from_bits(self.last.bits().saturating_add(1)));
        self.last
    }

    /// Notes an identifier that exists.
    pub fn note(&mut self, id: SessionId) {
        self.last = self.last.max(id);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::SessionIds;

    #[test]
    fn identifiers_grow_even_if_the_clock_goes_back() {
        let mut ids = SessionIds::default();
        let mut before = ids.next_at(1000);
        for millis in [1000, 1000, 1001, 1001, 5, 0, 1002, 900].repeat(50) {
            let next = ids.next_at(millis);
            assert!(next > before);
            before = next;
        }
        let mut restarted = SessionIds::default();
        restarted.note(before);
        assert!(restarted.next_at(3) > before);
    }

    #[test]
    fn generators_never_agree() {
        let ids = |_| SessionIds::default().next_at(7);
        let all: BTreeSet<_> = (0..1000).map(ids).collect();
        assert_eq!(all.len(), 1000);
    }
}
