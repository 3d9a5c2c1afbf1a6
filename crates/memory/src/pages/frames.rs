//! Frames: the places that a tier has for pages.

use std::collections::BTreeSet;

/// A place for a page in one tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Frame(pub u32);

/// There are not enough free frames.
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

/// All frames of a tier, free or taken.
#[derive(Clone, Debug)]
pub struct Frames {
    /// The lowest is taken first: fresh ones stay untouched, and what is taken together
    /// lies side by side where it can.
    free: BTreeSet<Frame>,
    taken: Vec<bool>,
}

impl Frames {
    /// So many free frames.
    pub fn new(total: usize) -> Self {
        let total_u32 = u32::try_from(total).expect("frames are told by 32 bits");
        Frames {
            free: (0..total_u32).map(Frame).collect(),
            taken: vec![false; total],
        }
    }

    /// Frames there are.
    pub fn total(&self) -> usize {
        self.taken.len()
    }

    /// Frames that hold nothing.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    pub(super) fn take(&mut self) -> Option<Frame> {
        let frame = self.free.pop_first()?;
        let was_taken = std::mem::replace(&mut self.taken[frame.0 as usize], true);
        assert!(!was_taken, "frame {} was free and taken", frame.0);
        Some(frame)
    }

    pub(super) fn give_back(&mut self, frame: Frame) {
        let was_taken = std::mem::replace(&mut self.taken[frame.0 as usize], false);
        assert!(was_taken, "frame {} was given back twice", frame.0);
        self.free.insert(frame);
    }

    /// Whether so many are free.
    pub(super) fn check(&self, wanted: usize) -> Result<(), OutOfPages> {
        let (free, total) = (self.free(), self.total());
        match wanted <= free {
            true => Ok(()),
            false => Err(OutOfPages {
                wanted,
                free,
                total,
            }),
        }
    }

    /// Panics unless every frame is either free or held exactly once.
    pub(super) fn check_integrity(&self, held: impl Iterator<Item = Frame>) {
        let mut seen = vec![false; self.total()];
        for frame in held {
            let twice = std::mem::replace(&mut seen[frame.0 as usize], true);
            assert!(!twice, "frame {} is held twice", frame.0);
        }
        assert_eq!(seen, self.taken, "frames held and frames taken differ");
        let count = seen.iter().filter(|&&held| held).count();
        assert_eq!(self.free.len() + count, self.total(), "frames leaked");
    }
}
