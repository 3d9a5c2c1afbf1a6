//! Where bytes go: sizes, slab layouts, the plan and its ring, pages of KV.
//!
//! Pure logic over numbers: nothing here allocates device memory, does I/O or
//! knows what the bytes mean.

#![forbid(unsafe_code)]

mod layout;
mod pages;
mod size;

pub use layout::Layout;
pub use pages::{Chunk, Frame, Frames, Fresh, Move, OutOfPages, PageId, PageTable, Pages};
pub use size::{Amount, ParseSizeError, Size};
