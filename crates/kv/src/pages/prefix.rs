//! Prefix cache: tables with equal prefixes hold the same pages.

use super::Pages;
use crate::page::PageId;
use crate::page_table::PageTable;
use crate::prefix_index::PageContent;

impl Pages {
    /// Page before index `at` of a table, as the prefix index needs it: `Some(None)` at the
    /// beginning, `None` if the previous page is not in the index.
    fn previous(&self, table: &PageTable, at: usize) -> Option<Option<PageId>> {
        if at == 0 {
            return Some(None);
        }
        let previous = table.pages[at - 1];
        self.prefixes.contains(previous).then_some(Some(previous))
    }

    /// Looks up a page with this content and puts it at index `at` of a table, in place of a
    /// partly filled page at that index. Returns whether a page was found.
    pub fn lookup_prefix(
        &mut self,
        table: &mut PageTable,
        at: usize,
        content: &PageContent,
    ) -> bool {
        let previous = self.previous(table, at);
        let found = previous.and_then(|previous| self.prefixes.lookup(previous, content));
        let Some(page) = found else {
            return false;
        };
        self.hold(page);
        match table.pages.get_mut(at) {
            Some(place) => {
                let partial = std::mem::replace(place, page);
                self.remove_holder(partial);
            }
            None => table.pages.push(page),
        }
        true
    }

    /// Inserts the full page at index `at` of a table into the prefix cache. If the cache already
    /// has an equal page, the table holds that page instead.
    pub fn insert_prefix(&mut self, table: &mut PageTable, at: usize, content: PageContent) {
        let Some(previous) = self.previous(table, at) else {
            return;
        };
        let own = table.pages[at];
        match self.prefixes.lookup(previous, &content) {
            Some(same) if same == own => {}
            Some(same) => {
                self.hold(same);
                table.pages[at] = same;
                // The table's own page was just written, so it is only on the device. The equal
                // page can take over its frame.
                if self.entry(same).device.is_none() && self.entry(own).holders == 1 {
                    let frame = self.update(own, |entry| entry.device.take());
                    self.update(same, |entry| entry.device = frame);
                }
                self.remove_holder(own);
            }
            None => {
                self.prefixes.insert(own, previous, content);
                self.inserted += 1;
            }
        }
    }
}
