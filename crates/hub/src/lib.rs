//! Models by name: downloads from the Hugging Face hub ([`pull`]()), and lookup of models that are
//! already on disk ([`resolve`]()).
//!
//! A pulled model is a plain folder, `$DJINN_HOME/models/{org}/{name}`, with only the files that
//! Djinn reads. A file gets its final name once it is complete and verified. The folder counts as
//! a model once its record (`.djinn.json`) lists every file as complete. An interrupted download
//! can therefore be continued, and an incomplete model is never loaded.
//!
//! **Why not the `hf-hub` crate?** Its current version depends on reqwest, tokio and hf-xet, about
//! 230 crates. Its last synchronous version does not verify downloads, draws its own progress bars,
//! and requires the layout of the Hugging Face cache. Djinn needs two kinds of requests, so this
//! crate makes them with `ureq`, rustls and the Mozilla root certificates, which work in a minimal
//! container. `SSL_CERT_FILE` replaces the certificates for proxies that use their own.
//!
//! *Invariant:* this crate knows the names of a checkpoint's files, but not their content. The one
//! exception is the index of shards, which lists the names of the shards.

#![forbid(unsafe_code)]

mod checkpoint;
mod env;
mod error;
mod id;
mod progress;
mod pull;
mod record;
mod resolve;
mod token;

pub use env::ModelPaths;
pub use error::{HubError, ResponseProblem};
pub use id::ModelId;
pub use progress::{NoProgress, Progress};
pub use pull::{Pull, Retry, pull};
pub use resolve::{Resolved, resolve, resolve_id, resolve_in};
pub use token::HubToken;
