//! The streamer: keeps weights ahead of the pass that uses them.
//!
//! A pass asks for pieces in order ([`Streamer::need`]) and waits only for the one it
//! needs next. Ahead of it the ring is filled; when a pass ends that goes on with the
//! first pieces of the next one. Without prefetch a piece is brought when it is asked
//! for, and nothing before: that way is the oracle of the other, and shows what running
//! ahead is worth.
//!
//! There are two. The [`FileStreamer`] has threads that read files, and waits for them. The
//! [`HostStreamer`] has a device that copies from host memory: it only says what comes after
//! what, by events, and never waits itself.

mod copier;
mod copies;
mod experts;
mod file;
mod host;
mod link;
mod measure;
mod prefetch;
mod queue;
mod sync;
mod timeline;
mod trace;

#[cfg(test)]
mod interleavings;

use std::sync::Arc;

use djinn_device::{Device, DeviceError, View};
use djinn_model::{Weights, program::TensorId};
use djinn_types::Tier;

pub(crate) use copies::Copies;
pub(crate) use measure::RING as MEASURE_RING;
pub use measure::{LinkRate, measure_link};
pub(crate) use queue::RingPiece;
pub use timeline::Recorder;
pub use timeline::{Lane, Timeline, TimelineEvent};

use crate::{WeightLayout, WeightsError};
use file::FileStreamer;
use host::HostStreamer;

type Result<T> = std::result::Result<T, DeviceError>;

/// What one pass cost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PassStats {
    /// Rows it ran.
    pub rows: usize,
    /// How long it took.
    pub seconds: f64,
    /// Bytes that came over the link: meanwhile, or where a device copies by itself, for
    /// this pass.
    pub link_bytes: u64,
    /// How long they were under way.
    pub link_s: f64,
    /// How long the pass waited for weights.
    pub stall_s: f64,
}

impl PassStats {
    /// Seconds in which the pass did not wait.
    pub fn compute_s(&self) -> f64 {
        self.seconds - self.stall_s
    }

    /// GB/s while the link had something to do; 0 where it had nothing.
    pub fn link_gb_per_s(&self) -> f64 {
        if self.link_s > 0.0 {
            self.link_bytes as f64 / self.link_s / 1e9
        } else {
            0.0
        }
    }

    /// How much of the shorter of copying and computing happened during the other.
    pub fn overlap(&self) -> f64 {
        let shorter = self.link_s.min(self.compute_s());
        if shorter <= 0.0 {
            return 0.0;
        }
        ((self.link_s + self.compute_s() - self.seconds) / shorter).clamp(0.0, 1.0)
    }
}

/// Feeds passes with weights.
pub trait Streamer: Send {
    /// Brings in all that stays and these experts, and lets the ring fill. Says how many
    /// bytes are there by now.
    fn load(
        &mut self,
        layout: &WeightLayout,
        experts: &[usize],
        progress: &mut dyn FnMut(u64),
    ) -> std::result::Result<(), WeightsError>;

    /// A pass begins.
    fn begin_pass(&mut self) -> Result<()>;
    /// A segment's operations begin.
    fn begin_segment(&mut self, label: u32) -> Result<()>;
    /// They have all been given to the device.
    fn end_segment(&mut self) -> Result<()>;
    /// What comes next uses a piece of the ring; the one before it is no longer in use.
    fn need(&mut self, visit: usize) -> Result<()>;
    /// Brings some experts of a block in, those that come next ahead of their turn,
    /// and calls `run` for each in order, with the distance of its slot from the
    /// first.
    fn experts(
        &mut self,
        chosen: &[usize],
        run: &mut dyn FnMut(usize, u64) -> Result<()>,
    ) -> Result<()>;
    /// Brings rows of a table, one after the other, into a run of the slab.
    fn rows(&mut self, table: TensorId, numbers: &[i32], to: View) -> Result<()>;
    /// The pass is over: what it did not need is passed over, and the next pass's first
    /// pieces are already on their way.
    fn end_pass(&mut self, rows: usize) -> Result<PassStats>;
    /// The pass failed: everything under way is given up, and the next one begins with
    /// an empty ring.
    fn abort_pass(&mut self);

    /// Panics unless nothing is under way but the ring.
    fn check_integrity(&self);
}

/// The streamer of a layout.
pub fn start(
    layout: &WeightLayout,
    device: &Arc<dyn Device>,
    weights: &Arc<dyn Weights>,
    recorder: &Arc<Recorder>,
) -> std::result::Result<Box<dyn Streamer>, WeightsError> {
    Ok(match layout.link().tier {
        Tier::Files => Box::new(FileStreamer::new(layout, device, weights, recorder)?),
        Tier::Host => Box::new(HostStreamer::new(layout, device, weights, recorder)?),
    })
}
