//! Paged KV cache: where every page of keys and values is, and how it moves.
//!
//! A *page* holds the keys and values of a fixed number of tokens, all layers together. A
//! *frame* is a place for one page in a tier: on the device, in host memory or on disk. A
//! [`PageTable`] lists the pages of one sequence in order of position.
//!
//! [`Pages`] is pure logic: it records which frames each page occupies and how many tables hold
//! it. Tables with equal prefixes hold the same pages; a shared page is copied on write.
//! [`Pager`] performs the moves: it orders copies on the device's page streams by events, and
//! hands disk transfers to threads that use a [`SpillFile`].
//!
//! This crate knows only page tables and numbers. Sessions, owners and priorities belong to the
//! engine.

#![forbid(unsafe_code)]

mod budget;
mod cached_pages;
mod error;
mod frames;
mod page;
mod page_table;
mod pager;
mod pages;
mod prefix_index;
mod region;
mod spill_file;
mod spill_threads;

pub use budget::{KvMemory, PageDemand, SpillConfig, TooFewHostPages};
pub use cached_pages::CachedPageStats;
pub use error::{KvError, SpillError};
pub use frames::{Frame, FramePool, OutOfPages};
pub use page::{DiskDirection, PageCopy, PageId};
pub use page_table::PageTable;
pub use pager::{
    DeviceCopier, DiskTier, FailedDiskTransfer, Granularity, KvUsage, PageCopier, PageReader,
    PageStream, Pager, PagingStats, PendingPages, TierUsage, Traffic, WindowCopy,
};
pub use pages::{IndexedPage, Pages, PlacedFrame, WritePlan};
pub use prefix_index::PageContent;
pub use region::{KvRegion, WINDOW_HALVES};
pub use spill_file::SpillFile;
