//! The times at which a fault was active.

use std::sync::{Mutex, PoisonError};

/// Count of faults: begun so far, and active now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct FaultCount {
    begun: u64,
    active: usize,
}

/// Board on which faults announce their begin and their end.
#[derive(Debug, Default)]
pub struct FaultBoard(Mutex<FaultCount>);

/// Moment on the board.
#[derive(Clone, Copy, Debug)]
pub struct FaultMark(FaultCount);

impl FaultBoard {
    fn change<T>(&self, change: impl FnOnce(&mut FaultCount) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Announces that a fault begins.
    pub fn begin(&self) {
        self.change(|count| {
            count.begun += 1;
            count.active += 1;
        });
    }

    /// Announces that a fault is over and the server has recovered from it.
    pub fn end(&self) {
        self.change(|count| count.active -= 1);
    }

    /// Takes the current moment.
    pub fn mark(&self) -> FaultMark {
        FaultMark(self.change(|count| *count))
    }

    /// Whether a fault was active at any time since the moment.
    pub fn overlaps(&self, since: FaultMark) -> bool {
        self.change(|count| since.0.active > 0 || count.begun != since.0.begun)
    }
}

#[cfg(test)]
mod tests {
    use super::FaultBoard;

    #[test]
    fn a_fault_overlaps_every_moment_before_its_end() {
        let board = FaultBoard::default();
        let before = board.mark();
        assert!(!board.overlaps(before));
        board.begin();
        let during = board.mark();
        board.end();
        assert!(board.overlaps(before) && board.overlaps(during));
        assert!(!board.overlaps(board.mark()));
    }
}
