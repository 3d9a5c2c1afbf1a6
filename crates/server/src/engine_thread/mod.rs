//! Engine threads: one thread per loaded model owns the engine, and all other threads send it
//! jobs.
//!
//! A request becomes a job, a closure over the [`Worker`]. Jobs run between passes; their owners
//! take turns ([`JobQueue`](job_queue::JobQueue)). Each session publishes its events to one
//! subscriber. Every queue is bounded: jobs beyond a limit are rejected, requests for more sessions
//! than are free wait in a queue, and a subscriber receives no more events than its session may
//! generate tokens. Health checks and metrics read what the thread published last and never wait
//! for it ([`SharedState`](shared::SharedState)).

mod event;
pub(crate) mod facts;
mod handle;
mod heartbeat;
mod job_queue;
mod open_queue;
mod sessions;
mod shared;
mod subscriber;
mod swap;
mod swap_state;
mod tenant;
mod tokenizer;
mod turn;
mod wait_signal;
mod worker;

pub use event::SessionEvent;
pub use handle::{LoadedEngine, LoadedModel, ThreadSetup};
pub use tokenizer::ChatTokenizer;
pub use turn::TurnStream;
pub use worker::Worker;
