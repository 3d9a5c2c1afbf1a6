//! Sizes in bytes; `djinn_types` defines them.

#![forbid(unsafe_code)]

pub use djinn_types::{Amount, ParseSizeError, Size};
