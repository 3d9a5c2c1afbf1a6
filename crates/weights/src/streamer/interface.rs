//! Interface between a pass and a streamer.

use std::ops::ControlFlow;

use djinn_device::{DeviceError, View};
use djinn_model::program::TensorId;

use crate::{WeightLayout, WeightsError};

use super::stats::PassStats;

/// Provides passes with weights.
///
/// A pass requests pieces in order ([`Streamer::need`]) and waits only for the piece that it
/// needs next. Meanwhile the streamer fills the ring; at the end of a pass it continues with the
/// first pieces of the next pass. Without prefetch, the streamer copies a piece when the pass
/// requests it. That mode is the reference for tests of prefetch, and it shows how much time
/// prefetch saves.
pub trait Streamer: Send {
    /// Copies all resident weights and the first experts into place, and lets the ring
    /// fill. Calls `progress` with the number of bytes read from files so far, and fails with
    /// [`WeightsError::Cancelled`] if that breaks. After [`Streamer::suspend`], this call brings
    /// the weights back; what host memory has a copy of is not read again.
    fn load(
        &mut self,
        layout: &WeightLayout,
        progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<(), WeightsError>;

    /// Begins a pass.
    fn begin_pass(&mut self) -> Result<(), DeviceError>;
    /// Begins the operations of a segment. The timeline shows the name of `label`.
    fn begin_segment(&mut self, label: u32) -> Result<(), DeviceError>;
    /// Ends a segment after all its operations are enqueued.
    fn end_segment(&mut self) -> Result<(), DeviceError>;
    /// Makes a piece of the ring available to the next operations, and releases the previous
    /// piece.
    fn need(&mut self, visit: usize) -> Result<(), DeviceError>;
    /// Copies experts of a block into the pool, some of them ahead of their use. Calls
    /// `run` for each of `chosen` in order, with its index in `chosen` and the distance in
    /// bytes of its slot from the first slot.
    fn experts(
        &mut self,
        chosen: &[usize],
        run: &mut dyn FnMut(usize, u64) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError>;
    /// Copies rows of a table into a view of the slab, one after the other.
    fn rows(&mut self, table: TensorId, numbers: &[i32], to: View) -> Result<(), DeviceError>;
    /// Ends a pass over `rows` rows. Skips the pieces that the pass did not need.
    fn end_pass(&mut self, rows: usize) -> Result<PassStats, DeviceError>;
    /// Abandons a failed pass: cancels all copies in flight. The next pass begins with an empty
    /// ring.
    fn abort_pass(&mut self);

    /// Stops all copies between two passes and waits for those in flight, so that the device's
    /// memory may be released. The next call is [`Streamer::load`].
    fn suspend(&mut self) -> Result<(), DeviceError>;

    /// Changes to the level of an elastic layout, between two passes. `from` is the level before.
    /// Units that return are copied to their places, which must be free for all work that is on
    /// the compute stream now. If this call fails, the streamer stays at the level before, and
    /// those places have undefined contents.
    fn switch(&mut self, layout: &WeightLayout, from: usize) -> Result<(), WeightsError>;

    /// Panics unless the streamer's state is consistent between two passes.
    fn check_integrity(&self);
}
