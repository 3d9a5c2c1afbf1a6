//! Equal beginnings: which page holds which tokens after which others.

use std::collections::HashMap;

use super::PageId;

/// The tokens that fill a page. Those that were given run as a prompt does, the others as
/// generated ones, which may round differently: so that counts too.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Chunk {
    /// Who may have the same page.
    scope: Box<str>,
    tokens: Box<[u32]>,
    given: Box<[bool]>,
}

impl Chunk {
    /// Each token, and whether it was given; only in the same scope is another the same.
    pub fn new(scope: &str, tokens: impl Iterator<Item = (u32, bool)>) -> Self {
        let (tokens, given): (Vec<u32>, Vec<bool>) = tokens.unzip();
        Chunk {
            scope: scope.into(),
            tokens: tokens.into(),
            given: given.into(),
        }
    }
}

/// What a page holds: these tokens, after what the page before it holds.
type Key = (Option<PageId>, Chunk);

/// Pages by what they hold, told by the tokens themselves: nobody can make two alike.
///
/// Whoever holds a page holds the one before it too, so that one is there as long.
#[derive(Clone, Debug, Default)]
pub(super) struct Prefixes {
    known: HashMap<Key, PageId>,
    keys: HashMap<PageId, Key>,
}

impl Prefixes {
    /// Whether it is known what a page holds.
    pub fn knows(&self, page: PageId) -> bool {
        self.keys.contains_key(&page)
    }

    /// Which page holds these tokens after another, or after nothing.
    pub fn find(&self, after: Option<PageId>, chunk: &Chunk) -> Option<PageId> {
        self.known.get(&(after, chunk.clone())).copied()
    }

    pub fn learn(&mut self, page: PageId, after: Option<PageId>, chunk: Chunk) {
        let key = (after, chunk);
        self.known.insert(key.clone(), page);
        self.keys.insert(page, key);
    }

    pub fn forget(&mut self, page: PageId) {
        if let Some(key) = self.keys.remove(&page) {
            self.known.remove(&key);
        }
    }

    /// Panics unless all that is known is of pages that are held.
    pub fn check_integrity(&self, is_held: impl Fn(PageId) -> bool) {
        assert_eq!(self.known.len(), self.keys.len(), "known once each");
        for (page, key) in &self.keys {
            assert_eq!(self.known.get(key), Some(page));
            assert!(is_held(*page) && key.0.is_none_or(&is_held), "held by none");
        }
    }
}
