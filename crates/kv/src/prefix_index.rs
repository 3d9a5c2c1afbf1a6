//! Prefix index: finds a page by its tokens and by the page before it.

use std::collections::HashMap;

use crate::page::PageId;

/// Tokens that fill a page. Prompt tokens and generated tokens run through different kernels,
/// which may round differently, so the phase of each token is part of the content.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PageContent {
    scope: Box<str>,
    tokens: Box<[u32]>,
    is_prompt: Box<[bool]>,
}

impl PageContent {
    /// Creates the content of a page from each token and whether it belongs to a prompt. Only
    /// contents of the same `scope` are equal.
    pub fn new(scope: &str, tokens: impl Iterator<Item = (u32, bool)>) -> Self {
        let (tokens, is_prompt): (Vec<u32>, Vec<bool>) = tokens.unzip();
        PageContent {
            scope: scope.into(),
            tokens: tokens.into(),
            is_prompt: is_prompt.into(),
        }
    }
}

/// Key of a full page: the page before it, if any, and its content.
type PrefixKey = (Option<PageId>, PageContent);

/// Index of full pages by content. Keys hold the tokens themselves, so that an attacker cannot
/// provoke hash collisions.
///
/// Every table that holds a page also holds the previous page, so the page that a key refers to
/// lives as long as the key.
#[derive(Clone, Debug, Default)]
pub(crate) struct PrefixIndex {
    pages: HashMap<PrefixKey, PageId>,
    keys: HashMap<PageId, PrefixKey>,
}

impl PrefixIndex {
    /// Whether the index contains a page.
    pub fn contains(&self, page: PageId) -> bool {
        self.keys.contains_key(&page)
    }

    /// Finds the page with this content after the page `previous`, or at the beginning.
    pub fn lookup(&self, previous: Option<PageId>, content: &PageContent) -> Option<PageId> {
        self.pages.get(&(previous, content.clone())).copied()
    }

    /// Adds a page with its content.
    pub fn insert(&mut self, page: PageId, previous: Option<PageId>, content: PageContent) {
        let key = (previous, content);
        self.pages.insert(key.clone(), page);
        self.keys.insert(page, key);
    }

    /// Removes a page, if the index contains it.
    pub fn remove(&mut self, page: PageId) {
        if let Some(key) = self.keys.remove(&page) {
            self.pages.remove(&key);
        }
    }

    /// Panics unless both maps agree and every page in the index is held by a table.
    pub fn check_integrity(&self, is_held: impl Fn(PageId) -> bool) {
        assert_eq!(self.pages.len(), self.keys.len(), "one key for each page");
        for (page, key) in &self.keys {
            assert_eq!(self.pages.get(key), Some(page));
            let is_live = is_held(*page) && key.0.is_none_or(&is_held);
            assert!(is_live, "page {} is in the index and not held", page.0);
        }
    }
}
