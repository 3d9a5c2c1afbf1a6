//! Sessions over paged KV, many of them through one pass; sampling; hooks.
//!
//! The engine walks a model's [`Program`](djinn_model::program::Program) on a
//! [`Device`](djinn_device::Device). It knows neither what the client was nor how
//! it asked.

#![forbid(unsafe_code)]

mod arena;
mod backend;
mod batch;
mod blueprint;
mod breakpoint;
mod capture;
mod captured;
mod checkpoint;
mod durable;
mod edit;
mod engine;
mod error;
mod experts;
mod host;
mod identity;
mod idle;
mod image;
mod inside;
mod kv;
mod life;
mod memory;
mod outbox;
mod owners;
mod pager;
mod part;
mod pass;
mod paused;
mod positions;
mod probe;
mod restart;
mod sampler;
mod schedule;
mod session;
mod settings;
mod settle;
mod share;
mod state;
mod stream;
mod stretch;
mod tend;
mod tensors;
mod text;
mod tiers;
mod turn;
mod weights;

pub use arena::Footprint;
pub use backend::Backend;
pub use blueprint::{Blueprint, PiecePlace, PlannedPiece};
pub use breakpoint::{BreakSpec, Norm, Until, When};
pub use capture::{CaptureSpec, Reduce};
pub use captured::Captured;
pub use checkpoint::Paused;
pub use djinn_types::{SessionId, Tier};
pub use durable::{SavedFile, SavedLogprobs, SavedSession, SavedState, SavedStop, SessionState};
pub use edit::{Change, EditSpec, Operand};
pub use engine::{Engine, LoadProgress, Meanwhile, Output};
pub use error::{EngineError, ParseError};
pub use inside::Inside;
pub use kv::{KvMemory, SpillTo};
pub use memory::{LinkSettings, Memory};
pub use owners::{Owned, Quota, SessionInfo};
pub use pager::{KvPages, Paged, PagesHeld, Traffic};
pub use part::Part;
pub use positions::Positions;
pub use probe::{Probe, SavedProbe};
pub use restart::{Restored, Wanted};
pub use sampler::{Logprob, Sampling};
pub use schedule::Class;
pub use session::{Finish, Request, Transcript};
pub use settings::Settings;
pub use stream::{Event, Lane, LinkRate, PassStats, Timeline, measure_link};
pub use tensors::{Tensor, check_writable, read_tensors, write_tensors};
