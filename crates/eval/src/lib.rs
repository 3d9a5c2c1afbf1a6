//! The experiments of `djinn eval`: they measure Djinn through its client, and baselines on the same task.
//!
//! Start at [`run`], which runs an [`Experiment`](djinn_report::Experiment) with an [`EvalConfig`] on a
//! [`Testbed`] and returns a [`ResultFile`](djinn_report::ResultFile). A testbed is a server, remote or in
//! process, and a client of it. Measurements go through the client in both cases, so they include what
//! users experience.
//!
//! The crate does not depend on the engine; it learns everything from the server.

#![forbid(unsafe_code)]

mod accuracy;
mod baselines;
mod config;
mod error;
mod experiments;
mod memory_sampler;
mod model_source;
mod testbed;
mod turns;
mod utc;

pub use baselines::NAMES as BASELINES;
pub use config::{ConfigError, ConfigProblem, EvalConfig, bundled_names};
pub use error::EvalError;
pub use experiments::run;
pub use testbed::{EvalProgress, ProgressSink, ServerLocation, Testbed, TestbedOptions};
