//! Weights in memory: how they are cut into pieces, which pieces stay, and how the others stream
//! through a ring while passes run.
//!
//! A weight takes one path through this crate. [`Pieces`] groups the [`Extent`]s of the model's
//! files. [`Plan`] gives every piece a [`Placement`]. [`WeightLayout`] holds both, together with
//! the placement of every tensor. A [`Streamer`] runs the [`CopyOp`]s from extents to placements.
//! This crate knows programs and devices, but not sessions.
//!
//! [`Extent`]: djinn_model::Extent

#![forbid(unsafe_code)]

mod copy_op;
mod cutter;
mod elastic;
mod error;
mod expert_cache;
mod host_layout;
mod layout;
mod packing;
mod pieces;
mod placement;
mod plan;
mod predict;
mod ring;
mod settings;
mod streamer;
mod tensors;

pub use copy_op::CopyOp;
pub use elastic::{ElasticWeights, LevelRange, SharedMemory};
pub use error::{PlanError, WeightsError};
pub use layout::{PlannedPiece, WeightLayout};
pub use packing::Packing;
pub use pieces::{Piece, Pieces};
pub use placement::{Placement, Region};
pub use plan::{ExpertPool, Keep, Overrides, Plan, PlanInput};
pub use predict::{Bound, PassWork, Prediction, Rates};
pub use ring::{Ring, RingSlot};
pub use settings::{LayoutOptions, LinkSettings, MemorySettings, weights_dtype};
pub use streamer::{
    LinkRate, PassStats, Recorder, Streamer, Timeline, TimelineEvent, TimelineLane, measure_link,
    start,
};
pub use tensors::{PlacedRows, TensorPlacements};
