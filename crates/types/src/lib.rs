//! Plain types that several crates name.
//!
//! This crate is a leaf: it has no dependencies and does no work. A type belongs here if crates
//! that must not depend on each other need it. For example, `model` describes operations and
//! `device` runs them.

#![forbid(unsafe_code)]

mod dtype;
mod operation;
mod size;
pub mod text;
mod tier;

pub use dtype::DType;
pub use operation::{Activation, NormKind, Order, RopeStyle};
pub use size::{Amount, ParseSizeError, Size};
pub use tier::Tier;

/// Identifier of a session, unique within one engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub u64);

impl std::fmt::Display for SessionId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Alignment, in bytes, of direct I/O: file offset, memory address and length. Every file
/// system and disk in common use accepts this value.
pub const IO_BLOCK: u64 = 4096;
