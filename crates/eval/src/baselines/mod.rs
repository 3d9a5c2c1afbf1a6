//! Baselines: other programs, and other modes of Djinn, measured on the same task.

mod catalog;
mod run;

pub use catalog::{NAMES, accepted_keys};
pub use run::{ReferenceOutput, baseline, run_all};
