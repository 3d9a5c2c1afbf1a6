//! The testbed of an experiment: a server, a client of it, and the model under test.

use std::{
    path::PathBuf,
    process,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use djinn_client::{Client, ModelHandle, Options, Register, v1};
use djinn_report::RunEnvironment;
use djinn_server::{InProcessConnector, Running, ServeError, ServerConfig, ServerLimits};
use tempfile::TempDir;
use tokio::{runtime::Handle, task::JoinError};

use crate::{config::EvalConfig, error::EvalError, model_source::ModelSource};

/// Time after which the server in process removes an unused session, such as that of an interrupted
/// experiment.
const LEASE: Duration = Duration::from_secs(120);

/// Location of the server that is measured.
pub enum ServerLocation {
    /// A server in this process.
    InProcess(Box<ServerConfig>),
    /// A server that is already running.
    Remote {
        /// Address of the server.
        address: String,
        /// Options of the connection.
        options: Options,
    },
}

/// Settings of a testbed, in addition to the configuration.
pub struct TestbedOptions {
    /// Location of the server.
    pub location: ServerLocation,
    /// Runtime of the server in process. The client runs on the runtime of the caller.
    pub serving: Handle,
    /// Folder of the bundled model.
    pub bundled: PathBuf,
    /// Python interpreter for baselines.
    pub python: String,
    /// Command line, for the result file.
    pub command: String,
    /// Receiver of progress messages.
    pub progress: ProgressSink,
}

/// A progress message.
#[derive(Clone, Copy, Debug)]
pub enum EvalProgress<'a> {
    /// The current step.
    Step(&'a str),
    /// Summary of a finished measurement.
    Result(&'a str),
}

/// Receiver of progress messages.
pub type ProgressSink = Box<dyn Fn(EvalProgress<'_>) + Send + Sync>;

/// A server, a client of it, and the model under test.
pub struct Testbed {
    /// Client of the server.
    pub client: Client,
    /// Model under test.
    pub model: ModelSource,
    /// Python interpreter for baselines.
    pub python: String,
    reference: String,
    address: Option<String>,
    command: String,
    progress: ProgressSink,
    capabilities: v1::CapabilitiesReply,
    /// Part of model names that distinguishes them from those of other clients.
    mark: String,
    /// Names of the models that are loaded.
    loaded: Mutex<Vec<String>>,
    running: Option<Running>,
    /// Folder for models pushed to the server in process.
    _pushed: TempDir,
}

/// A model that the server has loaded for an experiment.
pub struct ModelUnderTest {
    /// Client handle of the model.
    pub model: ModelHandle,
    /// Description of the model by the server.
    pub info: v1::Model,
    /// Dimensions of the model.
    pub dims: v1::Dims,
}

impl Testbed {
    /// Connects to the server, or starts one in process.
    pub async fn open(config: &EvalConfig, options: TestbedOptions) -> Result<Self, EvalError> {
        let temporary = |error| EvalError::System {
            what: "temporary folder".to_owned(),
            error,
        };
        let pushed = TempDir::new().map_err(temporary)?;
        let in_process = matches!(options.location, ServerLocation::InProcess(_));
        let section = &config.experiment.model;
        let dtype = section.dtype.as_deref();
        let model = ModelSource::find(&section.model_id, dtype, &options.bundled, in_process)?;
        let (client, running, address) = match options.location {
            ServerLocation::InProcess(mut server) => {
                // The server may load models from below its model folders.
                let above = model.folder.as_ref().and_then(|folder| folder.parent());
                server.model_dirs.extend(above.map(ToOwned::to_owned));
                server.pushed = pushed.path().to_owned();
                server.limits = limits();
                // The client connects without a network port.
                server.listen.clear();
                let (running, connector) = start(*server, &options.serving).await?;
                let open = move || connector.connect();
                let client = Client::connect_in_process(open, Options::default()).await?;
                (client, Some(running), None)
            }
            ServerLocation::Remote { address, options } => {
                let client = Client::connect(&address, options).await?;
                (client, None, Some(address))
            }
        };
        let capabilities = client.capabilities().await?;
        Ok(Testbed {
            reference: model.upload(&client, in_process).await?,
            client,
            model,
            python: options.python,
            address,
            command: options.command,
            progress: options.progress,
            capabilities,
            mark: mark(),
            loaded: Mutex::default(),
            running,
            _pushed: pushed,
        })
    }

    /// Unloads the models that an interrupted experiment has left, and stops the server in process.
    pub async fn close(self) {
        let left = self.loaded().clone();
        for name in left {
            // An error at this point is a consequence of one that was reported before.
            let _ = self.client.model(name).unload(true, true).await;
        }
        if let Some(running) = self.running {
            running.stop().await;
        }
    }

    /// Reports the current step.
    pub fn report_step(&self, text: &str) {
        (self.progress)(EvalProgress::Step(text));
    }

    /// Reports a result.
    pub fn report_result(&self, text: &str) {
        (self.progress)(EvalProgress::Result(text));
    }

    /// Whether the server runs in this process.
    pub fn in_process(&self) -> bool {
        self.address.is_none()
    }

    /// Whether the server computes on a GPU.
    pub fn on_gpu(&self) -> bool {
        self.capabilities.device.starts_with("cuda")
    }

    /// Returns the device name of the server.
    pub fn device(&self) -> &str {
        &self.capabilities.device
    }

    /// Whether the server runs on this machine, so that baselines can be measured on the same hardware.
    pub fn is_local(&self) -> bool {
        let Some(address) = &self.address else {
            return true;
        };
        let host = address
            .rsplit_once(':')
            .map_or(&address[..], |(host, _)| host);
        let host = host.rsplit('/').next().unwrap_or_default();
        ["localhost", "[::1]"].contains(&host) || host.starts_with("127.")
    }

    /// Returns the total device memory in bytes, if the server reports it.
    pub fn device_bytes(&self) -> Option<u64> {
        let machine = self.capabilities.machine.as_ref()?;
        (machine.device_bytes > 0).then_some(machine.device_bytes)
    }

    /// Loads the model under a name that no other client uses.
    pub async fn load(
        &self,
        purpose: &str,
        limits: v1::ModelLimits,
    ) -> Result<ModelUnderTest, EvalError> {
        self.report_step(&format!("loading {} ({purpose})", self.model.name));
        let name = format!("eval-{}-{purpose}", self.mark);
        let register = Register::new(&self.reference).name(&name).limits(limits);
        self.loaded().push(name.clone());
        let info = self.client.register(register, |_| {}).await?;
        let dims = info.dims.filter(|dims| dims.vocab > 0 && dims.blocks > 0);
        let dims = dims.ok_or_else(|| EvalError::ModelReport {
            model: name.clone(),
            reason: "its dimensions are missing".to_owned(),
        })?;
        let model = self.client.model(name);
        Ok(ModelUnderTest { model, info, dims })
    }

    /// Unloads the model.
    pub async fn unload(&self, loaded: ModelUnderTest) -> Result<(), EvalError> {
        loaded.model.unload(true, true).await?;
        self.loaded().retain(|name| *name != loaded.info.name);
        Ok(())
    }

    fn loaded(&self) -> MutexGuard<'_, Vec<String>> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the counters of a loaded model.
    pub async fn status(&self, loaded: &ModelUnderTest) -> Result<v1::ModelStatus, EvalError> {
        let status = self
            .client
            .watch(Duration::from_secs(1))
            .await?
            .next()
            .await?;
        let name = &loaded.info.name;
        let of = |status: &v1::ModelStatus| status.model.as_ref().is_some_and(|m| m.name == *name);
        let found = status.models.into_iter().find(of);
        found.ok_or_else(|| EvalError::ModelReport {
            model: name.clone(),
            reason: "the model is no longer loaded".to_owned(),
        })
    }

    /// Describes the machine for the result file. `link_ceiling` is the rate of the link without compute.
    pub fn environment(&self, link_ceiling: Option<f64>) -> RunEnvironment {
        let machine = self.capabilities.machine.clone().unwrap_or_default();
        let known = |text: String| (!text.is_empty()).then_some(text);
        let on_gpu = self.on_gpu();
        RunEnvironment {
            djinn: self.capabilities.version.clone(),
            commit: machine.commit,
            device: self.capabilities.device.clone(),
            device_name: match on_gpu {
                true => self.capabilities.device_detail.clone(),
                false => machine.processor.clone(),
            },
            device_memory_mb: on_gpu.then_some(machine.device_bytes as f64 / 1e6),
            driver: known(machine.driver),
            cuda: known(machine.cuda),
            link: match on_gpu {
                true => known(machine.link).or(Some("PCIe".to_owned())),
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

/// Returns a string that no other process produces at the same time.
fn mark() -> String {
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let nanoseconds = time.map_or(0, |time| time.as_nanos());
    format!("{}-{:x}", process::id(), nanoseconds % (1 << 48))
}

/// Starts a server on its own runtime and loads its models.
async fn start(
    config: ServerConfig,
    serving: &Handle,
) -> Result<(Running, InProcessConnector), EvalError> {
    let started = serving.spawn(async move {
        let running = djinn_server::start(config).await?;
        running.load().await?;
        let connector = running.connector();
        Ok::<_, ServeError>((running, connector))
    });
    let failed = |error: JoinError| EvalError::System {
        what: "server in process".to_owned(),
        error: error.into(),
    };
    Ok(started.await.map_err(failed)??)
}

fn limits() -> ServerLimits {
    ServerLimits {
        lease: LEASE,
        ..ServerLimits::default()
    }
}
