//! Configuration of a model: `config.json`, `generation_config.json`, and the limits on sizes.

mod generation;
pub(crate) mod limits;
mod raw;
pub(crate) mod rope;

pub use generation::Generation;
pub use raw::RawConfig;
pub(crate) use raw::{dtype_named, read_json};
