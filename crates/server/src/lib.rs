//! Server: gRPC and HTTP on one port, over engines that run on one thread each.
//!
//! A request passes `net` → `middleware` → `http` or `grpc` → `engine_thread` → the engine.
//! `auth` decides which callers are admitted, and `registry` which models exist. `request` turns
//! a client's request into the engine's request. The server computes nothing, and the engine does
//! not know of HTTP.

#![forbid(unsafe_code)]

mod app;
mod audit;
mod auth;
mod capabilities;
mod config;
mod context;
mod device_pool;
mod engine_thread;
mod error;
mod fatal;
mod grpc;
mod guard;
mod http;
mod lifecycle;
mod metrics;
mod middleware;
mod net;
mod offload;
mod preset;
mod registry;
mod request;
mod traces;
mod watchdog;

pub use auth::KeyFileError;
pub use config::{
    HostCopy, LoadOptions, OperationSettings, ServedModel, ServerConfig, ServerLimits, TlsFiles,
};
pub use djinn_wire::ErrorCode;
pub use error::ServeError;
pub use fatal::{FATAL_EXIT_CODE, exit_after_fatal};
pub use lifecycle::{Running, start, start_in_process};
pub use net::InProcessConnector;
pub use preset::{DrawBlueprint, OpenState, Preset};
pub use registry::{check_name, default_name, draw, plan_configured};
pub use traces::TraceExporter;
