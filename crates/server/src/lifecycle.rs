//! Lifecycle of a server: start, load models, serve, drain and stop.

use std::{
    net::SocketAddr,
    sync::{Arc, Weak},
    time::Duration,
};

use axum::{Router, middleware::from_fn_with_state};
use tokio::{
    net::TcpListener,
    runtime::Runtime,
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
    task::JoinHandle,
};

use crate::{
    ServeError, ServerConfig,
    app::App,
    grpc, http, middleware,
    net::{self, ConnectionContext, InProcessConnector, ReloadableTls, ShutdownPhase},
    preset::Preset,
    watchdog,
};

/// Interval at which a draining server checks whether requests are still in flight.
const DRAIN_POLL: Duration = Duration::from_millis(20);
/// Time that connections have to flush their last bytes before they are closed.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(200);
/// Time that the listeners have to end after their connections were closed.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Shortest time between two attempts to load a failed model again.
const RELOAD_MIN: Duration = Duration::from_secs(2);
/// Longest time between two attempts to load a failed model again.
const RELOAD_MAX: Duration = Duration::from_secs(60);
/// Number of threads that serve connections and health checks.
const FRONT_THREADS: usize = 2;

/// A started server. Dropping this value does not stop the server; call [`Running::stop`].
pub struct Running {
    /// Addresses of the listening sockets, in the order of [`ServerConfig::listen`].
    pub addresses: Vec<SocketAddr>,
    /// Address of metrics and health checks, if configured.
    pub metrics_address: Option<SocketAddr>,
    app: Arc<App>,
    context: Arc<ConnectionContext>,
    phase: watch::Sender<ShutdownPhase>,
    /// Runtime that serves connections, apart from the one that runs requests. Without listening sockets
    /// there is none.
    front: Option<Runtime>,
    serving: Vec<JoinHandle<()>>,
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
    if let Some(address) = config.plain_text_address() {
        tracing::warn!(
            %address,
            "API keys cross the network in plain text: add --tls-cert and --tls-key, or a proxy with TLS"
        );
    }
    let tls = config.tls.as_ref().map(ReloadableTls::open).transpose();
    let tls = tls.map_err(ServeError::Invalid)?;
    raise_descriptor_limit();
    let names: Vec<&str> = config
        .models
        .iter()
        .map(|model| model.name.as_str())
        .collect();
    djinn_device::host::announce(&names.join(", "));
    let app = App::new(config, preset)?;
    let (phase, watched) = watch::channel(ShutdownPhase::Serving);
    let metrics_listen = app.config.operation.metrics_listen;
    let has_ports = !app.config.listen.is_empty() || metrics_listen.is_some();
    let front = has_ports.then(front_runtime).transpose()?;
    let router = {
        // The task that keeps the gRPC health service up to date belongs to the front.
        let _entered = front.as_ref().map(Runtime::enter);
        router(&app)?
    };
    let context = Arc::new(ConnectionContext {
        app: Arc::clone(&app),
        router,
        tls,
    });
    let operators = Arc::new(ConnectionContext {
        app: Arc::clone(&app),
        router: http::operator_routes(&app),
        tls: None,
    });
    let mut running = Running {
        addresses: Vec::new(),
        metrics_address: None,
        app: Arc::clone(&app),
        context: Arc::clone(&context),
        phase,
        front: None,
        serving: Vec::new(),
    };
    if let Some(front) = front {
        let (listeners, addresses) = bind(&front, &app.config.listen)?;
        let (metrics, metrics_address) = bind(&front, metrics_listen.as_slice())?;
        let serving = [
            front.spawn(net::serve(context, listeners, watched.clone())),
            front.spawn(net::serve(operators, metrics, watched)),
        ];
        running.addresses = addresses;
        running.metrics_address = metrics_address.first().copied();
        running.serving.extend(serving);
        running.front = Some(front);
    }
    if let Some(limit) = app.config.operation.watchdog {
        watchdog::start(&app, limit);
    }
    Ok(running)
}

/// Creates the runtime that serves connections and health checks.
fn front_runtime() -> Result<Runtime, ServeError> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(FRONT_THREADS)
        .thread_name("front")
        .enable_all()
        .build()
        .map_err(|error| ServeError::Internal(format!("Cannot start threads: {error}")))
}

