//! Pulling from a real server on the loopback, in health and in every kind of trouble.

#![allow(
    clippy::unwrap_used,
    reason = "what stands outside of #[test] functions here is test too"
)]

mod bench;
mod health;
mod refusals;
mod repo;
mod resume;
mod server;
