//! The disk decision: which pages to read from disk and which to spill, while passes run.

use djinn_kv::{PageId, PageTable, Pages};

/// Number of host frames reserved for pages read from disk. With a reserve, the first session in
/// the order can always be paged in, a few pages at a time if need be. `largest` is the maximum
/// number of pages of a session.
pub(crate) fn host_reserve(host: usize, largest: usize) -> usize {
    largest.min(host / 4).max(1)
}

/// Pages to read from disk, and pages to write to disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DiskWork {
    pub fetch: Vec<PageId>,
    pub spill: Vec<PageId>,
}

/// Decides which pages to fetch and spill. `wanted` are the tables of sessions that will run,
/// the next first; `idle` are the others, in order of eviction. Pages of `running` tables, which
/// the next pass reads, stay in host memory. `margin` host frames stay free (the reserve, and room
/// for another session), so that evictions seldom wait for the disk.
pub(crate) fn disk_work(
    wanted: &[&PageTable],
    idle: &[&PageTable],
    running: &[&PageTable],
    pages: &Pages,
    margin: usize,
) -> DiskWork {
    let mut work = DiskWork::default();
    let mut taken = vec![false; pages.index_bound()];
    let mut room = pages.host_room();
    for (number, table) in wanted.iter().enumerate() {
        // Only the first session uses the reserve. The others are read only into spare room,
        // because sessions that are read in halves would wait for one another.
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
    let mut stays = vec![false; pages.index_bound()];
    for table in wanted.iter().take(1).chain(running) {
        table
            .pages()
            .iter()
            .for_each(|page| stays[page.index()] = true);
    }
    for table in idle.iter().chain(wanted.iter().rev()) {
        for &page in table.pages().iter().rev() {
            if short == 0 {
                return work;
            }
            let is_alone = pages.device_frame(page).is_none() && pages.host_frame(page).is_some();
            let stays = stays[page.index()] || taken[page.index()];
            if is_alone && !pages.in_disk_transfer(page) && !stays {
                taken[page.index()] = true;
                work.spill.push(page);
                short -= 1;
            }
        }
    }
    work
}
