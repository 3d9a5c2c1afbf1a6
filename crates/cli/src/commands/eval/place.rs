//! Who does the work: a server in this process, or one that runs somewhere.

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use djinn_client::Options;
use djinn_device::{Backend, host};
use djinn_engine::KvMemory;
use djinn_eval::{EvalConfig, ServerLocation};
use djinn_server::{LoadOptions, ServerConfig, ServerLimits};
use djinn_types::Amount;
use djinn_weights::{MemorySettings, Overrides};

use crate::{
    args::{DeviceArgs, DeviceName, ExperimentArgs, MemoryArgs},
    commands::serve::COMMIT,
    failure::Failure,
};

/// What flags say, then the configuration, then this process.
pub fn place(config: &EvalConfig, args: &ExperimentArgs) -> Result<ServerLocation, Failure> {
    let named = args.server.server.clone();
    let address = named.or_else(|| config.server_address().filter(|_| !args.in_process));
    if let Some(address) = address {
        let timeout = config.experiment.server.as_ref().map(|s| s.timeout_seconds);
        let options = Options {
            key: args.server.key.clone().filter(|key| !key.is_empty()),
            ca: args.server.ca.clone(),
            timeout: timeout.map(Duration::from_secs_f64),
            ..Options::default()
        };
        return Ok(ServerLocation::Remote { address, options });
    }
    in_process(config, &mut Devices::new(&args.device), args.host_memory)
}

/// Devices that experiments run on. Each is opened once and stays open: a card that is opened again has
/// less room, and a budget would not know of it.
pub struct Devices {
    asked: DeviceArgs,
    opened: Vec<(DeviceName, Arc<dyn Backend>)>,
}

impl Devices {
    /// None yet.
    pub fn new(asked: &DeviceArgs) -> Self {
        let (asked, opened) = (asked.clone(), Vec::new());
        Devices { asked, opened }
    }

    /// The one that flags name, or else the configuration.
    fn of(&mut self, config: &EvalConfig) -> Result<Arc<dyn Backend>, Failure> {
        let name = match self.asked.device {
            DeviceName::Auto => device_of(config)?,
            named => named,
        };
        let first = DeviceName::Cuda(0);
        let is =
            |opened: DeviceName| opened == name || (name == DeviceName::Auto && opened == first);
        if let Some((_, backend)) = self.opened.iter().find(|(opened, _)| is(*opened)) {
            return Ok(backend.clone());
        }
        let chosen = name.choose(self.asked.threads)?;
        chosen.say();
        // A card has the name that it was found by; a processor that stands in for one has not.
        let name = match (name, chosen.backend.card()) {
            (DeviceName::Auto, Some(_)) => first,
            (name, _) => name,
        };
        self.opened.push((name, chosen.backend.clone()));
        Ok(chosen.backend)
    }
}

/// A server in this process, with all of the device: each model is given its share.
pub fn in_process(
    config: &EvalConfig,
    devices: &mut Devices,
    host_memory: Option<Amount>,
) -> Result<ServerLocation, Failure> {
    let backend = devices.of(config)?;
    let free_host = host::available_memory();
    let host_budget = match (
        host_memory,
        config.tuning.pin_memory_gb,
        config.environment.os_reserve_gb,
    ) {
        (Some(amount), _, _) => amount.of(free_host),
        (None, Some(gb), _) => (gb * 1e9) as u64,
        (None, None, Some(gb)) => free_host.saturating_sub((gb * 1e9) as u64),
        (None, None, None) => MemoryArgs::unasked(free_host),
    };
    let memory = MemorySettings {
        budget: MemoryArgs::unasked(backend.free_memory()?),
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
        kv: KvMemory::default(),
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
        commit: COMMIT.to_owned(),
    })))
}

/// The device that a configuration names.
fn device_of(config: &EvalConfig) -> Result<DeviceName, Failure> {
    let named = config.experiment.model.device.as_deref();
    let index = config.environment.gpu_index.unwrap_or(0) as usize;
    Ok(match named.unwrap_or("auto") {
        // A server's, where one is named; here it is whatever there is.
        name if name.starts_with("remote:") => DeviceName::Auto,
        "auto" if index > 0 && djinn_device::cuda::driver_present() => DeviceName::Cuda(index),
        name => name
            .parse()
            .map_err(|error| Failure::Message(format!("experiment.model.device: {error}")))?,
    })
}
