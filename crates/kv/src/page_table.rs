//! Page table: the pages of one sequence, in order of position.

use crate::page::PageId;

/// Pages of one sequence, in order of position.
#[derive(Clone, Debug)]
pub struct PageTable {
    pub(crate) pages: Vec<PageId>,
    page_tokens: usize,
}

impl PageTable {
    /// Creates an empty table for pages of `page_tokens` tokens.
    pub fn new(page_tokens: usize) -> Self {
        assert!(page_tokens > 0, "a page holds at least one token");
        PageTable {
            pages: Vec::new(),
            page_tokens,
        }
    }

    /// Pages in order of position.
    pub fn pages(&self) -> &[PageId] {
        &self.pages
    }

    /// Number of pages.
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Whether the table has no pages.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Number of tokens of one page.
    pub fn page_tokens(&self) -> usize {
        self.page_tokens
    }

    /// Number of pages to add before the table holds `tokens` tokens.
    pub fn missing(&self, tokens: usize) -> usize {
        let needed = tokens.div_ceil(self.page_tokens);
        needed.saturating_sub(self.pages.len())
    }

    /// Index in the table of the page that holds `token`, if the table has that page.
    pub(crate) fn index_of(&self, token: usize) -> Option<usize> {
        let at = token / self.page_tokens;
        (at < self.pages.len()).then_some(at)
    }
}
