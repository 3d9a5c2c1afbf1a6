//! Device frames while a pass is decided: which pages stay, leave, arrive or stream.

use std::ops::Range;

use djinn_kv::{PageId, PageTable, Pages};

/// Device frames while a decision is made.
pub(super) struct FrameBudget<'a> {
    pages: &'a Pages,
    /// Number of frames that no session holds. Frames of cached pages count as free.
    free: usize,
    /// Number of pages that can still be evicted, because another tier has room for them.
    elsewhere: usize,
    /// Number of pages that can still stream through the KV window.
    window: usize,
    /// Whether there is a KV window.
    has_window: bool,
    /// Number of held pages on the device that no session earlier in the order claims.
    unclaimed: usize,
    /// By page: whether the page stays on the device or is paged in.
    stays: Vec<bool>,
    /// By page: whether the page is evicted.
    goes: Vec<bool>,
    /// By page: whether the page may stream, and counts as a page of the window.
    streams: Vec<bool>,
}

/// Pages of a session that a pass needs on the device, and pages that may stream.
pub(super) struct ResidencyPlan {
    resident: Vec<PageId>,
    streamed: Vec<PageId>,
    /// Number of resident pages that are not on the device and that no other session pages in.
    coming: usize,
}

impl ResidencyPlan {
    /// Number of free frames that the session needs to page in its pages and to write `tokens`.
    pub fn needed(
        &self,
        frames: &FrameBudget<'_>,
        table: &PageTable,
        tokens: &Range<usize>,
    ) -> usize {
        self.coming + frames.pages.frames_needed(table, tokens)
    }

    /// Pages to page in, those included that another session of the pass also needs.
    pub fn arriving(&self, frames: &FrameBudget<'_>) -> Vec<PageId> {
        let away = |page: &PageId| !frames.is_here(*page);
        self.resident.iter().copied().filter(away).collect()
    }
}

impl<'a> FrameBudget<'a> {
    /// Creates the budget of a pass. `elsewhere` is the number of pages that other tiers have
    /// room for, and `window` the number of pages that may stream.
    pub fn new(pages: &'a Pages, elsewhere: usize, window: usize) -> Self {
        FrameBudget {
            pages,
            free: pages.device_room(),
            elsewhere,
            window,
            has_window: window > 0,
            unclaimed: pages.device().total() - pages.device_room(),
            stays: vec![false; pages.index_bound()],
            goes: vec![false; pages.index_bound()],
            streams: vec![false; pages.index_bound()],
        }
    }

    /// Number of frames that are free.
    pub fn free(&self) -> usize {
        self.free
    }

    /// Whether pages can stream through a KV window.
    pub fn has_window(&self) -> bool {
        self.has_window
    }

    /// Number of frames that are free or can become free.
    pub fn available(&self) -> usize {
        self.free + self.unclaimed.min(self.elsewhere)
    }

    /// Whether a session that writes `tokens` needs more pages than the device has, and may run
    /// with a part of them there.
    pub fn is_too_large(&self, table: &PageTable, tokens: &Range<usize>) -> bool {
        let pages = table.len() + self.pages.frames_needed(table, tokens);
        self.has_window && pages > self.pages.device().total()
    }

    fn is_here(&self, page: PageId) -> bool {
        self.pages.device_frame(page).is_some()
    }

    /// Whether a page is on the device and is not evicted.
    fn remains(&self, page: PageId) -> bool {
        self.is_here(page) && !self.goes[page.index()]
    }

    /// Whether a page may be evicted.
    fn can_go(&self, page: PageId) -> bool {
        self.remains(page) && !self.stays[page.index()]
    }

    /// Whether a page is on the device, or arrives for a session earlier in the order.
    fn is_provided(&self, page: PageId) -> bool {
        self.remains(page) || self.stays[page.index()]
    }

    /// Claims device pages, so that sessions behind cannot evict them.
    fn claim_pages(&mut self, pages: &[PageId]) {
        for &page in pages {
            if self.can_go(page) {
                self.unclaimed -= 1;
                self.stays[page.index()] = true;
            }
        }
    }

