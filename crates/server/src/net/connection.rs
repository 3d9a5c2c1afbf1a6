//! Connections: HTTP/1 and HTTP/2 over any byte stream.

use std::{sync::Arc, time::Duration};

use axum::Router;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{
        conn::auto,
        graceful::{GracefulShutdown, Watcher},
    },
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::watch,
};

use super::{
    first_bytes::FirstBytesTimeout,
    info::{ConnectionInfo, InfoService},
    shutdown::ShutdownPhase,
    tls::ReloadableTls,
};
use crate::app::App;

/// HTTP/2 flow-control window of one stream in bytes: enough for a push at 1 GB/s over a few
/// milliseconds of latency.
const STREAM_WINDOW: u32 = 4 << 20;
/// HTTP/2 flow-control window of one connection in bytes.
const CONNECTION_WINDOW: u32 = 8 << 20;
/// Largest HTTP/2 frame in bytes.
const FRAME_BYTES: u32 = 1 << 20;
/// Interval between keep-alive pings on a silent HTTP/2 connection.
const PING_INTERVAL: Duration = Duration::from_secs(20);
/// Time that a client has to answer a keep-alive ping.
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// Number of requests that one HTTP/2 connection may have in flight.
const CONCURRENT_STREAMS: u32 = 256;

/// State that serving a connection needs.
pub struct ConnectionContext {
    /// Shared state of the server.
    pub app: Arc<App>,
    /// Handlers of all HTTP paths and gRPC methods.
    pub router: Router,
    /// TLS acceptor; `None` serves plain text.
    pub tls: Option<ReloadableTls>,
}

/// Serves HTTP/1 or HTTP/2 on a byte stream until the client or a graceful shutdown ends it. The server closes
/// the connection if the client sends no valid key within the time limit.
pub async fn serve_http<S>(
    context: &ConnectionContext,
    stream: S,
    info: ConnectionInfo,
    watcher: Watcher,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let patience = context.app.config.limits.patience;
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(patience)
        .max_buf_size(64 << 10)
        .http2()
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME_BYTES)
        .max_concurrent_streams(CONCURRENT_STREAMS)
        .max_header_list_size(32 << 10)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT);
    let info = Arc::new(info);
    let service = TowerToHyperService::new(context.router.clone());
    let service = InfoService {
        service,
        info: Arc::clone(&info),
    };
    let stream = TokioIo::new(FirstBytesTimeout::new(stream, patience));
    let connection = builder.serve_connection(stream, service).into_owned();
    tokio::select! {
        ended = watcher.watch(connection) => {
            if let Err(error) = ended {
                tracing::debug!(error = error.to_string(), "connection failed");
            }
        }
        () = info.stays_unauthenticated(patience) => {
            tracing::debug!(peer = info.peer.map(|peer| peer.to_string()), "connection without a key closed");
        }
    }
}

/// Serves a stream that no listener accepted, and handles the server's shutdown itself.
pub async fn serve_detached<S>(
    context: Arc<ConnectionContext>,
    stream: S,
    mut phase: watch::Receiver<ShutdownPhase>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let info = ConnectionInfo::new(None, false);
    let graceful = GracefulShutdown::new();
    let watcher = graceful.watcher();
    let mut closing = phase.clone();
    let drained = async move {
        let _ = phase
            .wait_for(|phase| *phase >= ShutdownPhase::Draining)
            .await;
        graceful.shutdown().await;
        std::future::pending::<()>().await;
    };
    let _open = context.app.metrics.connection_opened();
    tokio::select! {
        () = serve_http(&context, stream, info, watcher) => {}
        () = drained => {}
        _ = closing.wait_for(|phase| *phase == ShutdownPhase::Closing) => {}
    }
}
