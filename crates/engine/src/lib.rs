//! Sessions over paged KV, many of them through one pass; sampling; hooks.
//!
//! The engine walks a model's [`Program`](djinn_model::program::Program) on a
//! [`Device`](djinn_device::Device). It knows neither what the client was nor how
//! it asked.

#![forbid(unsafe_code)]

mod arena;
mod backend;
mod blueprint;
mod durability;
mod engine;
mod error;
mod executor;
mod kv;
mod prefix_cache;
mod probe;
mod sampling;
mod scheduler;
mod session;
mod settings;
mod slab_layout;
mod tensors;

pub use arena::Footprint;
pub use backend::kv_dtype;
pub use blueprint::Blueprint;
pub use djinn_kv::{KvMemory, KvUsage, PagingStats, SpillConfig, TierUsage, Traffic};
pub use djinn_types::{SessionId, Tier};
pub use durability::{
    SavedFile, SavedLogprobs, SavedSession, SavedState, SavedStop, StateFolder,
    recovery::{RestoreScope, Restored},
};
pub use engine::{DuringPass, Engine, LoadProgress};
pub use error::{EngineError, ParseError};
pub use probe::{
    Probe, SavedProbe,
    breakpoint::{BreakCondition, BreakSpec, NormCondition, RunUntil},
    capture::{CaptureSpec, Reduce},
    captured::Captured,
    checkpoint::Paused,
    edit::{Change, EditSpec, Operand},
    part::Part,
    positions::Positions,
    probe_limits::ProbeLimits,
};
pub use sampling::sampler::{Logprob, Sampling};
pub use scheduler::Class;
pub use session::{
    output::{Finish, Output, Transcript},
    quota::{Owned, Quota, SessionInfo},
    request::Request,
};
pub use settings::Settings;
pub use tensors::{Tensor, check_writable, read_tensors, write_tensors};
