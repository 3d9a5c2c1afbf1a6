//! Structural rules of the workspace, as functions that list violations.
//!
//! `tests/workspace.rs` runs them over every crate: modules import each other in one direction, a
//! type name means one thing, and prose keeps to the language guide.

mod graph;
mod names;
mod prose;
mod source;

pub use graph::cycles;
pub use names::{TypeName, impl_files, type_names};
pub use prose::{ProseFault, prose_faults};
pub use source::{Crate, Module, workspace};
