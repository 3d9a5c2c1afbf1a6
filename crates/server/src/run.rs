//! A server's life: it listens, loads, serves, drains and ends.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{Router, middleware};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
    task::JoinHandle,
};

use crate::{
    Config, ServeError,
    app::App,
    front, grpc, http,
    net::{self, Front, Stop},
};

/// How often turns are looked for that are still under way while a server goes down.
const LOOK: Duration = Duration::from_millis(20);

/// A server that listens.
pub struct Running {
    /// Where.
    pub addresses: Vec<SocketAddr>,
    app: Arc<App>,
    stop: watch::Sender<Stop>,
    serving: JoinHandle<()>,
}

/// Listens, and returns before models are loaded: health can be asked meanwhile.
pub async fn start(config: Config) -> Result<Running, ServeError> {
    config.check().map_err(ServeError::Invalid)?;
    let tls = config.tls.as_ref().map(net::acceptor).transpose();
    let tls = tls.map_err(ServeError::Invalid)?;
    raise_descriptors();
    let app = App::new(config)?;
    let unavailable = |error: std::io::Error| ServeError::Unavailable(error.to_string());
    let mut listeners = Vec::new();
    let mut addresses = Vec::new();
    for address in &app.config.listen {
        let listener = net::bind(*address).await.map_err(unavailable)?;
        addresses.push(listener.local_addr().map_err(unavailable)?);
        listeners.push(listener);
    }
    let router = router(&app)?;
    let (stop, stopped) = watch::channel(Stop::Go);
    let front = Arc::new(Front {
        app: Arc::clone(&app),
        router,
        tls,
    });
    let serving = tokio::spawn(net::serve(front, listeners, stopped));
    Ok(Running {
        addresses,
        app,
        stop,
        serving,
    })
}

/// Everything that is answered.
fn router(app: &Arc<App>) -> Result<Router, ServeError> {
    let grpc = grpc::routes(app)?.prepare().into_axum_router();
    let all = http::routes(app).merge(grpc.reset_fallback());
    Ok(all.layer(middleware::from_fn_with_state(
        Arc::clone(app),
        front::front,
    )))
}

/// As many descriptors as the system lets this process have: a connection is one.
fn raise_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::debug!(%error, "the number of descriptors stays as it is");
    }
}

/// What a process is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Stop,
    Reload,
}

/// How.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    fn listen() -> Result<Self, ServeError> {
        let listen = |kind| signal(kind).map_err(|error| ServeError::Internal(error.to_string()));
        Ok(Signals {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hangup: listen(SignalKind::hangup())?,
        })
    }

    /// Until it is told to stop.
    async fn stopped(&mut self) {
        while self.next().await != Told::Stop {}
    }

    /// What comes next.
    async fn next(&mut self) -> Told {
        tokio::select! {
            _ = self.terminate.recv() => Told::Stop,
            _ = self.interrupt.recv() => Told::Stop,
            _ = self.hangup.recv() => Told::Reload,
        }
    }
}

impl Running {
    /// Loads the models that were asked for at the start.
    pub async fn load(&self) -> Result<(), ServeError> {
        for model in &self.app.config.models {
            self.app.models.get(&model.name).await?;
        }
        self.app.set_ready();
        Ok(())
    }

    /// Loads, serves until the process is told to stop, and drains; reads keys again when told to.
    /// `ready` hears of it when all models are there.
    pub async fn until_told(self, ready: impl FnOnce(&Self)) -> Result<(), ServeError> {
        let mut signals = Signals::listen()?;
        {
            let loaded = self.load();
            tokio::pin!(loaded);
            loop {
                tokio::select! {
                    loaded = &mut loaded => break loaded?,
                    told = signals.next() => match told {
                        Told::Stop => return Ok(()),
                        Told::Reload => self.reload(),
                    },
                }
            }
        }
        ready(&self);
        while signals.next().await == Told::Reload {
            self.reload();
        }
        tracing::info!("draining: no new turns");
        tokio::select! {
            () = self.drain() => {}
            () = signals.stopped() => tracing::warn!("told twice: not waiting for turns"),
        }
        self.end().await;
        Ok(())
    }

    /// Reads keys again.
    pub fn reload(&self) {
        match self.app.keys.reload() {
            Ok(count) => {
                tracing::info!(count, "keys read again");
                for host in self.app.models.hosts() {
                    self.app.models.set_quotas(&host);
                }
            }
            Err(error) => tracing::error!(error, "keys stay as they were"),
        }
    }

    /// Drains and ends.
    pub async fn stop(self) {
        self.drain().await;
        self.end().await;
    }

    /// Lets turns come to their end, for as long as they may.
    async fn drain(&self) {
        self.app.drain();
        let _ = self.stop.send(Stop::Drain);
        let come_to_end = async {
            loop {
                let mut busy = 0;
                for host in self.app.models.hosts() {
                    let is_busy = host.call(|worker| Ok(worker.is_busy())).await;
                    busy += usize::from(is_busy.unwrap_or(false));
                }
                if busy == 0 {
                    return;
                }
                tokio::time::sleep(LOOK).await;
            }
        };
        if tokio::time::timeout(self.app.config.drain, come_to_end)
            .await
            .is_err()
        {
            tracing::warn!("turns are cut: kept sessions go on with them when the server is back");
        }
    }

    /// Cuts what is left, and gives all memory back.
    async fn end(self) {
        let Running {
            app, stop, serving, ..
        } = self;
        // What was said last goes out first.
        let _ = tokio::time::timeout(Duration::from_millis(200), async {
            while app
                .metrics
                .connections
                .load(std::sync::atomic::Ordering::Relaxed)
                > 0
            {
                tokio::time::sleep(LOOK).await;
            }
        })
        .await;
        let _ = stop.send(Stop::Cut);
        let _ = serving.await;
        app.models.stop_all().await;
        tracing::info!("ended");
    }
}
