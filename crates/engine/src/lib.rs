//! The inference engine: sessions over a paged KV cache, continuous batching, sampling, and probes
//! of the model's activations.
//!
//! [`Engine`] runs the [`Program`](djinn_model::program::Program) of a model on a
//! [`Device`](djinn_device::Device). Each step, the scheduler selects sessions, the executor runs
//! them in one pass, and the sampler turns logits into tokens. The engine does not know clients or
//! protocols.

#![forbid(unsafe_code)]

mod arena;
mod backend;
mod blueprint;
mod durability;
mod during_pass;
mod elastic_draft;
mod elastic_memory;
mod engine;
mod error;
mod executor;
mod kv;
mod kv_window;
mod prefix_cache;
mod probe;
pub mod rates;
mod sampling;
mod scheduler;
mod session;
mod session_ref;
mod settings;
mod sizing;
mod slab_layout;
mod swap;
mod tensors;
mod upload;

pub use arena::Footprint;
pub use backend::kv_dtype;
pub use blueprint::Blueprint;
pub use djinn_kv::{KvMemory, KvUsage, PagingStats, SpillConfig, TierUsage, Traffic};
pub use djinn_types::{SessionId, Tier};
pub use durability::{
    recovery::{RestoreScope, Restored},
    saved_file::SavedFile,
    saved_prefixes::SavedPrefixes,
    saved_session::{SavedLogprobs, SavedSession, SavedState, SavedStop},
    state_folder::{FolderContents, RepairReport, StateDamage, StateFolder},
};
pub use during_pass::DuringPass;
pub use elastic_memory::MemorySplit;
pub use engine::Engine;
pub use error::{ContextShortage, EngineError, LimitKind, ParseError, ParsedText, QuotaKind};
pub use executor::LoadProgress;
pub use prefix_cache::{PrefixCacheSettings, PrefixCacheStats, SharePrefixes};
pub use probe::{
    Probe,
    breakpoint::{BreakCondition, BreakSpec, NormCondition, RunUntil},
    capture::{CaptureSpec, Reduce},
    captured::Captured,
    checkpoint::Paused,
    edit::{Change, EditSpec, Operand},
    part::Part,
    positions::Positions,
    probe_limits::ProbeLimits,
    saved_probe::{ProbeCounts, SavedProbe},
};
pub use sampling::sampler::{Logprob, Sampling};
pub use scheduler::fair_share::Class;
pub use session::{
    checker::{CheckedRequest, RequestChecker},
    failure::{FailureKind, SessionFailure},
    output::{Finish, Output, Transcript},
    quota::Quota,
    request::Request,
    status::SessionStatus,
    view::{SessionInfo, SessionView},
};
pub use session_ref::SessionRef;
pub use settings::Settings;
pub use sizing::{
    ContextDemand, ContextReason, Count, Reduced, SessionDemand, SizeRange, SizingChoice,
};
pub use swap::SwapRoom;
pub use tensors::{Tensor, check_writable, read_tensors, write_tensors};
