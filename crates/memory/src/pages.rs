//! Pages: a fixed number of tokens of one session's KV, in which tier each is, and who
//! holds which.

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

    /// Panics unless every page is either free or held exactly once.
    fn check_integrity(&self, held: impl Iterator<Item = PageId>) {
        let mut seen = vec![false; self.total()];
        for page in held {
            let twice = std::mem::replace(&mut seen[page.0 as usize], true);
            assert!(!twice, "page {} is held twice", page.0);
        }
        assert_eq!(seen, self.taken, "pages held and pages taken differ");
        let count = seen.iter().filter(|&&held| held).count();
        assert_eq!(self.free.len() + count, self.total(), "pages leaked");
    }
}

/// The pages of both tiers: where passes run, and where sessions wait.
#[derive(Clone, Debug)]
pub struct Pages {
    /// What passes read and write.
    pub device: PagePool,
    /// Where pages are that no pass needs now.
    pub host: PagePool,
}

impl Pages {
    /// So many free pages of each tier.
    pub fn new(device: usize, host: usize) -> Self {
        Pages {
            device: PagePool::new(device),
            host: PagePool::new(host),
        }
    }

    /// Panics unless every page is either free or in exactly one of `tables`.
    pub fn check_integrity<'a>(&self, tables: impl Iterator<Item = &'a PageTable>) {
        let tables: Vec<&PageTable> = tables.collect();
        let places = || tables.iter().flat_map(|table| &table.places);
        self.device.check_integrity(places().filter_map(At::device));
        self.host.check_integrity(places().filter_map(At::host));
    }
}

/// Where a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// In the slab.
    Device(PageId),
    /// In host memory.
    Host(PageId),
    /// In the slab, and as it is there in host memory too, since it came from there.
    Both(PageId, PageId),
}

impl At {
    fn device(&self) -> Option<PageId> {
        match *self {
            At::Device(page) | At::Both(page, _) => Some(page),
            At::Host(_) => None,
        }
    }

    fn host(&self) -> Option<PageId> {
        match *self {
            At::Host(page) | At::Both(_, page) => Some(page),
            At::Device(_) => None,
        }
    }
}

/// A page that goes from one tier to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Which page it was.
    pub from: PageId,
    /// Which it will be.
    pub to: PageId,
}

/// One session's pages in order of position.
#[derive(Clone, Debug)]
pub struct PageTable {
    places: Vec<At>,
    page_tokens: usize,
}

