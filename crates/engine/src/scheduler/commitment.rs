//! Page commitments: whether all admitted sessions can run to their end.

/// Pages that admitted sessions may need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PageCommitment {
    /// Number of pages of all sessions together.
    pub pages: usize,
    /// Number of pages of the largest session.
    pub largest: usize,
}

impl PageCommitment {
    /// Adds a session of up to `most` pages, of which `more` are not allocated yet.
    pub fn and(self, most: usize, more: usize) -> Self {
        PageCommitment {
            pages: self.pages + more,
            largest: self.largest.max(most),
        }
    }

    /// Adds a fork, which may have to copy `copied` shared pages while both are on the device.
    pub fn and_fork(self, most: usize, more: usize, copied: usize) -> Self {
        self.and(most + copied, more + copied)
    }

    /// Whether all sessions can run to their end: none is larger than the device, and either all
    /// pages fit on the device, or there is room to evict one session before another is paged
    /// in. Then the highest-priority session can always be scheduled.
    pub fn fits(self, device: usize, elsewhere: usize) -> bool {
        let swaps = self.pages + self.largest <= device + elsewhere;
        self.largest <= device && (self.pages <= device || swaps)
    }
}

/// Number of queued sessions to admit, in order of arrival. The queue lists the maximum number
/// of pages of each session. No session overtakes another, because a large one would never be
/// admitted.
pub(crate) fn admissible(
    mut committed: PageCommitment,
    queue: impl Iterator<Item = usize>,
    device: usize,
    elsewhere: usize,
) -> usize {
    let fits = |most: usize| {
        committed = committed.and(most, most);
        committed.fits(device, elsewhere)
    };
    queue.map(fits).take_while(|fits| *fits).count()
}
