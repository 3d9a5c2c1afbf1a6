//! Where bytes go: sizes, slab layouts, pages of KV.
//!
//! Pure logic over numbers: nothing here allocates device memory, does I/O or
//! knows what the bytes mean.

#![forbid(unsafe_code)]

mod layout;
mod pages;
mod size;

pub use layout::Layout;
pub use pages::{OutOfPages, PageId, PagePool, PageTable};
pub use size::{ParseSizeError, Size};
