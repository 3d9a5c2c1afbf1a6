//! Listening sockets: accepts connections up to a limit and drains them on shutdown.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, watch},
};

use super::{
    connection::{ConnectionContext, serve_http},
    info::ConnectionInfo,
    shutdown::ShutdownPhase,
};
use crate::guard::{AddressLimit, AddressPermit};

/// Number of connections beyond the limit that may only check the server's health.
const RESERVED_CONNECTIONS: usize = 16;

/// Pause after a failed `accept`. The usual reason is that the process has no file descriptor
/// left.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// Binds a listening socket on the current runtime.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let listen = || {
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener)
    };
    listen().map_err(|error| {
        io::Error::new(
            error.kind(),
            format!("cannot listen on {address}: {error}; choose another with --host and --port"),
        )
    })
}

/// Accepts connections until shutdown, and returns after the last connection has ended.
pub async fn serve(
    context: Arc<ConnectionContext>,
    listeners: Vec<TcpListener>,
    phase: watch::Receiver<ShutdownPhase>,
) {
    let limits = &context.app.config.limits;
    let admission = Arc::new(ConnectionAdmission {
        free: Arc::new(Semaphore::new(limits.connections)),
        reserved: Arc::new(Semaphore::new(RESERVED_CONNECTIONS)),
        addresses: AddressLimit::new(limits.connections_per_address),
    });
    let accepting = listeners.into_iter().map(|listener| {
        tokio::spawn(accept(
            Arc::clone(&context),
            listener,
            Arc::clone(&admission),
            phase.clone(),
        ))
    });
    for task in accepting.collect::<Vec<_>>() {
        let _ = task.await;
    }
}

async fn accept(
    context: Arc<ConnectionContext>,
    listener: TcpListener,
    admission: Arc<ConnectionAdmission>,
    mut phase: watch::Receiver<ShutdownPhase>,
) {
    let graceful = GracefulShutdown::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = phase.wait_for(|phase| *phase >= ShutdownPhase::Draining) => break,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "accepting a connection failed");
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        let Some(permit) = admission.admit(peer) else {
            if let Some(suppressed) = context.app.rejections.allow() {
                tracing::warn!(%peer, suppressed, "connection rejected: the limit of connections is reached");
            }
            continue;
        };
        let (context, watcher) = (Arc::clone(&context), graceful.watcher());
        let mut closing = phase.clone();
        tokio::spawn(async move {
            let info = ConnectionInfo::new(Some(peer), permit.is_reserved);
            let _permit = permit;
            let _open = context.app.metrics.connection_opened();
            tokio::select! {
                () = connection(&context, stream, info, watcher) => {}
                _ = closing.wait_for(|phase| *phase == ShutdownPhase::Closing) => {}
            }
        });
    }
    drop(listener);
    tokio::select! {
        () = graceful.shutdown() => {}
        _ = phase.wait_for(|phase| *phase == ShutdownPhase::Closing) => {}
    }
}

async fn connection(
    context: &ConnectionContext,
    stream: TcpStream,
    info: ConnectionInfo,
    watcher: Watcher,
) {
    let _ = stream.set_nodelay(true);
    let Some(tls) = &context.tls else {
        return serve_http(context, stream, info, watcher).await;
    };
    let patience = context.app.config.limits.patience;
    match tokio::time::timeout(patience, tls.acceptor().accept(stream)).await {
        Ok(Ok(stream)) => serve_http(context, stream, info, watcher).await,
        Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
        Err(_) => tracing::debug!("TLS handshake timed out"),
    }
}

/// Limits on connections.
struct ConnectionAdmission {
    free: Arc<Semaphore>,
    /// Connections beyond the limit that may only check the server's health.
    reserved: Arc<Semaphore>,
    addresses: Arc<AddressLimit>,
}

/// Permit of one connection.
struct ConnectionPermit {
    is_reserved: bool,
    _permit: OwnedSemaphorePermit,
    _address: AddressPermit,
}

impl ConnectionAdmission {
    fn admit(&self, peer: SocketAddr) -> Option<ConnectionPermit> {
        let address = self.addresses.admit(peer.ip())?;
        let free = Arc::clone(&self.free).try_acquire_owned().ok();
        let (permit, is_reserved) = match free {
            Some(permit) => (permit, false),
            None => (Arc::clone(&self.reserved).try_acquire_owned().ok()?, true),
        };
        Some(ConnectionPermit {
            is_reserved,
            _permit: permit,
            _address: address,
        })
    }
}
