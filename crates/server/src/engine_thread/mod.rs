//! Engine threads: one thread per loaded model owns the engine, and all other threads send it
//! jobs.
//!
//! A request becomes a job, a closure over the [`Worker`]. Jobs run between passes in the order
//! of their arrival. Each session publishes its events to one subscriber. Every queue is bounded:
//! jobs beyond a limit are rejected, and a subscriber receives no more events than its session
//! may generate tokens.

mod event;
pub(crate) mod facts;
mod handle;
mod subscriber;
mod tokenizer;
mod turn;
mod wait_signal;
mod worker;

pub use event::SessionEvent;
pub use handle::{LoadedEngine, LoadedModel};
pub use tokenizer::ChatTokenizer;
pub use turn::TurnStream;
pub use worker::Worker;
