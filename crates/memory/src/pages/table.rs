//! One session's pages, in order of position.

use super::{PageId, Pages};

/// The pages of a session.
#[derive(Clone, Debug)]
pub struct PageTable {
    pub(super) pages: Vec<PageId>,
    page_tokens: usize,
}

impl PageTable {
    /// No pages yet.
    pub fn new(page_tokens: usize) -> Self {
        assert!(page_tokens > 0, "a page holds at least one token");
        PageTable {
            pages: Vec::new(),
            page_tokens,
        }
    }

    /// The pages, by position.
    pub fn pages(&self) -> &[PageId] {
        &self.pages
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Tokens of a page.
    pub fn page_tokens(&self) -> usize {
        self.page_tokens
    }

    /// How many more pages so many tokens need.
    pub fn missing(&self, tokens: usize) -> usize {
        let needed = tokens.div_ceil(self.page_tokens);
        needed.saturating_sub(self.pages.len())
    }

    /// Which page a token lies in, if that is there.
    pub(super) fn holding(&self, token: usize) -> Option<usize> {
        let at = token / self.page_tokens;
        (at < self.pages.len()).then_some(at)
    }

    /// How many of them are not where passes run.
    pub fn away(&self, pages: &Pages) -> usize {
        let away = |page: &&PageId| pages.device_frame(**page).is_none();
        self.pages.iter().filter(away).count()
    }
}
