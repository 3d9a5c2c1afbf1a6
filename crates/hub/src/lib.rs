//! Models by name: downloading them from the Hugging Face hub ([`pull`]), and finding what
//! `--model M` means among those already on disk ([`resolve`]).
//!
//! A pulled model is a plain folder, `$DJINN_HOME/models/{org}/{name}`, that holds what Djinn reads
//! and nothing else. A file appears under its own name only once it is whole and verified; the
//! folder counts as a model only once its record (`.djinn.json`) says that every file arrived. So a
//! download can be cut at any point and pulled again, and no half of a model is ever loaded.
//!
//! **Why not the `hf-hub` crate.** Its current version is built on reqwest, tokio and hf-xet: some
//! 230 crates, for a command that copies files. The last version with a synchronous client does not
//! verify what it downloads, draws its own bars, and keeps to the layout of the Hugging Face cache.
//! What Djinn needs of the hub is two requests, so they are written here on `ureq`: rustls with ring
//! (a C compiler is all it takes to build) and the Mozilla roots compiled in, which work in a bare
//! container; `SSL_CERT_FILE` replaces them behind a proxy that signs for itself.
//!
//! *Invariant:* this crate knows the names of a checkpoint's files, not what is in them. It reads
//! one, the index of shards, because that is where the shards' names are.

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

pub use env::Places;
pub use error::HubError;
pub use id::ModelId;
pub use progress::{Progress, Silent};
pub use pull::{Pull, Retry, pull};
pub use resolve::{Resolved, resolve, resolve_id, resolve_in};
pub use token::Token;
