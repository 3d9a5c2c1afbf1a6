//! Layout for sessions larger than the device: page frames, and a KV window through which the
//! other pages stream.

use djinn_kv::{KvMemory, KvRegion};
use djinn_model::Model;
use djinn_weights::MemorySettings;

use crate::{
    Settings,
    arena::kv_region,
    backend::kv_dtype,
    scheduler::commitment::{PageCommitment, PageRoom},
};

/// Numbers of device pages with which sessions larger than the device run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowedPages {
    /// Least number of pages on the device: the pages that a pass writes.
    pub least: usize,
    /// Number of pages for which the user's KV memory has room beside the window.
    pub wanted: usize,
    /// Number of pages of the longest session, all of which may stream through the window.
    pub window: usize,
}

impl WindowedPages {
    /// Returns the numbers for these settings; `None` if the window and the least pages would
    /// take as much memory as the longest session does.
    pub fn new(
        model: &Model,
        settings: &Settings,
        memory: &MemorySettings,
        kv: &KvMemory,
    ) -> Option<Self> {
        let longest = settings.table_pages();
        let windowed = Settings {
            window_pages: longest,
            ..settings.clone()
        };
        let region = region(model, &windowed, memory);
        let least = PageRoom::new(&windowed, 0).written;
        let bytes = |pages: usize| region.page_bytes().saturating_mul(pages as u64);
        if bytes(least).saturating_add(region.window_bytes()) >= bytes(longest) {
            return None;
        }
        let room = kv.streamed_device_bytes(memory.budget);
        let frames = room.saturating_sub(region.window_bytes()) / region.page_bytes().max(1);
        let wanted = usize::try_from(frames).unwrap_or(usize::MAX);
        Some(WindowedPages {
            least,
            wanted: wanted.clamp(least, longest),
            window: longest,
        })
    }
}

fn region(model: &Model, settings: &Settings, memory: &MemorySettings) -> KvRegion {
    let program = &model.program;
    kv_region(program, settings, kv_dtype(memory, program), 0)
}

/// Whether the user's KV memory is smaller than the longest session.
pub(crate) fn exceeds_kv_memory(
    model: &Model,
    settings: &Settings,
    memory: &MemorySettings,
    kv: &KvMemory,
) -> bool {
    let longest = settings.table_pages() as u64;
    let page_bytes = region(model, settings, memory).page_bytes();
    let exceeds = |bytes: u64| bytes < page_bytes.saturating_mul(longest);
    kv.device.is_some_and(exceeds)
}

/// Number of host pages that the longest session needs beside the device, if there are fewer.
pub(crate) fn missing_host_pages(settings: &Settings) -> Option<usize> {
    let longest = settings.table_pages();
    let holds = |host_pages: usize| {
        let settings = Settings {
            host_pages,
            ..settings.clone()
        };
        let elsewhere = host_pages - PageRoom::host_reserve(&settings) + settings.disk_pages;
        let room = PageRoom::new(&settings, elsewhere);
        PageCommitment::new(room, 0).and(longest, longest).fits()
    };
    if holds(settings.host_pages) {
        return None;
    }
    // Twice the session is enough, with the pages that move at once.
    let most = 4 * (longest + settings.pages);
    let more: Vec<usize> = (settings.host_pages..most).collect();
    let at = more.partition_point(|&host_pages| !holds(host_pages));
    Some(settings.host_pages + at)
}
