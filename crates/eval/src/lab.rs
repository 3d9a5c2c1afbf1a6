//! Where experiments are made: a server, and a client of it.

use std::{
    path::PathBuf,
    process,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use djinn_client::{Client, ModelHandle, Options, Register, v1};
use djinn_report::Environment;
use djinn_server::{Running, ServeError, ServerConfig, ServerLimits};
use tempfile::TempDir;
use tokio::{runtime::Handle, task::JoinError};

use crate::{Config, EvalError, subject::Subject};

/// How long a session stays that nobody uses: an experiment that broke off leaves nothing for long.
const LEASE: Duration = Duration::from_secs(120);

/// Who does the work.
pub enum Place {
    /// A server in this process, on this device.
    InProcess(Box<ServerConfig>),
    /// One that runs somewhere.
    Server {
        /// Where.
        address: String,
        /// How it is spoken to.
        options: Options,
    },
}

/// What a lab is set up with beside the configuration.
pub struct Setup {
    /// Who does the work.
    pub place: Place,
    /// The threads of a server in process. The client runs on those of its caller.
    pub serving: Handle,
    /// The model that ships with Djinn.
    pub bundled: PathBuf,
    /// The Python that baselines run with.
    pub python: String,
    /// The command line, to be written down.
    pub command: String,
    /// Hears what is being done.
    pub tell: Tell,
}

/// Something to tell whoever waits.
#[derive(Clone, Copy, Debug)]
pub enum Said<'a> {
    /// What is being done now.
    Doing(&'a str),
    /// What came of it.
    Done(&'a str),
}

/// Who hears of it.
pub type Tell = Box<dyn Fn(Said<'_>) + Send + Sync>;

/// A server, a client of it, and a model.
pub struct Lab {
    /// Asks the server.
    pub client: Client,
    /// What is tried.
    pub subject: Subject,
    /// The Python that baselines run with.
    pub python: String,
    reference: String,
    address: Option<String>,
    command: String,
    tell: Tell,
    capabilities: v1::CapabilitiesReply,
    /// Tells its models from those of others.
    mark: String,
    /// Models that were loaded and not given back yet.
    loaded: Mutex<Vec<String>>,
    running: Option<Running>,
    /// Where a server in process keeps what is pushed.
    _pushed: TempDir,
}

/// A model that was loaded for some runs.
pub struct Loaded {
    /// It.
    pub model: ModelHandle,
    /// What the server says of it.
    pub told: v1::Model,
    /// Its sizes.
    pub dims: v1::Dims,
}

impl Lab {
    /// Connects to the server, or starts one.
    pub async fn open(config: &Config, setup: Setup) -> Result<Self, EvalError> {
        let temporary = |error| EvalError::System {
            what: "a temporary folder".to_owned(),
            error,
        };
        let pushed = TempDir::new().map_err(temporary)?;
        let in_process = matches!(setup.place, Place::InProcess(_));
        let model = &config.experiment.model;
        let dtype = model.dtype.as_deref();
        let subject = Subject::find(&model.model_id, dtype, &setup.bundled, in_process)?;
        let (client, running, address) = match setup.place {
            Place::InProcess(mut server) => {
                // What lies below a folder may be named.
                let above = subject.folder.as_ref().and_then(|folder| folder.parent());
                server.model_dirs.extend(above.map(ToOwned::to_owned));
                server.pushed = pushed.path().to_owned();
                server.limits = limits();
                let running = start(*server, &setup.serving).await?;
                let address = running.addresses[0].to_string();
                let client = Client::connect(&address, Options::default()).await?;
                (client, Some(running), None)
            }
            Place::Server { address, options } => {
                let client = Client::connect(&address, options).await?;
                (client, None, Some(address))
            }
        };
        let capabilities = client.capabilities().await?;
        Ok(Lab {
            reference: subject.reference(&client, in_process).await?,
            client,
            subject,
            python: setup.python,
            address,
            command: setup.command,
            tell: setup.tell,
            capabilities,
            mark: mark(),
            loaded: Mutex::default(),
            running,
            _pushed: pushed,
        })
    }

    /// Gives back what an experiment that broke off has left, and ends a server that was started for it.
    pub async fn close(self) {
        let left = self.loaded().clone();
        for name in left {
            // Whatever is in the way now was told before.
            let _ = self.client.model(name).unload(true, true).await;
        }
        if let Some(running) = self.running {
            running.stop().await;
        }
    }

    /// Says what is being done.
    pub fn say(&self, text: &str) {
        (self.tell)(Said::Doing(text));
    }

    /// Says what came of something.
    pub fn done(&self, text: &str) {
        (self.tell)(Said::Done(text));
    }

    /// Whether the server is of this process.
    pub fn in_process(&self) -> bool {
        self.address.is_none()
    }

    /// Whether it computes on a card.
    pub fn on_card(&self) -> bool {
        self.capabilities.device.starts_with("cuda")
    }

    /// The device, by its name.
    pub fn device(&self) -> &str {
        &self.capabilities.device
    }

    /// Whether it runs on this machine, so that what others do here can be compared.
    pub fn is_here(&self) -> bool {
        let Some(address) = &self.address else {
            return true;
        };
        let host = address
            .rsplit_once(':')
            .map_or(&address[..], |(host, _)| host);
        let host = host.rsplit('/').next().unwrap_or_default();
        ["localhost", "[::1]"].contains(&host) || host.starts_with("127.")
    }

    /// Memory of the device.
    pub fn device_bytes(&self) -> Option<u64> {
        let machine = self.capabilities.machine.as_ref()?;
        (machine.device_bytes > 0).then_some(machine.device_bytes)
    }

    /// Loads the model under a name of this experiment's own.
    pub async fn load(&self, what: &str, limits: v1::ModelLimits) -> Result<Loaded, EvalError> {
        self.say(&format!("loading {} ({what})", self.subject.name));
        let name = format!("eval-{}-{what}", self.mark);
        let asked = Register::new(&self.reference).name(&name).limits(limits);
        self.loaded().push(name.clone());
        let told = self.client.register(asked, |_| {}).await?;
        let dims = told.dims.filter(|dims| dims.vocab > 0 && dims.blocks > 0);
        let dims = dims.ok_or_else(|| {
            EvalError::Asked(format!("the server does not say how large {name} is"))
        })?;
        let model = self.client.model(name);
        Ok(Loaded { model, told, dims })
    }

    /// Gives its memory back.
    pub async fn unload(&self, loaded: Loaded) -> Result<(), EvalError> {
        loaded.model.unload(true, true).await?;
        self.loaded().retain(|name| *name != loaded.told.name);
        Ok(())
    }

    fn loaded(&self) -> MutexGuard<'_, Vec<String>> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How a loaded model fares.
    pub async fn status(&self, loaded: &Loaded) -> Result<v1::ModelStatus, EvalError> {
        let status = self
            .client
            .watch(Duration::from_secs(1))
            .await?
            .next()
            .await?;
        let name = &loaded.told.name;
        let of = |status: &v1::ModelStatus| status.model.as_ref().is_some_and(|m| m.name == *name);
        let found = status.models.into_iter().find(of);
        found.ok_or_else(|| EvalError::Asked(format!("{name} is not loaded any more")))
    }

    /// Where this is, for whoever reads of it. The link's rate is of a model that streams.
    pub fn environment(&self, link_ceiling: Option<f64>) -> Environment {
        let machine = self.capabilities.machine.clone().unwrap_or_default();
        let said = |text: String| (!text.is_empty()).then_some(text);
        let on_card = self.on_card();
        Environment {
            djinn: self.capabilities.version.clone(),
            commit: machine.commit,
            device: self.capabilities.device.clone(),
            device_name: match on_card {
                true => self.capabilities.device_detail.clone(),
                false => machine.processor.clone(),
            },
            device_memory_mb: on_card.then_some(machine.device_bytes as f64 / 1e6),
            driver: said(machine.driver),
            cuda: said(machine.cuda),
            link: match on_card {
                true => said(machine.link).or(Some("PCIe".to_owned())),
                false => Some("the model's files".to_owned()),
            },
            link_gbps: link_ceiling
                .filter(|rate| *rate > 0.0)
                .map(|rate| rate / 1e9),
            processor: machine.processor,
            cores: machine.cores,
            host_memory_mb: machine.host_bytes as f64 / 1e6,
            system: machine.system,
            server: self
                .address
                .clone()
                .unwrap_or_else(|| "in process".to_owned()),
            command: self.command.clone(),
        }
    }
}

/// Something that nobody else comes to at the same time.
fn mark() -> String {
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let nanoseconds = time.map_or(0, |time| time.as_nanos());
    format!("{}-{:x}", process::id(), nanoseconds % (1 << 48))
}

/// A server on threads of its own.
async fn start(config: ServerConfig, serving: &Handle) -> Result<Running, EvalError> {
    let started = serving.spawn(async move {
        let running = djinn_server::start(config).await?;
        running.load().await?;
        Ok::<_, ServeError>(running)
    });
    let broke = |error: JoinError| EvalError::System {
        what: "a server of its own".to_owned(),
        error: error.into(),
    };
    Ok(started.await.map_err(broke)??)
}

fn limits() -> ServerLimits {
    ServerLimits {
        lease: LEASE,
        ..ServerLimits::default()
    }
}
