//! Facts about a connection that its requests can read.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use hyper::{Request, service::Service};

/// A connection, as its requests see it.
pub struct ConnectionInfo {
    /// Address of the client; `None` for a client in this process.
    pub peer: Option<SocketAddr>,
    /// Whether the connection is beyond the limit and may only check the server's health.
    pub is_reserved: bool,
    is_authenticated: AtomicBool,
    in_flight: AtomicUsize,
}

impl ConnectionInfo {
    /// Creates the facts of a new connection.
    pub fn new(peer: Option<SocketAddr>, is_reserved: bool) -> Self {
        ConnectionInfo {
            peer,
            is_reserved,
            is_authenticated: AtomicBool::new(peer.is_none()),
            in_flight: AtomicUsize::new(0),
        }
    }

    /// Connection of a request.
    pub fn of<B>(request: &Request<B>) -> Option<&ConnectionInfo> {
        let info = request.extensions().get::<Arc<ConnectionInfo>>();
        info.map(AsRef::as_ref)
    }

    /// Records that a request on this connection had a valid key.
    pub fn set_authenticated(&self) {
        self.is_authenticated.store(true, Ordering::Release);
    }

    /// Waits for ever if the connection is authenticated within `patience`. Otherwise returns once the
    /// patience is over and no request is in flight.
    pub async fn stays_unauthenticated(&self, patience: Duration) {
        loop {
            tokio::time::sleep(patience).await;
            if self.is_authenticated.load(Ordering::Acquire) {
                return std::future::pending().await;
            }
            if self.in_flight.load(Ordering::Acquire) == 0 {
                return;
            }
        }
    }
}

/// Service that gives every request the facts of its connection.
pub struct InfoService<S> {
    /// Service that handles the requests.
    pub service: S,
    /// Facts of the connection.
    pub info: Arc<ConnectionInfo>,
}

/// Counts a request as in flight.
struct InFlightGuard(Arc<ConnectionInfo>);

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}

impl<S, B> Service<Request<B>> for InfoService<S>
where
    S: Service<Request<B>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future =
        std::pin::Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn call(&self, mut request: Request<B>) -> Self::Future {
        request.extensions_mut().insert(Arc::clone(&self.info));
        self.info.in_flight.fetch_add(1, Ordering::AcqRel);
        let counted = InFlightGuard(Arc::clone(&self.info));
        let answer = self.service.call(request);
        Box::pin(async move {
            let _counted = counted;
            answer.await
        })
    }
}
