//! Tests of pulls from a local server, with and without errors.

#![allow(
    clippy::unwrap_used,
    reason = "helpers outside of #[test] functions are test code too"
)]

mod errors;
mod fixture;
mod repo;
mod resume;
mod server;
mod success;
