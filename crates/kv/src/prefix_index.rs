//! Prefix index: finds a page by its tokens and by the page before it.

use std::collections::{BTreeSet, HashMap};

use crate::page::PageId;

/// Tokens that fill a page. On some devices prompt tokens and generated tokens run through
/// different kernels, which may round differently, so the phase of each token is part of the
/// content.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PageContent {
    scope: Box<str>,
    tokens: Box<[u32]>,
    is_prompt: Box<[bool]>,
}

impl PageContent {
    /// Scope of the content.
    pub fn scope(&self) -> &str {
        &self.scope
    }

    /// Tokens of the page, each with whether it belongs to a prompt.
    pub fn tokens(&self) -> impl Iterator<Item = (u32, bool)> + Clone {
        let is_prompt = self.is_prompt.iter().copied();
        self.tokens.iter().copied().zip(is_prompt)
    }

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
/// The previous page of every page in the index is also in the index: a page leaves the index
/// together with the pages after it.
#[derive(Clone, Debug, Default)]
pub(crate) struct PrefixIndex {
    pages: HashMap<PrefixKey, PageId>,
    keys: HashMap<PageId, PrefixKey>,
    /// Pages that follow each page.
    next: HashMap<PageId, BTreeSet<PageId>>,
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
        if let Some(previous) = previous {
            self.next.entry(previous).or_default().insert(page);
        }
    }

    /// Removes a page and all pages after it, and returns the removed pages: none if the index
    /// does not contain the page.
    pub fn remove(&mut self, page: PageId) -> Vec<PageId> {
        let mut removed = Vec::new();
        let mut left = vec![page];
        while let Some(page) = left.pop() {
            let Some(key) = self.keys.remove(&page) else {
                continue;
            };
            self.pages.remove(&key);
            self.leave(key.0, page);
            left.extend(self.next.remove(&page).unwrap_or_default());
            removed.push(page);
        }
        removed
    }

    /// Removes `page` from the pages that follow `previous`.
    fn leave(&mut self, previous: Option<PageId>, page: PageId) {
        let Some(previous) = previous else { return };
        if let Some(next) = self.next.get_mut(&previous) {
            next.remove(&page);
            if next.is_empty() {
                self.next.remove(&previous);
            }
        }
    }

    /// All pages with the page before them and their content: a page follows the page before it, and pages
    /// of lower age come first.
    pub fn in_order(
        &self,
        age: impl Fn(PageId) -> u64,
    ) -> impl Iterator<Item = (PageId, Option<PageId>, &PageContent)> {
        let firsts = self.keys.iter().filter(|(_, key)| key.0.is_none());
        let mut open: BTreeSet<(u64, PageId)> =
            firsts.map(|(&page, _)| (age(page), page)).collect();
        std::iter::from_fn(move || {
            let (_, page) = open.pop_first()?;
            let next = self.next.get(&page).into_iter().flatten();
            open.extend(next.map(|&page| (age(page), page)));
            let (previous, content) = &self.keys[&page];
            Some((page, *previous, content))
        })
    }

    /// Panics unless the maps agree and `is_valid` accepts every page with its previous page.
    pub fn check_integrity(&self, is_valid: impl Fn(PageId, Option<PageId>) -> bool) {
        assert_eq!(self.pages.len(), self.keys.len(), "one key for each page");
        let mut following = 0;
        for (page, key) in &self.keys {
            assert_eq!(self.pages.get(key), Some(page));
            if let Some(previous) = key.0 {
                assert!(self.next[&previous].contains(page), "a link is missing");
                following += 1;
            }
            assert!(is_valid(*page, key.0), "page {} is not valid", page.0);
        }
        let links: usize = self.next.values().map(BTreeSet::len).sum();
        assert_eq!(
            links, following,
            "one link for each page with a previous one"
        );
    }
}
