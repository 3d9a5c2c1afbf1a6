//! What of a configuration changes nothing here, and why. Nothing is ignored in silence.

use std::fs;

use super::{BaselineConfig, Config, Logging};
use crate::baselines;

impl Config {
    /// What a reader of results should know of the configuration, for a device in process or a server's.
    pub fn notes(&self, in_process: bool, on_card: bool) -> Vec<String> {
        let mut notes = Vec::new();
        let mut note = |text: String| notes.push(text);
        let experiment = &self.experiment;
        if !in_process && self.tuning.pin_memory_gb.is_some() {
            note("tuning.pin_memory_gb: a server has its own --host-memory".into());
        }
        if !in_process && self.environment.os_reserve_gb.is_some() {
            note("environment.os_reserve_gb: a server has its own --host-memory".into());
        }
        if on_card && !self.tuning.pin_weights {
            note(
                "tuning.pin_weights: Djinn streams from pinned memory alone; baselines heed it"
                    .into(),
            );
        }
        if on_card && experiment.ring_buffer.prefetch_workers.is_some() {
            let text = "experiment.ring_buffer.prefetch_workers: a card's copy engine brings weights, and \
                        no threads";
            note(text.into());
        }
        if !in_process && !on_card && experiment.ring_buffer.prefetch_workers.is_some() {
            note("experiment.ring_buffer.prefetch_workers: a server has its own --workers".into());
        }
        if self.environment.numa_bind {
            note("environment.numa_bind: left to the system (numactl)".into());
        }
        if self.tuning.torch_compile {
            note("tuning.torch_compile: of PyTorch's baselines".into());
        }
        if self.environment.os_swap.as_deref() == Some("disabled") && in_process && has_swap() {
            note("environment.os_swap: this machine has swap; swapoff -a turns it off".into());
        }
        if self.environment.ulimit_memlock.as_deref() == Some("unlimited") && in_process {
            notes.extend(locked_limit());
        }
        if self.logging.level != Logging::default().level {
            notes.push("logging.level: of a server: djinn serve --log-level".into());
        }
        for (name, baseline) in &self.baselines {
            notes.extend(unread(name, baseline));
        }
        notes
    }
}

fn has_swap() -> bool {
    fs::read_to_string("/proc/swaps").is_ok_and(|text| text.lines().count() > 1)
}

/// Tells of a limit to how much memory may be pinned.
fn locked_limit() -> Option<String> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max locked memory"))?;
    let limit = line
        .trim_start_matches("Max locked memory")
        .split_whitespace()
        .next()?;
    let text = format!("environment.ulimit_memlock: it is {limit} bytes here; ulimit -l unlimited");
    (limit != "unlimited").then_some(text)
}

/// Keys that a baseline does not read.
fn unread(name: &str, baseline: &BaselineConfig) -> Vec<String> {
    let Ok(serde_json::Value::Object(told)) = serde_json::to_value(baseline) else {
        return Vec::new();
    };
    let read = baselines::keys(name);
    let is_odd = |(key, value): &(&String, &serde_json::Value)| {
        let general = ["enabled", "runs"].contains(&key.as_str());
        !value.is_null() && !general && !read.contains(&key.as_str())
    };
    let odd = told.iter().filter(is_odd);
    odd.map(|(key, _)| format!("baselines.{name}.{key}: {name} has no such setting"))
        .collect()
}