impl PageTable {
    /// No pages yet.
    pub fn new(page_tokens: usize) -> Self {
        assert!(page_tokens > 0, "a page holds at least one token");
        PageTable {
            places: Vec::new(),
            page_tokens,
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// How many of them are not where passes run.
    pub fn away(&self) -> usize {
        let away = |place: &&At| matches!(place, At::Host(_));
        self.places.iter().filter(away).count()
    }

    /// The pages, by position; all are where passes run.
    pub fn pages(&self) -> impl Iterator<Item = PageId> {
        let there = |place: &At| place.device().expect("a pass has its pages");
        self.places.iter().map(there)
    }

    /// How many of them have a copy on the host that is still theirs.
    pub fn copies(&self) -> usize {
        let copied = |place: &&At| matches!(place, At::Both(..));
        self.places.iter().filter(copied).count()
    }

    /// How many more pages so many tokens need.
    pub fn missing(&self, tokens: usize) -> usize {
        let needed = tokens.div_ceil(self.page_tokens);
        needed.saturating_sub(self.places.len())
    }

    /// Takes as many pages as `tokens` tokens need, or none at all, and says which.
    pub fn grow_to(
        &mut self,
        tokens: usize,
        pool: &mut PagePool,
    ) -> Result<Vec<PageId>, OutOfPages> {
        let taken = take(self.missing(tokens), pool)?;
        self.places
            .extend(taken.iter().map(|&page| At::Device(page)));
        Ok(taken)
    }

    /// Lets up to `count` pages go to the host, as far as there is room, and says which have
    /// to be copied: those with a copy there go first, and only go.
    pub fn send_away(&mut self, count: usize, pages: &mut Pages) -> Vec<Move> {
        let mut left = count;
        for place in self.places.iter_mut().rev() {
            if let (At::Both(from, to), 1..) = (*place, left) {
                pages.device.give_back(from);
                *place = At::Host(to);
                left -= 1;
            }
        }
        let mut moves = Vec::new();
        for place in self.places.iter_mut().rev() {
            let At::Device(from) = *place else { continue };
            if moves.len() == left {
                break;
            }
            let Some(to) = pages.host.take() else { break };
            pages.device.give_back(from);
            *place = At::Host(to);
            moves.push(Move { from, to });
        }
        moves
    }

    /// Brings all pages back, or none at all. The host keeps what it has as a copy.
    pub fn bring_back(&mut self, pages: &mut Pages) -> Result<Vec<Move>, OutOfPages> {
        let mut taken = take(self.away(), &mut pages.device)?.into_iter();
        let mut moves = Vec::new();
        for place in &mut self.places {
            let At::Host(from) = *place else { continue };
            let to = taken.next().expect("one for each");
            *place = At::Both(to, from);
            moves.push(Move { from, to });
        }
        Ok(moves)
    }

    /// Tokens from this one on are about to be written: copies of their pages are theirs no
    /// more.
    pub fn write_from(&mut self, token: usize, pages: &mut Pages) {
        let first = (token / self.page_tokens).min(self.places.len());
        let most = self.places.len() - first;
        forget(&mut self.places[first..], most, pages);
    }

    /// Lets up to `count` copies go, so that others have room, and says how many.
    pub fn drop_copies(&mut self, count: usize, pages: &mut Pages) -> usize {
        forget(&mut self.places, count, pages)
    }

    /// Gives all pages back.
    pub fn release(&mut self, pages: &mut Pages) {
        for place in self.places.drain(..).rev() {
            if let Some(page) = place.device() {
                pages.device.give_back(page);
            }
            if let Some(page) = place.host() {
                pages.host.give_back(page);
            }
        }
    }
}

/// Forgets up to `count` copies, the last first.
fn forget(places: &mut [At], count: usize, pages: &mut Pages) -> usize {
    let mut left = count;
    for place in places.iter_mut().rev() {
        if let (At::Both(device, host), 1..) = (*place, left) {
            pages.host.give_back(host);
            *place = At::Device(device);
            left -= 1;
        }
    }
    count - left
}

/// So many pages, or none at all.
fn take(wanted: usize, pool: &mut PagePool) -> Result<Vec<PageId>, OutOfPages> {
    let (free, total) = (pool.free(), pool.total());
    if wanted > free {
        return Err(OutOfPages {
            wanted,
            free,
            total,
        });
    }
    Ok((0..wanted).filter_map(|_| pool.take()).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{OutOfPages, PageTable, Pages};

    #[test]
    fn grows_all_or_nothing() {
        let mut pages = Pages::new(3, 0);
        let mut a = PageTable::new(16);
        a.grow_to(17, &mut pages.device).unwrap();
        assert_eq!(a.len(), 2);
        a.grow_to(5, &mut pages.device).unwrap();
        assert_eq!(a.len(), 2, "a table never shrinks by growing");
        let mut b = PageTable::new(16);
        let error = b.grow_to(32, &mut pages.device).unwrap_err();
        let expect = OutOfPages {
            wanted: 2,
            free: 1,
            total: 3,
        };
        assert_eq!(error, expect);
        assert!(b.is_empty());
        pages.check_integrity([&a, &b].into_iter());
    }

    #[test]
    fn goes_and_comes_back_in_order() {
        let mut pages = Pages::new(4, 3);
        let mut a = PageTable::new(2);
        a.grow_to(8, &mut pages.device).unwrap();
        // Room for three of them: the last go first.
        let moves = a.send_away(9, &mut pages);
        let from: Vec<u32> = moves.iter().map(|m| m.from.0).collect();
        assert_eq!((from, a.away()), (vec![3, 2, 1], 3));
        assert!(a.send_away(1, &mut pages).is_empty(), "no room is left");
        // Another takes what became free, and a cannot come back before it goes.
        let mut b = PageTable::new(2);
        b.grow_to(2, &mut pages.device).unwrap();
        assert_eq!(a.bring_back(&mut pages).unwrap_err().wanted, 3);
        assert_eq!(a.away(), 3, "all or nothing");
        b.release(&mut pages);
        let back = a.bring_back(&mut pages).unwrap();
        let mut held: Vec<_> = moves.iter().map(|m| m.to).collect();
        held.reverse();
        assert_eq!(back.iter().map(|m| m.from).collect::<Vec<_>>(), held);
        // The host keeps copies until they are written to, or others need the room.
        assert_eq!((a.away(), a.copies(), pages.host.free()), (0, 3, 0));
        pages.check_integrity([&a, &b].into_iter());
        a.write_from(7, &mut pages);
        assert_eq!((a.copies(), pages.host.free()), (2, 1));
        // Two go as they are, and one is copied.
        let moves = a.send_away(3, &mut pages);
        assert_eq!((moves.len(), a.away(), pages.host.free()), (1, 3, 0));
        a.bring_back(&mut pages).unwrap();
        assert_eq!((a.drop_copies(2, &mut pages), a.copies()), (2, 1));
        a.write_from(0, &mut pages);
        a.write_from(99, &mut pages);
        assert_eq!((a.copies(), pages.host.free()), (0, 3));
        pages.check_integrity([&a, &b].into_iter());
    }

    proptest! {
        #[test]
        fn no_page_is_lost_or_shared(
            device in 0usize..40, host in 0usize..40,
            moves in prop::collection::vec((0usize..5, 0usize..300, 0u8..6), 0..100),
        ) {
            let mut pages = Pages::new(device, host);
            let mut tables = vec![PageTable::new(7); 5];
            for (who, tokens, what) in moves {
                let table = &mut tables[who];
                let (before, away, free) = (table.len(), table.away(), pages.device.free());
                match what {
                    0 => {
                        table.release(&mut pages);
                        prop_assert!(table.is_empty());
                    }
                    1 => {
                        let (room, copies) = (pages.host.free(), table.copies());
                        let moved = table.send_away(tokens, &mut pages).len();
                        let gone = table.away() - away;
                        prop_assert_eq!(gone, tokens.min(before - away).min(room + copies));
                        prop_assert_eq!(moved, gone - (copies - table.copies()));
                    }
                    2 => {
                        let back = table.bring_back(&mut pages);
                        prop_assert_eq!(back.is_ok(), away <= free);
                        let left = if back.is_ok() { 0 } else { away };
                        prop_assert_eq!(table.away(), left);
                    }
                    3 => table.write_from(tokens, &mut pages),
                    4 => {
                        let copies = table.copies();
                        let dropped = table.drop_copies(tokens, &mut pages);
                        prop_assert_eq!(dropped, tokens.min(copies));
                    }
                    _ => {
                        let wanted = tokens.div_ceil(7).saturating_sub(before);
                        prop_assert_eq!(table.missing(tokens), wanted);
                        let grown = table.grow_to(tokens, &mut pages.device);
                        prop_assert_eq!(grown.is_ok(), wanted <= free);
                        let expect = if grown.is_ok() { before + wanted } else { before };
                        prop_assert_eq!(table.len(), expect);
                    }
                }
                pages.check_integrity(tables.iter());
            }
        }
    }
}
