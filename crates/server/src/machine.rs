//! What a server runs on, as the system and the driver say.

use std::{fs, path::Path};

use djinn_device::{cuda, host};
use djinn_wire::v1;

use crate::{Config, app::App};

/// The machine, for whoever measures it.
pub fn machine(config: &Config) -> v1::Machine {
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
        machine.driver = line("/sys/module/nvidia/version").unwrap_or_default();
        let cuda = cuda::driver_version().and_then(Result::ok);
        machine.cuda = cuda.map(|version| version.to_string()).unwrap_or_default();
        let link = card.facts().ok().and_then(|facts| facts.link);
        machine.link = link.map_or(String::new(), |link| {
            format!("{} x{}", link.speed_max, link.width_max)
        });
    }
    machine
}

/// Memory of the device that is taken: of a card as its driver counts, of a processor what models have of
/// its memory to compute in.
pub fn taken(app: &App) -> u64 {
    match app.config.backend.card() {
        Some(card) => card.used().unwrap_or(0),
        None => app.models.taken(),
    }
}

fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let names = text.lines().filter(|line| line.starts_with("model name"));
    let name = names.filter_map(|line| line.split_once(':')).next();
    name.map_or(String::new(), |(_, name)| name.trim().to_owned())
}

fn system() -> String {
    let release = line("/proc/sys/kernel/osrelease").unwrap_or_default();
    // Whose build it is tells of nothing that is measured.
    let number = release.split('-').next().unwrap_or_default();
    format!("{} {number}", std::env::consts::OS)
        .trim()
        .to_owned()
}

fn line(path: impl AsRef<Path>) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.lines().next()?.trim().to_owned())
}
