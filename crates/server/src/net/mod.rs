//! Connections: taken up to a limit, with or without TLS, and given up when they say nothing.

mod patient;
mod tls;

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use axum::Router;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
    server::graceful::GracefulShutdown,
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
};
use tokio_rustls::TlsAcceptor;

use self::patient::Patient;
use crate::app::App;

pub use tls::acceptor;

/// Bytes that a stream, and a connection, may have under way: a push at a gigabyte a second over a
/// network of a few milliseconds.
const STREAM_WINDOW: u32 = 4 << 20;
/// That.
const WINDOW: u32 = 8 << 20;
/// Bytes of a frame.
const FRAME: u32 = 1 << 20;
/// How often a connection that says nothing is asked whether it is there, and how long it has to answer.
const PING: Duration = Duration::from_secs(20);
/// That.
const PONG: Duration = Duration::from_secs(20);
/// Requests of one connection at once.
const STREAMS: u32 = 256;

/// What every connection is served with.
pub struct Front {
    /// The server.
    pub app: Arc<App>,
    /// Everything it answers.
    pub router: Router,
    /// TLS, if it is spoken.
    pub tls: Option<TlsAcceptor>,
}

/// Binds an address.
pub async fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| {
        io::Error::new(error.kind(), format!("cannot listen on {address}: {error}"))
    })
}

/// Takes connections until told to stop, and returns when the last is over or cut.
pub async fn serve(front: Arc<Front>, listeners: Vec<TcpListener>, stop: watch::Receiver<Stop>) {
    let permits = Arc::new(Semaphore::new(front.app.config.limits.connections));
    let listening = listeners.into_iter().map(|listener| {
        tokio::spawn(listen(
            Arc::clone(&front),
            listener,
            Arc::clone(&permits),
            stop.clone(),
        ))
    });
    for listener in listening.collect::<Vec<_>>() {
        let _ = listener.await;
    }
}

/// How far the end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stop {
    /// It has not.
    Go,
    /// No new connections or requests; those there are come to their end.
    Drain,
    /// All of it, now.
    Cut,
}

async fn listen(
    front: Arc<Front>,
    listener: TcpListener,
    permits: Arc<Semaphore>,
    mut stop: watch::Receiver<Stop>,
) {
    let graceful = GracefulShutdown::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop >= Stop::Drain) => break,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors, most likely: others have to go first.
                tracing::warn!(%error, "a connection was not taken");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else {
            tracing::warn!(%peer, "too many connections: one was turned away");
            continue;
        };
        let (front, watcher) = (Arc::clone(&front), graceful.watcher());
        let mut cut = stop.clone();
        tokio::spawn(async move {
            let _permit = permit;
            let open = &front.app.metrics.connections;
            open.fetch_add(1, Ordering::Relaxed);
            tokio::select! {
                () = connection(&front, stream, watcher) => {}
                _ = cut.wait_for(|stop| *stop == Stop::Cut) => {}
            }
            open.fetch_sub(1, Ordering::Relaxed);
        });
    }
    drop(listener);
    tokio::select! {
        () = graceful.shutdown() => {}
        _ = stop.wait_for(|stop| *stop == Stop::Cut) => {}
    }
}

async fn connection(
    front: &Front,
    stream: TcpStream,
    watcher: hyper_util::server::graceful::Watcher,
) {
    let patience = front.app.config.limits.patience;
    let _ = stream.set_nodelay(true);
    match &front.tls {
        None => http(front, Patient::new(stream, patience), watcher).await,
        Some(tls) => match tokio::time::timeout(patience, tls.accept(stream)).await {
            Ok(Ok(stream)) => http(front, Patient::new(stream, patience), watcher).await,
            Ok(Err(error)) => tracing::debug!(%error, "no TLS"),
            Err(_) => tracing::debug!("no TLS in time"),
        },
    }
}

async fn http<S>(front: &Front, stream: S, watcher: hyper_util::server::graceful::Watcher)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let limits = &front.app.config.limits;
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.patience)
        .max_buf_size(64 << 10)
        .http2()
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_frame_size(FRAME)
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(32 << 10)
        .keep_alive_interval(PING)
        .keep_alive_timeout(PONG);
    let service = TowerToHyperService::new(front.router.clone());
    let connection = builder
        .serve_connection(TokioIo::new(stream), service)
        .into_owned();
    if let Err(error) = watcher.watch(connection).await {
        tracing::debug!(error = error.to_string(), "a connection broke");
    }
}