    /// Claims the device pages of a session. Returns which pages the session needs; `None` if
    /// some of them cannot be paged in.
    pub fn claim(&mut self, table: &PageTable) -> Option<ResidencyPlan> {
        self.claim_pages(table.pages());
        self.plan(table.pages().to_vec(), Vec::new())
    }

    /// Claims the device pages that a session larger than the device needs to write tokens from
    /// `computed` on: the pages that it writes, and older pages that the window has no room for.
    /// Returns which pages it needs; `None` if some of them cannot be paged in, or cannot stream.
    pub fn claim_part(&mut self, table: &PageTable, computed: usize) -> Option<ResidencyPlan> {
        let first = (computed / table.page_tokens()).min(table.len());
        let (older, written) = table.pages().split_at(first);
        if older.iter().any(|&page| self.pages.is_only_on_disk(page)) {
            return None;
        }
        // Pages that stay for another session, or stream for it, need no room in the window.
        let counts = |page: &PageId| !self.stays[page.index()] && !self.streams[page.index()];
        let (mut own, mut streamed): (Vec<PageId>, Vec<PageId>) =
            older.iter().partition(|page| counts(page));
        streamed.retain(|page| self.streams[page.index()]);
        // Pages that are on the device stay first, and of those the last.
        own.sort_by_key(|&page| self.remains(page));
        let mut resident = own.split_off(own.len().min(self.window));
        streamed.extend(own);
        resident.extend_from_slice(written);
        self.claim_pages(&resident);
        self.plan(resident, streamed)
    }

    fn plan(&self, resident: Vec<PageId>, streamed: Vec<PageId>) -> Option<ResidencyPlan> {
        let can_come =
            |page: &PageId| !self.goes[page.index()] && !self.pages.is_only_on_disk(*page);
        let comes = |page: &&PageId| !self.is_provided(**page);
        resident.iter().all(can_come).then(|| ResidencyPlan {
            coming: resident.iter().filter(comes).count(),
            resident,
            streamed,
        })
    }

    /// Marks the resident pages of a session as staying on the device or being paged in, and the
    /// others as streaming. The session takes `needed` free frames.
    pub fn keep(&mut self, plan: ResidencyPlan, needed: usize) {
        for page in plan.resident {
            self.stays[page.index()] = true;
        }
        for page in plan.streamed {
            let counted = std::mem::replace(&mut self.streams[page.index()], true);
            self.window -= usize::from(!counted);
        }
        self.free -= needed;
    }

    /// Evicts pages of a session, the last first, until `wanted` frames are free. Of a session
    /// larger than the device the first pages leave first, because it writes the last ones.
    pub fn evict(&mut self, wanted: usize, table: &PageTable, evicted: &mut Vec<PageId>) {
        let is_large = self.has_window && table.len() >= self.pages.device().total();
        let (mut first, mut last);
        let pages: &mut dyn Iterator<Item = &PageId> = match is_large {
            true => {
                first = table.pages().iter();
                &mut first
            }
            false => {
                last = table.pages().iter().rev();
                &mut last
            }
        };
        for &page in pages {
            if self.free >= wanted || self.elsewhere == 0 {
                return;
            }
            if self.can_go(page) {
                self.goes[page.index()] = true;
                self.unclaimed -= 1;
                self.elsewhere -= 1;
                self.free += 1;
                evicted.push(page);
            }
        }
    }

    /// Pages in more pages of a session that streams, as long as frames are free: a page that
    /// stays on the device streams in no later pass.
    pub fn fill(&mut self, table: &PageTable, arriving: &mut Vec<PageId>) {
        for &page in table.pages() {
            if self.free == 0 {
                return;
            }
            if !self.is_here(page) && !self.stays[page.index()] {
                self.stays[page.index()] = true;
                self.free -= 1;
                arriving.push(page);
            }
        }
    }
}
