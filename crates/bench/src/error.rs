//! Errors of benchmarks.

use std::io;

use djinn_device::DeviceError;
use djinn_engine::{EngineError, ParseError, rates::RateError};
use djinn_model::ModelError;
use djinn_server::ServeError;
use djinn_types::Size;
use thiserror::Error;

/// Reason why a benchmark could not run or did not finish.
#[derive(Debug, Error)]
pub enum BenchError {
    /// The caller could not open or load the model.
    #[error("{0}")]
    Host(String),
    /// The engine refused a request or failed in a pass.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A bandwidth could not be measured.
    #[error(transparent)]
    Rate(#[from] RateError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The model's files could not be read.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A hook, an edit or a breakpoint could not be parsed.
    #[error(transparent)]
    Parse(#[from] ParseError),
    /// The server under test refused a call.
    #[error(transparent)]
    Client(#[from] djinn_client::Error),
    /// The layout of the server's engine could not be drawn.
    #[error(transparent)]
    Layout(#[from] ServeError),
    /// Reading a file, starting a process or talking to a socket failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// An option is out of range.
    #[error("{option}: {limit}")]
    Option {
        /// Flag that sets the option.
        option: &'static str,
        /// Values that the option accepts.
        limit: String,
    },
    /// Prompt and generated tokens do not fit in the model's context.
    #[error(
        "the benchmark needs {needed} tokens per session, but the model's context is {context}; use fewer \
         tokens"
    )]
    Context {
        /// Tokens of the longest session.
        needed: usize,
        /// Tokens that the model can attend to.
        context: usize,
    },
    /// The model fits in memory, so nothing streams.
    #[error("{model}: {reason}; nothing streams, so lower --memory")]
    NothingStreams {
        /// Name of the model.
        model: String,
        /// Placement of the weights.
        reason: String,
    },
    /// Two models fit on the device together, so none leaves it.
    #[error("both models fit on the device, and none leaves it; lower --memory")]
    NothingSwaps,
    /// No pass of the run decoded a token for every session.
    #[error(
        "no pass generated a token for every session; use a longer --context or fewer --sessions"
    )]
    NoDecodePass,
    /// A session failed or ended before the benchmark was done with it.
    #[error("a session ended before the benchmark finished: {0}")]
    SessionEnded(String),
    /// Buffers of all reading threads together are too large.
    #[error(
        "--chunk times --workers is {asked} of buffers, but the limit is {limit}; lower one of them"
    )]
    Buffers {
        /// Bytes of buffers that the options ask for.
        asked: Size,
        /// Bytes of buffers that are allowed.
        limit: Size,
    },
    /// The server under test did not become ready.
    #[error("the server did not start; run `djinn serve` by itself to see why")]
    ServerStart,
    /// The server under test answered a request with an error.
    #[error("the server answered: {0}")]
    ServerReply(String),
    /// The server under test closed a stream before its end, or sent no tokens.
    #[error("the server ended a stream early")]
    StreamEnded,
}
