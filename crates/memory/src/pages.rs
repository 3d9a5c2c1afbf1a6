//! Pages: a fixed number of tokens of one session's KV, and who holds which.

/// A page of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageId(pub u32);

/// There are not enough free pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{wanted} more KV pages wanted, {free} of {total} free")]
pub struct OutOfPages {
    /// Pages wanted beyond those held.
    pub wanted: usize,
    /// Pages free.
    pub free: usize,
    /// Pages there are.
    pub total: usize,
}

/// All pages of a tier, free or taken.
#[derive(Clone, Debug)]
pub struct PagePool {
    /// Lowest page last, so that pages are reused before fresh ones are touched.
    free: Vec<PageId>,
    taken: Vec<bool>,
}

impl PagePool {
    /// A pool of `total` free pages.
    pub fn new(total: usize) -> Self {
        let total_u32 = u32::try_from(total).expect("page ids are 32 bits");
        PagePool {
            free: (0..total_u32).rev().map(PageId).collect(),
            taken: vec![false; total],
        }
    }

    /// Pages there are.
    pub fn total(&self) -> usize {
        self.taken.len()
    }

    /// Pages nobody holds.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    fn take(&mut self) -> Option<PageId> {
        let page = self.free.pop()?;
        let was_taken = std::mem::replace(&mut self.taken[page.0 as usize], true);
        assert!(!was_taken, "page {} was free and taken", page.0);
        Some(page)
    }

    fn give_back(&mut self, page: PageId) {
        let was_taken = std::mem::replace(&mut self.taken[page.0 as usize], false);
        assert!(was_taken, "page {} was given back twice", page.0);
        self.free.push(page);
    }

    /// Panics unless every page is either free or in exactly one of `tables`.
    pub fn check_integrity<'a>(&self, tables: impl Iterator<Item = &'a PageTable>) {
        let mut held = vec![false; self.total()];
        for page in tables.flat_map(|table| &table.pages) {
            let twice = std::mem::replace(&mut held[page.0 as usize], true);
            assert!(!twice, "page {} is held twice", page.0);
        }
        assert_eq!(held, self.taken, "pages held and pages taken differ");
        let held_count = held.iter().filter(|&&h| h).count();
        assert_eq!(self.free.len() + held_count, self.total(), "pages leaked");
    }
}

/// One session's pages in order of position.
#[derive(Clone, Debug)]
pub struct PageTable {
    pages: Vec<PageId>,
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

    /// Takes as many pages as `tokens` tokens need, or none at all.
    pub fn grow_to(&mut self, tokens: usize, pool: &mut PagePool) -> Result<(), OutOfPages> {
        let needed = tokens.div_ceil(self.page_tokens);
        let wanted = needed.saturating_sub(self.pages.len());
        if wanted > pool.free() {
            return Err(OutOfPages {
                wanted,
                free: pool.free(),
                total: pool.total(),
            });
        }
        self.pages
            .extend((0..wanted).map(|_| pool.take().expect("counted above")));
        Ok(())
    }

    /// Gives all pages back.
    pub fn release(&mut self, pool: &mut PagePool) {
        for page in self.pages.drain(..).rev() {
            pool.give_back(page);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{OutOfPages, PagePool, PageTable};

    #[test]
    fn grows_all_or_nothing() {
        let mut pool = PagePool::new(3);
        let mut a = PageTable::new(16);
        a.grow_to(17, &mut pool).unwrap();
        assert_eq!(a.pages().len(), 2);
        a.grow_to(5, &mut pool).unwrap();
        assert_eq!(a.pages().len(), 2, "a table never shrinks by growing");
        let mut b = PageTable::new(16);
        let error = b.grow_to(32, &mut pool).unwrap_err();
        let expect = OutOfPages {
            wanted: 2,
            free: 1,
            total: 3,
        };
        assert_eq!(error, expect);
        assert!(b.pages().is_empty());
        pool.check_integrity([&a, &b].into_iter());
    }

    proptest! {
        #[test]
        fn no_page_is_lost_or_shared(
            total in 0usize..40,
            moves in prop::collection::vec((0usize..5, 0usize..300, any::<bool>()), 0..100),
        ) {
            let mut pool = PagePool::new(total);
            let mut tables = vec![PageTable::new(7); 5];
            for (who, tokens, release) in moves {
                if release {
                    tables[who].release(&mut pool);
                    prop_assert!(tables[who].pages().is_empty());
                } else {
                    let before = tables[who].pages().len();
                    let free = pool.free();
                    let wanted = tokens.div_ceil(7).saturating_sub(before);
                    let grown = tables[who].grow_to(tokens, &mut pool);
                    prop_assert_eq!(grown.is_ok(), wanted <= free);
                    let expect = if grown.is_ok() { before + wanted } else { before };
                    prop_assert_eq!(tables[who].pages().len(), expect);
                }
                pool.check_integrity(tables.iter());
            }
        }
    }
}
