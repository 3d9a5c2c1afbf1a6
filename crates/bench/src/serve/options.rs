//! Options of the benchmark `serve`.

use std::path::PathBuf;

use djinn_types::Size;

/// Most tokens of one session that are timed.
const TOKENS: usize = 128;

/// Options of the benchmark `serve`.
pub struct ServeOptions {
    /// Program that has the command `serve`.
    pub program: PathBuf,
    /// Flags of `serve` about the device, its memory and the streaming of weights.
    pub flags: Vec<String>,
    /// Reference of the model.
    pub model: Option<String>,
    /// Tokens of a prompt that pass through the model together.
    pub rows: usize,
    /// Tokens of a session, of which a quarter are the prompt.
    pub context: usize,
    /// Most sessions in one pass.
    pub batch: usize,
    /// Clients that stream at the same time.
    pub clients: usize,
    /// Seconds for which the clients stream.
    pub seconds: u64,
    /// Connections that send nothing.
    pub silent: usize,
    /// Memory of the device for KV.
    pub kv: Option<Size>,
    /// Folder of a model to push.
    pub push: Option<PathBuf>,
}

impl ServeOptions {
    /// Number of tokens of one session that are timed.
    pub(super) fn timed_tokens(&self) -> usize {
        TOKENS.min(self.context - self.context / 4)
    }
}