/// Binds sockets that a runtime serves.
fn bind(
    front: &Runtime,
    addresses: &[SocketAddr],
) -> Result<(Vec<TcpListener>, Vec<SocketAddr>), ServeError> {
    let unavailable = |error: std::io::Error| ServeError::Unavailable(error.to_string());
    let _entered = front.enter();
    let (mut listeners, mut bound) = (Vec::new(), Vec::new());
    for address in addresses {
        let listener = net::bind(*address).map_err(unavailable)?;
        bound.push(listener.local_addr().map_err(unavailable)?);
        listeners.push(listener);
    }
    Ok((listeners, bound))
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
    /// SIGHUP: reload keys and certificates.
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

/// Loads models of the configuration again that failed. A load balancer sends no request to a server that is
/// not ready, so no request would load them.
async fn reload_failed(app: Weak<App>) {
    let mut wait = RELOAD_MIN;
    loop {
        tokio::time::sleep(wait).await;
        let Some(app) = app.upgrade() else { return };
        if app.is_draining() {
            return;
        }
        wait = match app.models.first_failed() {
            None => RELOAD_MIN,
            Some(name) => match app.models.get(&name).await {
                Ok(_) => RELOAD_MIN,
                Err(_) => (2 * wait).min(RELOAD_MAX),
            },
        };
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
            self.app.models.load_at_start(&model.name).await?;
        }
        self.app.set_ready();
        self.app
            .work
            .spawn(reload_failed(Arc::downgrade(&self.app)));
        Ok(())
    }

    /// Loads the models, serves until SIGTERM or SIGINT, and drains; SIGHUP reloads keys and certificates.
    /// Calls `ready` once all models are loaded. Returns an error if the server can serve no more.
    pub async fn run_until_signal(self, ready: impl FnOnce(&Self)) -> Result<(), ServeError> {
        let mut signals = ProcessSignals::listen()?;
        let loaded = {
            let loaded = self.load();
            tokio::pin!(loaded);
            loop {
                tokio::select! {
                    loaded = &mut loaded => break Some(loaded),
                    signal = signals.next() => match signal {
                        ProcessSignal::Stop => break None,
                        ProcessSignal::Reload => self.reload(),
                    },
                }
            }
        };
        let Some(Ok(())) = loaded else {
            self.end().await;
            return loaded.unwrap_or(Ok(()));
        };
        ready(&self);
        loop {
            tokio::select! {
                signal = signals.next() => match signal {
                    ProcessSignal::Stop => break,
                    ProcessSignal::Reload => self.reload(),
                },
                reason = self.app.fatal.raised() => {
                    self.end().await;
                    return Err(ServeError::Fatal(reason));
                }
            }
        }
        tracing::info!("draining: new requests are rejected");
        tokio::select! {
            () = self.drain() => {}
            () = signals.stopped() => tracing::warn!("second signal: stopping without draining"),
        }
        self.end().await;
        Ok(())
    }

    /// Reloads the key file and the certificates. On an error the current ones stay in use.
    pub fn reload(&self) {
        let keys = self.app.keys.reload().map_err(|error| error.to_string());
        match &keys {
            Ok(count) => {
                tracing::info!(count, "keys reloaded");
                for model in self.app.models.loaded() {
                    self.app.models.set_quotas(&model);
                }
            }
            Err(error) => tracing::error!(error, "reloading keys failed; the old keys stay valid"),
        }
        let audit = &self.app.audit;
        audit.record_signal("reload keys", keys.err().as_deref());
        if let Some(tls) = &self.context.tls {
            let reloaded = tls.reload();
            match &reloaded {
                Ok(()) => tracing::info!("certificates reloaded"),
                Err(error) => {
                    tracing::error!(
                        error,
                        "reloading certificates failed; the old ones stay in use"
                    );
                }
            }
            audit.record_signal("reload certificates", reloaded.err().as_deref());
        }
    }

    /// Drains the server and stops it.
    pub async fn stop(self) {
        self.drain().await;
        self.end().await;
    }

    /// Rejects new requests and waits for requests in flight, up to [`ServerConfig::drain`]. Readiness fails
    /// first, so that a load balancer can stop to send requests before they are rejected.
    async fn drain(&self) {
        self.app.set_unready();
        tokio::time::sleep(self.app.config.operation.drain_delay).await;
        self.app.drain();
        let _ = self.phase.send(ShutdownPhase::Draining);
        let idle = async {
            let is_busy = || {
                let loaded = self.app.models.loaded();
                loaded.iter().any(|model| model.is_busy())
            };
            while is_busy() {
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

    /// Ends the remaining answers, closes the connections and unloads every model. Takes a few seconds at
    /// most, even if an engine hangs.
    async fn end(self) {
        let Running {
            app,
            phase,
            serving,
            front,
            ..
        } = self;
        app.drain();
        let _ = phase.send(ShutdownPhase::Draining);
        // Every stream gets a last event that says why it ends.
        app.closing.cancel();
        let _ = tokio::time::timeout(FLUSH_TIMEOUT, async {
            while app.metrics.open_connections() > 0 {
                tokio::time::sleep(DRAIN_POLL).await;
            }
        })
        .await;
        let _ = phase.send(ShutdownPhase::Closing);
        for task in serving {
            let _ = tokio::time::timeout(CLOSE_TIMEOUT, task).await;
        }
        app.models.stop_all().await;
        if let Some(front) = front {
            front.shutdown_background();
        }
        tracing::info!("stopped");
    }
}
