//! What a session that stopped needs to go on from there.

use std::sync::Arc;

use djinn_model::{
    Site, SiteLayout, StopPoint,
    program::{Buf, Dims},
};

use crate::{Tensor, probe::edit::Edit};

/// A session in the middle of a pass: its pages hold what the blocks before have made of
/// its last tokens, and this what the next operation reads.
#[derive(Clone, Debug)]
pub(crate) struct Checkpoint {
    /// Where it stands.
    pub stop: Arc<StopPoint>,
    /// Tokens that run together from here.
    pub rows: usize,
    /// What is in the buffers that it still needs, row by row; as many rows as stopped,
    /// which behind the last block are only those whose logits are wanted.
    pub live: Arc<Vec<(Buf, Vec<f32>)>>,
    /// What is changed before it goes on.
    pub edits: Vec<Edit>,
}

impl Checkpoint {
    /// What is at the hook, as it lies there.
    pub fn activation(&self, dims: &Dims) -> Tensor {
        let found = self.live.iter().find(|(buf, _)| *buf == self.stop.buf);
        let (_, data) = found.expect("what is at the hook is kept");
        let (shape, data) = (self.shape(dims), data.clone());
        Tensor { shape, data }
    }

    /// Its shape.
    pub fn shape(&self, dims: &Dims) -> Vec<usize> {
        let found = self.live.iter().find(|(buf, _)| *buf == self.stop.buf);
        let data = found.map_or(&[][..], |(_, data)| data);
        match self.stop.site.layout(dims) {
            SiteLayout::Heads(heads, d_head) => vec![data.len() / (heads * d_head), heads, d_head],
            SiteLayout::Rows(width) | SiteLayout::Pattern(width) => vec![data.len() / width, width],
        }
    }
}

/// Where a session stands that stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paused {
    /// At which hook.
    pub site: Site,
    /// The first position that stopped, and how many.
    pub position: usize,
    /// Those.
    pub rows: usize,
}

/// A session that was written down where it stood, or after it had: it runs there again, and
/// nothing on the way stops it.
#[derive(Clone, Debug)]
pub(crate) struct Rewind {
    pub to: Paused,
    /// The operation it comes to there.
    pub next: usize,
    /// Whether it stops there again, or goes on.
    pub stops: bool,
}
