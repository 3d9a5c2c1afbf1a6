//! Network connections: accepted up to a limit, with or without TLS, or opened inside the process.

mod connection;
mod first_bytes;
mod in_process;
mod info;
mod listener;
mod shutdown;
mod tls;

pub use connection::ConnectionContext;
pub use in_process::InProcessConnector;
pub use info::ConnectionInfo;
pub use listener::{bind, serve};
pub use shutdown::ShutdownPhase;
pub use tls::ReloadableTls;
