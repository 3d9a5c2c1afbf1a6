//! One file a command.

pub mod bench;
pub mod inspect;
pub mod pull;
pub mod run;
pub mod trace;

mod prompt;
