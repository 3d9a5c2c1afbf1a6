//! Experiments: what Djinn promises, measured by a client like any other, beside what others do.
//!
//! Start at [`run`]: an [`Experiment`](djinn_report::Experiment) with a [`Config`] in a [`Lab`] gives a
//! [`ResultFile`](djinn_report::ResultFile). A lab is a server and a client of it: one that runs
//! somewhere, or one in this process. So there is one way to measure, and what is measured is what users
//! get.
//!
//! Knows nothing of engines: whatever it wants to know, it asks the server.

#![forbid(unsafe_code)]

mod ask;
mod baselines;
mod compare;
mod config;
mod error;
mod experiments;
mod lab;
mod sampler;
mod subject;

pub use baselines::NAMES as BASELINES;
pub use config::{Config, bundled_names};
pub use error::EvalError;
pub use experiments::run;
pub use lab::{Lab, Place, Said, Setup, Tell};
