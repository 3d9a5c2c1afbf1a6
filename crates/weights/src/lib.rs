//! Weights in memory: how they are cut into pieces, which pieces stay, and how the
//! others stream through a ring while passes run.
//!
//! A weight takes one way through this crate: [`Pieces`] cuts the files' extents,
//! [`Plan`] decides which pieces stay and places them, [`WeightLayout`] holds both
//! together, and a [`Streamer`] copies the pieces into place. This crate knows
//! programs and devices; it does not know sessions.

#![forbid(unsafe_code)]

mod cache;
mod error;
mod host_layout;
mod layout;
mod pieces;
mod placed;
mod plan;
mod ring;
mod settings;
mod streamer;

pub use cache::Cache;
pub use error::WeightsError;
pub use layout::{LayoutOptions, PiecePlace, PlannedPiece, WeightLayout};
pub use pieces::{Packing, Pieces};
pub use placed::{Home, PlacedPart, PlacedWeights};
pub use plan::{
    Bound, Keep, Needs, Overrides, Place, Plan, PlanError, Pool, Prediction, Rates, Work,
};
pub use ring::{Ring, Slot};
pub use settings::{LinkSettings, MemorySettings, weights_dtype};
pub use streamer::{
    Lane, LinkRate, PassStats, Recorder, Streamer, Timeline, TimelineEvent, measure_link, start,
};
