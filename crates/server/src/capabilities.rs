//! Capabilities of the server: version, device, limits, and the machine it runs on.

use std::{fs, path::Path};

use djinn_device::{cuda, host};
use djinn_wire::v1;

use crate::{ServerConfig, app::App};

/// Capabilities of the server, for a client of the given owner.
pub fn capabilities(app: &App, owner: &str) -> v1::CapabilitiesReply {
    let limits = &app.config.limits;
    let backend = &app.config.backend;
    v1::CapabilitiesReply {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        protocols: vec!["djinn.v1".to_owned(), "openai.v1".to_owned()],
        node: app.config.node.clone(),
        device: backend.name(),
        device_detail: backend.detail(),
        limits: Some(v1::Limits {
            message_bytes: limits.message_bytes as u64,
            prompt_tokens: app.config.layout.context.unwrap_or(0) as u64,
            upload_bytes: limits.upload_bytes,
            branches: limits.batch as u64,
            capture_bytes: limits.capture_bytes,
            lease_s: limits.lease.as_secs_f64(),
        }),
        owner: owner.to_owned(),
        durable: app.config.state.is_some(),
        machine: Some(machine(&app.config)),
    }
}

/// Hardware and software of the machine, for benchmarks.
fn machine(config: &ServerConfig) -> v1::Machine {
    let mut machine = v1::Machine {
        commit: config.commit.clone(),
        processor: processor(),
        cores: host::cores() as u64,
        host_bytes: host::all_memory().unwrap_or(0),
        system: system(),
        ..v1::Machine::default()
    };
    if let Some(card) = config.backend.card() {
        machine.device_bytes = card.memory().map_or(0, |(_, total)| total);
        machine.driver = first_line("/sys/module/nvidia/version").unwrap_or_default();
        let cuda = cuda::driver_version().and_then(Result::ok);
        machine.cuda = cuda.map(|version| version.to_string()).unwrap_or_default();
        let link = card.facts().ok().and_then(|facts| facts.link);
        machine.link = link.map_or(String::new(), |link| {
            format!("{} x{}", link.speed_max, link.width_max)
        });
    }
    machine
}

/// Bytes of device memory in use: on a GPU as its driver reports, on a CPU as the models have reserved.
pub fn device_bytes_used(app: &App) -> u64 {
    match app.config.backend.card() {
        Some(card) => card.used().unwrap_or(0),
        None => app.models.device_bytes(),
    }
}

fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let names = text.lines().filter(|line| line.starts_with("model name"));
    let name = names.filter_map(|line| line.split_once(':')).next();
    name.map_or(String::new(), |(_, name)| name.trim().to_owned())
}

fn system() -> String {
    let release = first_line("/proc/sys/kernel/osrelease").unwrap_or_default();
    // The part after the dash names the distribution's build, which does not affect measurements.
    let number = release.split('-').next().unwrap_or_default();
    format!("{} {number}", std::env::consts::OS)
        .trim()
        .to_owned()
}

fn first_line(path: impl AsRef<Path>) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.lines().next()?.trim().to_owned())
}
