//! Page commitments: whether all admitted sessions can run to their end.

use super::disk_work::host_reserve;
use crate::settings::Settings;

/// Room for the pages of sessions in all tiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageRoom {
    /// Number of device frames.
    pub device: usize,
    /// Maximum number of pages of one session: the device and the KV window hold them, and host
    /// memory the pages that stream.
    pub session: usize,
    /// Number of pages that may stream through the KV window in a pass.
    pub window: usize,
    /// Maximum number of pages that a pass writes for one session, with the shared pages that it
    /// copies first.
    pub written: usize,
    /// Number of pages that can be outside the device.
    pub elsewhere: usize,
}

impl PageRoom {
    /// Returns the room in an engine with these settings, where `elsewhere` pages can be outside
    /// the device.
    pub fn new(settings: &Settings, elsewhere: usize) -> Self {
        let device = settings.pages;
        let streamed = device.saturating_add(settings.window_pages);
        let session = match settings.disk_pages {
            0 => streamed,
            // All pages of a session that streams return from disk before it runs, while other
            // pages can leave the device.
            _ => {
                let host = settings.host_pages;
                let rest = host.saturating_sub(Self::host_reserve(settings) + 1);
                streamed.min(rest.max(device))
            }
        };
        let written = settings.rows.div_ceil(settings.page_tokens) + 1;
        PageRoom {
            device,
            session,
            window: settings.window_pages,
            written: 2 * written,
            elsewhere,
        }
    }

    /// Number of host frames of these settings that only pages from disk take.
    pub fn host_reserve(settings: &Settings) -> usize {
        match settings.disk_pages {
            0 => 0,
            _ => host_reserve(settings.host_pages, Self::most_at_once(settings)),
        }
    }

    /// Maximum number of pages of one session that move to or from the device at once.
    pub fn most_at_once(settings: &Settings) -> usize {
        settings.table_pages().min(settings.pages)
    }

    /// Number of pages that a session of `most` pages needs on the device at once.
    fn resident(&self, most: usize) -> usize {
        match most <= self.device {
            true => most,
            false => self.written.max(most.saturating_sub(self.window)),
        }
    }
}

/// Pages that admitted sessions may need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageCommitment {
    room: PageRoom,
    /// Number of pages of all sessions together.
    pages: usize,
    /// Number of pages of the largest session.
    largest: usize,
    /// Maximum number of pages that one session needs on the device at once.
    resident: usize,
}

impl PageCommitment {
    /// Commits the room for pages that sessions hold.
    pub fn new(room: PageRoom, held: usize) -> Self {
        PageCommitment {
            room,
            pages: held,
            largest: 0,
            resident: 0,
        }
    }

    /// Adds a session of up to `most` pages, of which `more` are not allocated yet.
    pub fn and(self, most: usize, more: usize) -> Self {
        PageCommitment {
            pages: self.pages + more,
            largest: self.largest.max(most),
            resident: self.resident.max(self.room.resident(most)),
            ..self
        }
    }

    /// Adds a fork, which may have to copy `copied` shared pages while both are on the device.
    pub fn and_fork(self, most: usize, more: usize, copied: usize) -> Self {
        self.and(most + copied, more + copied)
    }

    /// Whether all sessions can run to their end: none is larger than the device with the KV
    /// window, and either all pages fit on the device, or there is room to evict what one session
    /// needs on the device before it is paged in. Then the highest-priority session can always be
    /// scheduled.
    pub fn fits(self) -> bool {
        let PageRoom {
            device,
            session,
            elsewhere,
            ..
        } = self.room;
        let runs = self.largest <= session && self.resident <= device;
        let swaps = self.pages + self.resident <= device + elsewhere;
        runs && (self.pages <= device || swaps)
    }
}

/// Number of queued sessions to admit, in order of arrival. The queue lists the maximum number
/// of pages of each session. No session overtakes another, because a large one would never be
/// admitted.
pub(crate) fn admissible(
    mut committed: PageCommitment,
    queue: impl Iterator<Item = usize>,
) -> usize {
    let fits = |most: usize| {
        committed = committed.and(most, most);
        committed.fits()
    };
    queue.map(fits).take_while(|fits| *fits).count()
}
