//! Listening sockets: accepts connections up to a limit and drains them on shutdown.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
};

use super::{
    connection::{ConnectionContext, serve_http},
    shutdown::ShutdownPhase,
};

/// Pause after a failed `accept`. The usual reason is that the process has no file descriptor
/// left.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// Binds a listening socket.
pub async fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| {
        io::Error::new(
            error.kind(),
            format!("cannot listen on {address}: {error}; choose another address with --listen"),
        )
    })
}

/// Accepts connections until shutdown, and returns after the last connection has ended.
pub async fn serve(
    context: Arc<ConnectionContext>,
    listeners: Vec<TcpListener>,
    phase: watch::Receiver<ShutdownPhase>,
) {
    let permits = Arc::new(Semaphore::new(context.app.config.limits.connections));
    let accepting = listeners.into_iter().map(|listener| {
        tokio::spawn(accept(
            Arc::clone(&context),
            listener,
            Arc::clone(&permits),
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
    permits: Arc<Semaphore>,
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
        let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else {
            tracing::warn!(%peer, "connection rejected: the limit of connections is reached");
            continue;
        };
        let (context, watcher) = (Arc::clone(&context), graceful.watcher());
        let mut closing = phase.clone();
        tokio::spawn(async move {
            let _permit = permit;
            let _open = context.app.metrics.connection_opened();
            tokio::select! {
                () = connection(&context, stream, watcher) => {}
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

async fn connection(context: &ConnectionContext, stream: TcpStream, watcher: Watcher) {
    let _ = stream.set_nodelay(true);
    let Some(tls) = &context.tls else {
        return serve_http(context, stream, watcher).await;
    };
    let patience = context.app.config.limits.patience;
    match tokio::time::timeout(patience, tls.accept(stream)).await {
        Ok(Ok(stream)) => serve_http(context, stream, watcher).await,
        Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
        Err(_) => tracing::debug!("TLS handshake timed out"),
    }
}
