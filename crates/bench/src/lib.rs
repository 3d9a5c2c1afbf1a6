//! Benchmarks of a device, of a model on it, and of a server.
//!
//! Each benchmark is a function from its options to a [`BenchReport`]. The caller opens and loads the
//! model and shows progress through [`BenchHost`]; it also prints the report.

#![forbid(unsafe_code)]

mod card_link;
mod decode;
mod elastic;
mod error;
mod file_link;
mod first_token;
mod hooks;
mod link_report;
mod long;
mod memory;
mod operations;
mod prefill;
mod prefix;
mod random;
mod rates;
mod report;
mod restore;
mod sample;
mod serve;
mod server_process;
mod sessions;
mod stream;
mod swap;
mod target;

pub use card_link::card_link;
pub use decode::{DecodeOptions, decode};
pub use elastic::{ElasticOptions, elastic};
pub use error::BenchError;
pub use file_link::file_link;
pub use hooks::{HookOptions, hooks};
pub use link_report::LinkOptions;
pub use long::{LongOptions, long};
pub use memory::{card_memory, processor_memory};
pub use operations::{OperationOptions, operations};
pub use prefill::{PrefillOptions, prefill};
pub use prefix::{PrefixOptions, prefix};
pub use random::Between;
pub use report::BenchReport;
pub use restore::{RestoreOptions, restore};
pub use serve::{ServeOptions, serve};
pub use server_process::ServerProcess;
pub use sessions::{SessionLoadOptions, sessions};
pub use stream::{StreamOptions, stream};
pub use swap::{SwapOptions, swap};
pub use target::{BenchHost, BenchTarget};
