//! The configuration of an experiment: a YAML file whose keys and values are checked when it is read.

mod bundled;
mod check;
mod error;
mod keys;
mod load;
mod notes;
mod sections;

pub use bundled::names as bundled_names;
pub use error::{ConfigError, ConfigProblem};
pub use sections::{BaselineSection, EvalConfig};
