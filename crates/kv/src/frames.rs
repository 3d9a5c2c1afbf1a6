//! Frames: the places for pages in one tier.

use std::collections::BTreeSet;

/// Number of a place for one page within a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Frame(pub u32);

impl Frame {
    /// Position of the frame in an array with one element for each frame of the tier.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Too few free frames for an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the operation needs {wanted} more KV pages, but {free} of {total} are free")]
pub struct OutOfPages {
    /// Number of frames the operation needs.
    pub wanted: usize,
    /// Number of free frames.
    pub free: usize,
    /// Number of frames of the tier.
    pub total: usize,
}

/// All frames of one tier, free or taken.
#[derive(Clone, Debug)]
pub struct FramePool {
    /// Free frames. The pool takes the lowest free frame first: high frames stay untouched as
    /// long as possible, and frames taken together are adjacent where possible.
    free: BTreeSet<Frame>,
    /// Whether each frame is taken, for all frames that may ever be available.
    taken: Vec<bool>,
    /// Number of available frames: the first ones.
    available: usize,
}

impl FramePool {
    /// Creates a pool of `total` free frames, all available.
    pub fn new(total: usize) -> Self {
        FramePool {
            free: frames(0..total).collect(),
            taken: vec![false; total],
            available: total,
        }
    }

    /// Number of available frames, free or taken.
    pub fn total(&self) -> usize {
        self.available
    }

    /// Number of frames that may ever be available.
    pub fn capacity(&self) -> usize {
        self.taken.len()
    }

    /// Number of free frames among the first `count`.
    pub(crate) fn free_among(&self, count: usize) -> usize {
        let is_among = |frame: &&Frame| frame.index() < count;
        self.free.iter().take_while(is_among).count()
    }

    /// Makes the first `count` frames available. The others must not be taken.
    pub(crate) fn set_available(&mut self, count: usize) {
        assert!(count <= self.capacity(), "{count} frames are too many");
        assert!(
            !self.taken[count..].contains(&true),
            "a taken frame stays available"
        );
        self.free
            .extend(frames(self.available..count.max(self.available)));
        self.free.retain(|frame| frame.index() < count);
        self.available = count;
    }

    /// Number of free frames.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Number of taken frames.
    pub fn taken(&self) -> usize {
        self.total() - self.free()
    }

    /// Takes the lowest free frame.
    pub(crate) fn take(&mut self) -> Option<Frame> {
        let frame = self.free.pop_first()?;
        let was_taken = std::mem::replace(&mut self.taken[frame.index()], true);
        assert!(!was_taken, "frame {} was free and taken", frame.0);
        Some(frame)
    }

    /// Returns a taken frame to the pool.
    pub(crate) fn give_back(&mut self, frame: Frame) {
        let was_taken = std::mem::replace(&mut self.taken[frame.index()], false);
        assert!(was_taken, "frame {} was returned twice", frame.0);
        self.free.insert(frame);
    }

    /// Fails unless `wanted` frames are free, or can be freed by removing `reclaimable` pages.
    pub(crate) fn check(&self, wanted: usize, reclaimable: usize) -> Result<(), OutOfPages> {
        let (free, total) = (self.free() + reclaimable, self.total());
        match wanted <= free {
            true => Ok(()),
            false => Err(OutOfPages {
                wanted,
                free,
                total,
            }),
        }
    }

    /// Panics unless every available frame is either free or listed exactly once in `held`.
    pub(crate) fn check_integrity(&self, held: impl Iterator<Item = Frame>) {
        let mut seen = vec![false; self.capacity()];
        for frame in held {
            let twice = std::mem::replace(&mut seen[frame.index()], true);
            assert!(!twice, "frame {} is held twice", frame.0);
        }
        assert_eq!(seen, self.taken, "frames held and frames taken differ");
        let count = seen.iter().filter(|&&held| held).count();
        assert_eq!(self.free.len() + count, self.total(), "frames leaked");
    }
}

/// Frames with the numbers of a range.
fn frames(numbers: std::ops::Range<usize>) -> impl Iterator<Item = Frame> {
    let number = |number| u32::try_from(number).expect("a frame number has 32 bits");
    numbers.map(move |at| Frame(number(at)))
}
