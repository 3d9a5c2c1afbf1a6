//! Notes on settings that have no effect on this machine. No setting is ignored silently.

use std::fs;

use super::sections::{BaselineSection, EvalConfig, LoggingSection};
use crate::baselines;

impl EvalConfig {
    /// Returns notes on the settings that have no effect, for the readers of a result.
    pub fn notes(&self, in_process: bool, on_card: bool) -> Vec<String> {
        let mut notes = Vec::new();
        let mut note = |text: String| notes.push(text);
        let experiment = &self.experiment;
        if !in_process && self.tuning.pin_memory_gb.is_some() {
            note(
                "tuning.pin_memory_gb: no effect on a remote server; set its --host-memory".into(),
            );
        }
        if !in_process && self.environment.os_reserve_gb.is_some() {
            note(
                "environment.os_reserve_gb: no effect on a remote server; set its --host-memory"
                    .into(),
            );
        }
        if on_card && !self.tuning.pin_weights {
            note(
                "tuning.pin_weights: applies to baselines; Djinn always streams from pinned memory"
                    .into(),
            );
        }
        if on_card && experiment.ring_buffer.prefetch_workers.is_some() {
            let text = "experiment.ring_buffer.prefetch_workers: no effect on a GPU, whose copy engine moves \
                        the weights";
            note(text.into());
        }
        if !in_process && !on_card && experiment.ring_buffer.prefetch_workers.is_some() {
            note("experiment.ring_buffer.prefetch_workers: no effect on a remote server; set its --workers".into());
        }
        if self.environment.numa_bind {
            note("environment.numa_bind: no effect; use numactl".into());
        }
        if self.tuning.torch_compile {
            note("tuning.torch_compile: applies to PyTorch baselines only".into());
        }
        if self.environment.os_swap.as_deref() == Some("disabled") && in_process && has_swap() {
            note("environment.os_swap: this machine has swap; run swapoff -a".into());
        }
        if self.environment.ulimit_memlock.as_deref() == Some("unlimited") && in_process {
            notes.extend(locked_limit());
        }
        if self.logging.level != LoggingSection::default().level {
            notes.push("logging.level: no effect here; use djinn serve --log-level".into());
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

/// Returns a note if the system limits locked memory.
fn locked_limit() -> Option<String> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max locked memory"))?;
    let limit = line
        .trim_start_matches("Max locked memory")
        .split_whitespace()
        .next()?;
    let text = format!(
        "environment.ulimit_memlock: the limit here is {limit} bytes; run ulimit -l unlimited"
    );
    (limit != "unlimited").then_some(text)
}

/// Returns notes on the keys that a baseline does not read.
fn unread(name: &str, baseline: &BaselineSection) -> Vec<String> {
    let Ok(serde_json::Value::Object(keys)) = serde_json::to_value(baseline) else {
        return Vec::new();
    };
    let read = baselines::accepted_keys(name);
    let is_unused = |(key, value): &(&String, &serde_json::Value)| {
        let general = ["enabled", "runs"].contains(&key.as_str());
        !value.is_null() && !general && !read.contains(&key.as_str())
    };
    let unused = keys.iter().filter(is_unused);
    unused
        .map(|(key, _)| format!("baselines.{name}.{key}: no effect; {name} has no such setting"))
        .collect()
}
