//! The executor: runs a batch of sessions through the model's program on the device.

mod active_rows;
mod apply_edits;
mod attention;
pub(crate) mod batch;
mod experts;
pub(crate) mod graph_regions;
mod ops;
pub(crate) mod pass;
pub(crate) mod progress;
mod read_hooks;
mod replay;
mod stops;
