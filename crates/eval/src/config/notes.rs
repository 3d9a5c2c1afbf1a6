//! What of a configuration changes nothing here, and why. Nothing is ignored in silence.

use std::fs;

use super::{BaselineConfig, Config};
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
        if self.tuning.cuda_graphs || self.tuning.torch_compile {
            note("tuning.cuda_graphs, tuning.torch_compile: of PyTorch's baselines".into());
        }
        if self.environment.os_swap.as_deref() == Some("disabled") && in_process && has_swap() {
            note("environment.os_swap: this machine has swap; swapoff -a turns it off".into());
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

/// Keys that a baseline does not read.
fn unread(name: &str, baseline: &BaselineConfig) -> Option<String> {
    let told = serde_json::to_value(baseline).ok()?;
    let read = baselines::keys(name);
    let odd = told.as_object()?.iter().find(|(key, value)| {
        let general = ["enabled", "runs", "generation_length"].contains(&key.as_str());
        !value.is_null() && !general && !read.contains(&key.as_str())
    });
    odd.map(|(key, _)| format!("baselines.{name}.{key}: {name} has no such setting"))
}
