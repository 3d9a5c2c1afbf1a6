//! Checkpoints: what a session paused at a hook needs to continue from there.

use std::sync::Arc;

use djinn_model::{
    Site, SiteLayout, StopPoint,
    program::{Buf, Dims},
};

use crate::{probe::edit::BoundEdit, tensors::Tensor};

/// Checkpoint of a session that is paused in the middle of a pass. Its KV pages hold the keys
/// and values of earlier blocks; the checkpoint holds the buffers that the next operation reads.
#[derive(Clone, Debug)]
pub(crate) struct Checkpoint {
    /// Hook at which the session is paused.
    pub stop: Arc<StopPoint>,
    /// Number of tokens that continue from the hook together.
    pub rows: usize,
    /// Contents of the buffers that later operations read, row by row. Behind the last block
    /// only the rows whose logits are needed have one.
    pub live: Arc<Vec<(Buf, Vec<f32>)>>,
    /// Edits to apply before the session continues.
    pub edits: Vec<BoundEdit>,
}

impl Checkpoint {
    /// Bytes of the buffers.
    pub fn bytes(&self) -> u64 {
        let numbers = self.live.iter().map(|(_, numbers)| numbers.len());
        4 * numbers.sum::<usize>() as u64
    }

    /// Returns the activation at the hook.
    pub fn activation(&self, dims: &Dims) -> Tensor {
        let found = self.live.iter().find(|(buf, _)| *buf == self.stop.buf);
        let (_, data) = found.expect("a checkpoint holds the buffer of its hook");
        let (shape, data) = (self.shape(dims), data.clone());
        Tensor { shape, data }
    }

    /// Returns the shape of the activation at the hook.
    pub fn shape(&self, dims: &Dims) -> Vec<usize> {
        let found = self.live.iter().find(|(buf, _)| *buf == self.stop.buf);
        let data = found.map_or(&[][..], |(_, data)| data);
        match self.stop.site.layout(dims) {
            SiteLayout::Heads(heads, d_head) => vec![data.len() / (heads * d_head), heads, d_head],
            SiteLayout::Rows(width) | SiteLayout::Pattern(width) => vec![data.len() / width, width],
        }
    }
}

/// Position of a paused session: a hook, and the tokens that wait there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paused {
    /// Hook at which the session is paused.
    pub site: Site,
    /// First position that is paused.
    pub position: usize,
    /// Number of positions that are paused.
    pub rows: usize,
}

/// Pause of a session that was restored without its activations: the session runs to the hook
/// again, and no breakpoint before the hook pauses it.
#[derive(Clone, Debug)]
pub(crate) struct Rewind {
    /// Hook and tokens of the pause.
    pub to: Paused,
    /// Index of the operation that follows the hook.
    pub next: usize,
    /// Whether the session pauses at the hook again or runs past it.
    pub stops: bool,
}

/// A pause that a session is at, continues from, or runs to again.
#[derive(Clone, Debug)]
pub(crate) enum PausePlace {
    /// The activations are at hand.
    Here(Checkpoint),
    /// The activations must be computed again.
    Replay(Rewind),
}

impl PausePlace {
    /// Returns the way to this pause again, for a session that ran past it. `at` names the hook
    /// and the tokens.
    pub fn passed(&self, at: Paused) -> Rewind {
        let next = match self {
            PausePlace::Here(checkpoint) => checkpoint.stop.next,
            PausePlace::Replay(rewind) => rewind.next,
        };
        Rewind {
            to: at,
            next,
            stops: false,
        }
    }

    /// Returns the checkpoint if the activations are at hand.
    pub fn checkpoint(&self) -> Option<&Checkpoint> {
        match self {
            PausePlace::Here(checkpoint) => Some(checkpoint),
            PausePlace::Replay(_) => None,
        }
    }

    /// Returns the rewind if the activations must be computed again.
    pub fn rewind(&self) -> Option<&Rewind> {
        match self {
            PausePlace::Here(_) => None,
            PausePlace::Replay(rewind) => Some(rewind),
        }
    }
}
