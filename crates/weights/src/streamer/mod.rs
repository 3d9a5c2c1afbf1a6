//! Streamers: copy weights into place ahead of the pass that uses them.
//!
//! There are two streamers. [`FileStreamer`] has threads that read files into the slab, and a
//! pass waits for them. [`HostStreamer`] makes the device copy from host memory: it only orders
//! copies and operations by events and never waits.

mod copier;
mod experts;
mod file;
mod host;
mod interface;
mod measure;
mod prefetch;
mod queue;
mod stats;
mod sync;
mod timeline;
mod trace;
mod transfers;
mod workers;

#[cfg(test)]
mod interleavings;

use std::sync::Arc;

use djinn_device::Device;
use djinn_model::Weights;
use djinn_types::Tier;

pub use interface::Streamer;
pub use measure::{LinkRate, measure_link};
pub use stats::PassStats;
pub use timeline::{Recorder, Timeline, TimelineEvent, TimelineLane};

use crate::{WeightLayout, WeightsError};
use file::FileStreamer;
use host::HostStreamer;

/// Starts the streamer for a layout. `weights` are the model's files.
pub fn start(
    layout: &WeightLayout,
    device: &Arc<dyn Device>,
    weights: &Arc<dyn Weights>,
    recorder: &Arc<Recorder>,
) -> Result<Box<dyn Streamer>, WeightsError> {
    Ok(match layout.link().tier {
        Tier::Files => Box::new(FileStreamer::new(layout, device, weights, recorder)?),
        Tier::Host => Box::new(HostStreamer::new(layout, device, weights, recorder)?),
    })
}
