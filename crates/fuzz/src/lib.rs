//! Fuzz targets: every reader of bytes from outside, with the properties that it must keep.
//!
//! A target is a function of bytes. It panics if a property is violated: a reader never panics, an
//! accepted value is consistent, and a value that is written reads back equal. [`check`] runs a
//! target on one input and also limits memory; [`Mutator`] makes new inputs from seeds.
//!
//! Two programs use this crate. The test `campaign` runs every target for a few seconds with the
//! mutator, in CI. The program in `fuzz/` runs one target with libFuzzer, guided by coverage.

#![forbid(unsafe_code)]

mod check;
mod fixtures;
mod input;
mod mutator;
mod scratch;
mod seeds;
mod server;
mod targets;

pub use check::{Cost, Violation, check, watch_panics};
pub use mutator::Mutator;
pub use seeds::{data_folder, is_slow, seeds};
pub use targets::{FuzzTarget, TARGETS, target};
