//! Where bytes go: sizes, slab layouts, the plan and its ring, pages of KV.
//!
//! Pure logic over numbers: nothing here allocates device memory, does I/O or
//! knows what the bytes mean.

#![forbid(unsafe_code)]

mod cache;
mod layout;
mod pages;
mod plan;
mod ring;
mod size;

pub use cache::Cache;
pub use layout::Layout;
pub use pages::{Chunk, Frame, Frames, Fresh, Move, OutOfPages, PageId, PageTable, Pages};
pub use plan::{
    Bound, Keep, Needs, Overrides, Place, Plan, PlanError, Pool, Prediction, Rates, Work,
};
pub use ring::{Ring, Slot};
pub use size::{Amount, ParseSizeError, Size};
