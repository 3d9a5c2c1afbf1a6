//! What goes to disk and what comes from there, while passes run.

use djinn_kv::{PageId, PageTable, Pages};

/// Frames of the host that only pages from disk may take where there is one: then whoever
/// is first can always come back from there, a few pages at a time if need be. `largest` is
/// the most pages of a session.
pub(crate) fn reserve(host: usize, largest: usize) -> usize {
    largest.min(host / 4).max(1)
}

/// Pages to read, and pages to write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DiskWork {
    pub fetch: Vec<PageId>,
    pub spill: Vec<PageId>,
}

/// Decides. `wanted` are sessions that will run, the next first; `idle` the others, those
/// needed last first. So many frames of the host are kept free, the reserve and room for
/// another session, so that what leaves the device seldom waits for the disk.
pub(crate) fn disk_work(
    wanted: &[&PageTable],
    idle: &[&PageTable],
    pages: &Pages,
    margin: usize,
) -> DiskWork {
    let mut work = DiskWork::default();
    let mut taken = vec![false; pages.index_bound()];
    let mut room = pages.host().free() + pages.host_copies();
    for (number, table) in wanted.iter().enumerate() {
        // The reserve is for the first alone, and the others come only where nothing has to
        // go for it: those that have half each would wait for one another.
        let left = if number == 0 { 0 } else { margin };
        for &page in table.pages() {
            let can_come = pages.is_only_on_disk(page) && !pages.in_disk_transfer(page);
            if room > left && can_come && !taken[page.index()] {
                taken[page.index()] = true;
                work.fetch.push(page);
                room -= 1;
            }
        }
    }
    let mut short = margin.saturating_sub(room + pages.spilling());
    let stays = |page: &PageId| wanted.first().is_some_and(|t| t.pages().contains(page));
    for table in idle.iter().chain(wanted.iter().rev()) {
        for &page in table.pages().iter().rev() {
            if short == 0 {
                return work;
            }
            let is_alone = pages.device_frame(page).is_none() && pages.host_frame(page).is_some();
            if is_alone && !pages.in_disk_transfer(page) && !stays(&page) && !taken[page.index()] {
                taken[page.index()] = true;
                work.spill.push(page);
                short -= 1;
            }
        }
    }
    work
}
