//! Analyses of a model's inside: logit lens, activation patching and steering vectors.
//!
//! Every analysis is a client of a server, in this process or elsewhere: it opens sessions with captures,
//! edits and breakpoints, and returns numbers. The command line prints them.

#![forbid(unsafe_code)]

mod edits;
mod error;
mod lens;
mod patching;
mod steering;
mod stop;
mod turns;

pub use edits::{steering_edits, to_hook_edits};
pub use error::AnalysisError;
pub use lens::{Lens, TokenPrediction, lens_capture, token_texts};
pub use patching::{
    PatchComparison, PatchGrid, PatchPrompts, check_lengths, patch, patch_settings,
};
pub use steering::{EditEffect, measure_edits, steering_vector};
pub use stop::{StopRequest, StopSwitch};
pub use turns::{check_finished, greedy, loaded_info, run_all, tensor};
