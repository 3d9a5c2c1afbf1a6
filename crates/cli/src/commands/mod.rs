//! One module for each command, and the parts that commands share.

pub mod bench;
pub mod chat;
pub mod debug;
pub mod doctor;
pub mod eval;
pub mod inspect;
pub mod lens;
pub mod models;
pub mod patch;
pub mod plan;
pub mod pull;
pub mod report;
pub mod run;
pub mod selftest;
pub mod serve;
pub mod sessions;
pub mod shape;
pub mod steer;
pub mod top;
pub mod trace;

mod connection;
mod edits;
mod loading;
mod prompt;
mod session_repair;
mod session_store;
mod sizing;
mod watch;
