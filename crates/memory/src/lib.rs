//! Where bytes go: sizes, slab layouts, the plan and its ring.
//!
//! Pure logic over numbers: nothing here allocates device memory, does I/O or
//! knows what the bytes mean.

#![forbid(unsafe_code)]

mod layout;
mod size;

pub use layout::Layout;
pub use size::{Amount, ParseSizeError, Size};
