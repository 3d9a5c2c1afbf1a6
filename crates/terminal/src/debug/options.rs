//! Options of the debugger.

use djinn_engine::BreakSpec;

/// Options of a debugging session.
#[derive(Clone, Debug)]
pub struct DebugOptions {
    /// Tokens of the prompt.
    pub tokens: Vec<u32>,
    /// Largest number of tokens to generate.
    pub max_tokens: usize,
    /// Breakpoints at the start.
    pub breaks: Vec<BreakSpec>,
    /// Commands to run instead of reading them from the terminal.
    pub script: Option<String>,
}
