//! Lifecycle of a server: start, load models, serve, drain and stop.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{Router, middleware::from_fn_with_state};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
    task::JoinHandle,
};

use crate::{
    ServeError, ServerConfig,
    app::App,
    grpc, http, middleware,
    net::{self, ConnectionContext, InProcessConnector, ShutdownPhase},
    preset::Preset,
};

/// Interval at which a draining server checks whether requests are still in flight.
const DRAIN_POLL: Duration = Duration::from_millis(20);
/// Time that connections have to flush their last bytes before they are closed.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(200);

/// A started server. Dropping this value does not stop the server; call [`Running::stop`].
pub struct Running {
    /// Addresses of the listening sockets, in the order of [`ServerConfig::listen`].
    pub addresses: Vec<SocketAddr>,
    app: Arc<App>,
    context: Arc<ConnectionContext>,
    phase: watch::Sender<ShutdownPhase>,
    serving: JoinHandle<()>,
}

/// Starts a server and returns before its models are loaded, so that health checks work
/// meanwhile.
///
/// A configuration without addresses starts a server without ports. [`Running::connector`]
/// connects to such a server.
pub async fn start(config: ServerConfig) -> Result<Running, ServeError> {
    start_with(config, None).await
}

/// Starts a server inside another program. The preset applies to all its models.
pub async fn start_in_process(config: ServerConfig, preset: Preset) -> Result<Running, ServeError> {
    start_with(config, Some(preset)).await
}

async fn start_with(config: ServerConfig, preset: Option<Preset>) -> Result<Running, ServeError> {
    config.check()?;
    let tls = config.tls.as_ref().map(net::acceptor).transpose();
    let tls = tls.map_err(ServeError::Invalid)?;
    raise_descriptor_limit();
    let app = App::new(config, preset)?;
    let unavailable = |error: std::io::Error| ServeError::Unavailable(error.to_string());
    let mut listeners = Vec::new();
    let mut addresses = Vec::new();
    for address in &app.config.listen {
        let listener = net::bind(*address).await.map_err(unavailable)?;
        addresses.push(listener.local_addr().map_err(unavailable)?);
        listeners.push(listener);
    }
    let context = Arc::new(ConnectionContext {
        app: Arc::clone(&app),
        router: router(&app)?,
        tls,
    });
    let (phase, watched) = watch::channel(ShutdownPhase::Serving);
    let serving = tokio::spawn(net::serve(Arc::clone(&context), listeners, watched));
    Ok(Running {
        addresses,
        app,
        context,
        phase,
        serving,
    })
}

/// Routes of HTTP and gRPC behind the common middleware.
fn router(app: &Arc<App>) -> Result<Router, ServeError> {
    let grpc = grpc::routes(app)?.prepare().into_axum_router();
    let all = http::routes(app).merge(grpc.reset_fallback());
    Ok(all.layer(from_fn_with_state(Arc::clone(app), middleware::handle)))
}

/// Raises the limit of file descriptors to the maximum of this process. Each connection needs a
/// descriptor.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::debug!(%error, "raising the limit of file descriptors failed");
    }
}

/// Request that the operating system delivers to the process as a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProcessSignal {
    /// SIGTERM or SIGINT: shut down.
    Stop,
    /// SIGHUP: reload the key file.
    Reload,
}

/// Handlers of the signals that a server handles.
struct ProcessSignals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl ProcessSignals {
    fn listen() -> Result<Self, ServeError> {
        let listen = |kind| signal(kind).map_err(|error| ServeError::Internal(error.to_string()));
        Ok(ProcessSignals {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hangup: listen(SignalKind::hangup())?,
        })
    }

    /// Waits for a request to stop.
    async fn stopped(&mut self) {
        while self.next().await != ProcessSignal::Stop {}
    }

    /// Waits for the next signal.
    async fn next(&mut self) -> ProcessSignal {
        tokio::select! {
            _ = self.terminate.recv() => ProcessSignal::Stop,
            _ = self.interrupt.recv() => ProcessSignal::Stop,
            _ = self.hangup.recv() => ProcessSignal::Reload,
        }
    }
}

impl Running {
    /// Returns a connector for clients in this process. Must be called on the server's tokio runtime.
    pub fn connector(&self) -> InProcessConnector {
        InProcessConnector::new(Arc::clone(&self.context), self.phase.subscribe())
    }

    /// Loads the models of the configuration, then reports the server as ready.
    pub async fn load(&self) -> Result<(), ServeError> {
        for model in &self.app.config.models {
            self.app.models.get(&model.name).await?;
        }
        self.app.set_ready();
        Ok(())
    }

    /// Loads the models, serves until SIGTERM or SIGINT, and drains; SIGHUP reloads the key file.
    /// Calls `ready` once all models are loaded.
    pub async fn run_until_signal(self, ready: impl FnOnce(&Self)) -> Result<(), ServeError> {
        let mut signals = ProcessSignals::listen()?;
        {
            let loaded = self.load();
            tokio::pin!(loaded);
            loop {
                tokio::select! {
                    loaded = &mut loaded => break loaded?,
                    signal = signals.next() => match signal {
                        ProcessSignal::Stop => return Ok(()),
                        ProcessSignal::Reload => self.reload(),
                    },
                }
            }
        }
        ready(&self);
        while signals.next().await == ProcessSignal::Reload {
            self.reload();
        }
        tracing::info!("draining: new requests are rejected");
        tokio::select! {
            () = self.drain() => {}
            () = signals.stopped() => tracing::warn!("second signal: stopping without draining"),
        }
        self.end().await;
        Ok(())
    }

    /// Reloads the key file. On an error the current keys stay valid.
    pub fn reload(&self) {
        match self.app.keys.reload() {
            Ok(count) => {
                tracing::info!(count, "keys reloaded");
                for model in self.app.models.loaded() {
                    self.app.models.set_quotas(&model);
                }
            }
            Err(error) => tracing::error!(%error, "reloading keys failed; the old keys stay valid"),
        }
    }

    /// Drains the server and stops it.
    pub async fn stop(self) {
        self.drain().await;
        self.end().await;
    }

    /// Rejects new requests and waits for requests in flight, up to [`ServerConfig::drain`].
    async fn drain(&self) {
        self.app.drain();
        let _ = self.phase.send(ShutdownPhase::Draining);
        let idle = async {
            loop {
                let mut busy = 0;
                for model in self.app.models.loaded() {
                    let is_busy = model.call(|worker| Ok(worker.is_busy())).await;
                    busy += usize::from(is_busy.unwrap_or(false));
                }
                if busy == 0 {
                    return;
                }
                tokio::time::sleep(DRAIN_POLL).await;
            }
        };
        if tokio::time::timeout(self.app.config.drain, idle)
            .await
            .is_err()
        {
            tracing::warn!("drain timeout: kept sessions continue after a restart");
        }
    }

    /// Closes the remaining connections and unloads every model.
    async fn end(self) {
        let Running {
            app,
            phase,
            serving,
            ..
        } = self;
        let _ = tokio::time::timeout(FLUSH_TIMEOUT, async {
            while app.metrics.open_connections() > 0 {
                tokio::time::sleep(DRAIN_POLL).await;
            }
        })
        .await;
        let _ = phase.send(ShutdownPhase::Closing);
        let _ = serving.await;
        app.models.stop_all().await;
        tracing::info!("stopped");
    }
}
