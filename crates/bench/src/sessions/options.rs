//! Options of the benchmark `sessions`.

use djinn_engine::KvMemory;

use crate::Between;

/// Options of the benchmark `sessions`.
pub struct SessionLoadOptions {
    /// Number of sessions.
    pub sessions: usize,
    /// Most sessions in one pass.
    pub batch: usize,
    /// Mean arrivals a second; all sessions arrive at once by default.
    pub arrivals: Option<f64>,
    /// Tokens of a prompt.
    pub prompt: Between<usize>,
    /// Tokens that all prompts begin with.
    pub prefix: usize,
    /// Tokens generated in a turn.
    pub output: Between<usize>,
    /// Input tokens of each turn after the first.
    pub answer: Between<usize>,
    /// Turns of a session.
    pub turns: usize,
    /// Seconds that a session waits between turns.
    pub think: Between<f64>,
    /// Whether sessions announce when they will return.
    pub announce: bool,
    /// Memory for KV on the device and on disk.
    pub kv: KvMemory,
    /// Number of sessions to run again alone and compare.
    pub check: usize,
    /// Seed of all random numbers.
    pub seed: u64,
}
