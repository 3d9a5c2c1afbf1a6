//! Location of the server of an experiment: in this process, or elsewhere.

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use djinn_client::Options;
use djinn_device::{Backend, DeviceName, host};
use djinn_engine::{KvMemory, PrefixCacheSettings};
use djinn_eval::{EvalConfig, ServerLocation};
use djinn_server::{LoadOptions, OperationSettings, ServerConfig, ServerLimits};
use djinn_terminal::Failure;
use djinn_types::Amount;
use djinn_weights::{MemorySettings, Overrides};

use crate::{
    args::{DeviceArgs, ExperimentArgs},
    commands::{connection, serve::COMMIT},
};

/// Server that flags name, or else the configuration, or else a server in this process.
pub fn location(config: &EvalConfig, args: &ExperimentArgs) -> Result<ServerLocation, Failure> {
    let named = args.server.server.clone();
    let address = named.or_else(|| config.server_address().filter(|_| !args.in_process));
    if let Some(address) = address {
        let timeout = config.experiment.server.as_ref().map(|s| s.timeout_seconds);
        let options = Options {
            timeout: timeout.map(Duration::from_secs_f64),
            ..connection::options(&args.server)
        };
        return Ok(ServerLocation::Remote { address, options });
    }
    in_process(config, &mut Devices::new(&args.device), args.host_memory)
}

/// Devices of experiments. Each is opened once and stays open, because a card that is opened again has less
/// free memory than its budget assumes.
pub struct Devices {
    flags: DeviceArgs,
    opened: Vec<(DeviceName, Arc<dyn Backend>)>,
}

impl Devices {
    /// No open devices. Experiments use the device of these flags, unless they leave it to the configuration.
    pub fn new(flags: &DeviceArgs) -> Self {
        Devices {
            flags: flags.clone(),
            opened: Vec::new(),
        }
    }

    /// Device that flags name, or else the configuration.
    fn open(&mut self, config: &EvalConfig) -> Result<Arc<dyn Backend>, Failure> {
        let name = match self.flags.device {
            DeviceName::Auto => device_of(config)?,
            named => named,
        };
        let first = DeviceName::Cuda(0);
        let is =
            |opened: DeviceName| opened == name || (name == DeviceName::Auto && opened == first);
        if let Some((_, backend)) = self.opened.iter().find(|(opened, _)| is(*opened)) {
            return Ok(backend.clone());
        }
        let chosen = name.choose(self.flags.threads)?;
        if let Some(note) = chosen.note() {
            eprintln!("{note}");
        }
        // A card that `auto` found is known by its own name from now on.
        let name = match (name, chosen.backend.card()) {
            (DeviceName::Auto, Some(_)) => first,
            (name, _) => name,
        };
        self.opened.push((name, chosen.backend.clone()));
        Ok(chosen.backend)
    }
}

/// Server in this process that may use all memory of the device. Each model gets its own budget.
pub fn in_process(
    config: &EvalConfig,
    devices: &mut Devices,
    host_memory: Option<Amount>,
) -> Result<ServerLocation, Failure> {
    let backend = devices.open(config)?;
    let free_host = host::available_memory();
    let host_budget = match (
        host_memory,
        config.tuning.pin_memory_gb,
        config.environment.os_reserve_gb,
    ) {
        (Some(amount), _, _) => amount.of(free_host),
        (None, Some(gb), _) => (gb * 1e9) as u64,
        (None, None, Some(gb)) => free_host.saturating_sub((gb * 1e9) as u64),
        (None, None, None) => MemorySettings::default_budget(free_host),
    };
    let memory = MemorySettings {
        budget: MemorySettings::default_budget(backend.free_memory()?),
        overrides: Overrides::default(),
        workers: config.experiment.ring_buffer.prefetch_workers,
        host_budget,
        ..MemorySettings::default()
    };
    Ok(ServerLocation::InProcess(Box::new(ServerConfig {
        listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
        node: "eval".to_owned(),
        backend,
        memory,
        host_copy: djinn_server::HostCopy::Auto,
        kv: KvMemory::default(),
        // Runs of an experiment repeat a prompt and measure its whole time.
        prefix_cache: PrefixCacheSettings::OFF,
        models: Vec::new(),
        layout: LoadOptions::default(),
        model_dirs: Vec::new(),
        pushed: PathBuf::new(),
        state: None,
        keys: None,
        tls: None,
        limits: ServerLimits::default(),
        drain: Duration::from_secs(5),
        insecure: false,
        operation: OperationSettings::default(),
        commit: COMMIT.to_owned(),
    })))
}

/// Device that a configuration names.
fn device_of(config: &EvalConfig) -> Result<DeviceName, Failure> {
    let named = config.experiment.model.device.as_deref();
    let index = config.environment.gpu_index.unwrap_or(0) as usize;
    Ok(match named.unwrap_or("auto") {
        // A `remote:` device names a server's device, so this machine uses auto.
        name if name.starts_with("remote:") => DeviceName::Auto,
        "auto" if index > 0 && djinn_device::cuda::driver_present() => DeviceName::Cuda(index),
        name => name
            .parse()
            .map_err(|error| Failure::Message(format!("experiment.model.device: {error}")))?,
    })
}
