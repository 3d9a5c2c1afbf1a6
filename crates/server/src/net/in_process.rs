//! Connections inside the process: no port and no TLS, but the same HTTP/2 and the same handlers.

use std::{io, sync::Arc};

use tokio::{io::DuplexStream, runtime::Handle, sync::watch};

use super::{
    connection::{ConnectionContext, serve_detached},
    shutdown::ShutdownPhase,
};

/// Bytes that each direction of an in-process connection buffers.
const BUFFER_BYTES: usize = 1 << 20;

/// Opens connections to a server of this process without a network port.
///
/// A client uses a connector through `djinn_client::Client::connect_in_process(move ||
/// connector.connect(), …)`.
#[derive(Clone)]
pub struct InProcessConnector {
    context: Arc<ConnectionContext>,
    phase: watch::Receiver<ShutdownPhase>,
    /// Runtime of the server. The client may run on another runtime.
    runtime: Handle,
}

impl InProcessConnector {
    /// Creates a connector for a server that runs on the current tokio runtime.
    pub(crate) fn new(
        context: Arc<ConnectionContext>,
        phase: watch::Receiver<ShutdownPhase>,
    ) -> Self {
        InProcessConnector {
            context,
            phase,
            runtime: Handle::current(),
        }
    }

    /// Opens a connection and returns the client's end. Fails once the server shuts down.
    pub fn connect(&self) -> io::Result<DuplexStream> {
        if *self.phase.borrow() != ShutdownPhase::Serving {
            let error = "the server in this process is shutting down";
            return Err(io::Error::new(io::ErrorKind::ConnectionRefused, error));
        }
        let (client, server) = tokio::io::duplex(BUFFER_BYTES);
        let context = Arc::clone(&self.context);
        self.runtime
            .spawn(serve_detached(context, server, self.phase.clone()));
        Ok(client)
    }
}
