//! What a debugger debugs: an engine here, or a server's model.

use djinn_engine::{BreakSpec, EditSpec, Tensor};

use crate::failure::Failure;

/// Where a session stands that stopped.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    /// The hook.
    pub hook: String,
    /// The first position that stopped, and how many did.
    pub position: usize,
    pub rows: usize,
    /// What is there.
    pub shape: Vec<usize>,
}

/// One thing that happened while a session ran.
#[derive(Clone, Debug)]
pub enum Heard {
    Token(u32),
    Stopped(Place),
    /// It is over, and why.
    Over(String),
}

/// How far a session goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Goal {
    Breakpoint,
    NextHook,
    NextBlock,
    Hook(String),
}

/// A session in a list.
pub struct Listed {
    pub id: u64,
    pub state: String,
    pub at: String,
    pub generated: usize,
}

/// What can be done with sessions, by number.
pub trait Target {
    /// The session to debug. Nothing of it has run.
    fn first(&self) -> u64;
    /// Every hook of the model, in the order of a pass.
    fn hooks(&mut self) -> Result<Vec<String>, Failure>;
    /// The hooks that a pattern matches and at which a session can stop.
    fn stops(&mut self, pattern: &str) -> Result<Vec<String>, Failure>;
    /// Sets a session's breakpoints.
    fn set_breaks(&mut self, id: u64, breaks: &[BreakSpec]) -> Result<(), Failure>;
    /// Lets the first one run that has not yet, with these breakpoints. Gives its number from now on;
    /// none where it has run.
    fn start(
        &mut self,
        id: u64,
        breaks: &[BreakSpec],
    ) -> Result<Option<(u64, Vec<Heard>)>, Failure>;
    /// Lets one go on that stopped, with what is there changed first.
    fn go(&mut self, id: u64, edits: &[EditSpec], goal: &Goal) -> Result<Vec<Heard>, Failure>;
    /// An error where changes do not fit what is where a session stopped.
    fn check_edits(&mut self, id: u64, edits: &[EditSpec]) -> Result<(), Failure>;
    /// Where a session stopped, if it did.
    fn place(&mut self, id: u64) -> Result<Option<Place>, Failure>;
    /// What is there.
    fn activation(&mut self, id: u64) -> Result<Tensor, Failure>;
    /// Sessions that stand where one stopped.
    fn branch(&mut self, id: u64, count: usize) -> Result<Vec<u64>, Failure>;
    /// Ends one.
    fn close(&mut self, id: u64);
    /// All there are.
    fn list(&mut self) -> Result<Vec<Listed>, Failure>;
    /// The tokens of one, if it is there.
    fn tokens(&mut self, id: u64) -> Result<Option<Vec<u32>>, Failure>;
    /// Tokens as text, where there are words for it.
    fn text(&mut self, tokens: &[u32]) -> Option<String>;
    /// Tokens as people read them, one by one.
    fn names(&mut self, tokens: &[u32]) -> Result<Vec<String>, Failure>;
    /// What would be said behind every block of these tokens.
    fn lens(&mut self, tokens: &[u32]) -> Result<String, Failure>;
    /// Where the last of these tokens looks in a block, by head.
    fn pattern(&mut self, tokens: &[u32], block: usize) -> Result<Tensor, Failure>;
}
