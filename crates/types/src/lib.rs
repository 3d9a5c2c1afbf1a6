//! Plain types that several crates name.
//!
//! This crate is a leaf: it has no dependencies and does no work. A type belongs here if crates
//! that must not depend on each other need it. For example, `model` describes operations and
//! `device` runs them.

#![forbid(unsafe_code)]

mod dtype;
mod kv_dtype;
mod operation;
mod session_id;
mod size;
pub mod text;
mod tier;

pub use dtype::DType;
pub use kv_dtype::{KvDtype, ParseKvDtypeError};
pub use operation::{Activation, NormKind, Order, RopeStyle};
pub use session_id::{ParseSessionIdError, SessionId};
pub use size::{Amount, ParseSizeError, Size};
pub use tier::Tier;

/// Alignment, in bytes, of direct I/O: file offset, memory address and length. Every file
/// system and disk in common use accepts this value.
pub const IO_BLOCK: u64 = 4096;
