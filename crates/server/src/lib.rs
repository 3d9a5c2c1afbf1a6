//! The server: gRPC and HTTP on one port, over engines that each have a thread of their own.
//!
//! A request goes `net` → `front` → `grpc` or `http` → `host` → the engine. What it may ask is
//! in `keys`, which model it means in `models`, what a session is asked in `ask`. Nothing here
//! computes, and nothing of the engine knows of HTTP.

#![forbid(unsafe_code)]

mod app;
mod ask;
mod config;
mod error;
mod front;
mod grpc;
mod host;
mod http;
mod keys;
mod machine;
mod metrics;
mod models;
mod net;
mod run;
mod traces;

pub use config::{Config, Layout, Limits, ModelConfig, Tls};
pub use error::{Kind, ServeError};
pub use models::{check_name, default_name, draw};
pub use run::{Running, start};
pub use traces::Traces;
