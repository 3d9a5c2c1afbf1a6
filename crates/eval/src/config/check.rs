//! What cannot be is refused when a configuration is read, with the key.

use djinn_report::METRICS;

use super::{Config, told_metric};
use crate::baselines::NAMES;

/// What is measured at several places.
const SERIES: [&str; 6] = [
    "resume",
    "resume_from_host",
    "resume_inside",
    "resume_from_host_inside",
    "p50",
    "p99",
];

type Checked = Result<(), String>;

fn refuse(key: &str, why: &str) -> Checked {
    Err(format!("{key}: {why}"))
}

/// Refuses a key's value unless something holds of it.
fn holds(key: &str, so: bool, why: &str) -> Checked {
    if so { Ok(()) } else { refuse(key, why) }
}

impl Config {
    /// Refuses what cannot be.
    pub(super) fn check(&self) -> Checked {
        self.check_asked()?;
        self.check_memory()?;
        self.check_sessions()?;
        self.check_targets()
    }

    fn check_asked(&self) -> Checked {
        let experiment = &self.experiment;
        let runs = experiment.measurement.runs;
        holds("experiment.measurement.runs", runs > 0, "at least one run")?;
        let inference = &experiment.inference;
        holds(
            "experiment.inference",
            inference.prompt_length > 0 && inference.generation_length > 0,
            "a prompt and what is generated have at least one token",
        )?;
        holds(
            "experiment.inference.batch_size",
            inference.batch_size == 1,
            "one session is measured at a time; many are memory-pressure and agents",
        )?;
        let timeout = experiment
            .server
            .as_ref()
            .map_or(1.0, |s| s.timeout_seconds);
        holds(
            "experiment.server.timeout_seconds",
            timeout > 0.0 && timeout <= 1e6,
            "seconds, more than 0 and at most a million",
        )?;
        let ours = self.baselines.get("ring_buffer_async_prefetch");
        holds(
            "baselines.ring_buffer_async_prefetch.enabled",
            ours.is_none_or(|ours| ours.enabled),
            "it is what is tried; use_async_prefetch: false is Djinn without prefetch",
        )?;
        holds(
            "experiment.activation_steering.modification_type",
            experiment.activation_steering.modification_type == "scale",
            "only scale",
        )
    }

    fn check_memory(&self) -> Checked {
        let machine = &self.environment;
        let margin = machine.safety_margin_gb.unwrap_or(0.0);
        let room = machine.max_gpu_memory_gb.map_or(1.0, |all| all - margin);
        holds(
            "environment.max_gpu_memory_gb",
            room > 0.0 && margin >= 0.0,
            "nothing is left of it without safety_margin_gb",
        )?;
        holds(
            "environment.safety_margin_gb",
            machine.safety_margin_gb.is_none() || machine.max_gpu_memory_gb.is_some(),
            "of what? give max_gpu_memory_gb too",
        )?;
        let capacity = self.experiment.ring_buffer.capacity_gb;
        holds(
            "experiment.ring_buffer.capacity_gb",
            capacity.is_none_or(|gb| gb > 0.0),
            "more than 0",
        )
    }

    fn check_sessions(&self) -> Checked {
        let sessions = &self.experiment.sessions;
        let [from, to] = sessions.think_seconds;
        holds(
            "experiment.sessions.think_seconds",
            (0.0..=1e5).contains(&from) && (from..=1e5).contains(&to),
            "seconds from and to, as [0.5, 2]",
        )?;
        holds(
            "experiment.sessions",
            sessions.count > 0 && sessions.turns > 0,
            "at least one session and one turn",
        )?;
        holds(
            "experiment.sessions.check",
            sessions.check > 0,
            "at least one session runs alone too, or nothing would be compared",
        )?;
        let breakpoints = &self.experiment.breakpoints;
        holds(
            "experiment.breakpoints",
            !breakpoints.layers.is_empty() && breakpoints.repeats > 0,
            "at least one layer, and one stop there",
        )?;
        holds(
            "experiment.activation_steering.repeats",
            self.experiment.activation_steering.repeats > 0,
            "at least one, or nothing would be measured",
        )
    }

    fn check_targets(&self) -> Checked {
        for name in &self.output.metrics {
            if told_metric(name).is_none() {
                let names: Vec<&str> = METRICS.iter().map(|metric| metric.key).collect();
                let why = format!("there is no '{name}'; there are {}", names.join(", "));
                return refuse("output.metrics", &why);
            }
        }
        for (number, target) in self.targets.iter().enumerate() {
            let key = format!("targets[{number}]");
            let metric = target.metric.as_str();
            let is_known = metric == "spread"
                || SERIES.contains(&metric)
                || djinn_report::metric(metric).is_some();
            holds(&key, is_known, &format!("no run has a '{metric}'"))?;
            let of = target.of.as_deref().unwrap_or(NAMES[0]);
            let why = format!(
                "there is no baseline '{of}'; there are {}",
                NAMES.join(", ")
            );
            holds(&key, NAMES.contains(&of), &why)?;
            let is_limited = target.at_least.is_some() || target.at_most.is_some();
            holds(&key, is_limited, "neither at_least nor at_most")?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use crate::Config;

    #[test]
    fn what_cannot_be_is_refused_with_its_key() {
        let check = |text: &str, expect: &str| {
            let told = Config::parse(text).unwrap_err();
            assert!(told.starts_with(expect), "{text}: {told}");
        };
        check(
            "experiment: {measurement: {runs: 0}}",
            "experiment.measurement.runs",
        );
        check(
            "experiment: {server: {host: a, timeout_seconds: -1}}",
            "experiment.server.timeout_seconds",
        );
        check(
            "environment: {max_gpu_memory_gb: 1, safety_margin_gb: 2}",
            "environment.max_gpu_memory_gb",
        );
        check(
            "environment: {safety_margin_gb: 2}",
            "environment.safety_margin_gb",
        );
        check(
            "experiment: {ring_buffer: {capacity_gb: 0}}",
            "experiment.ring_buffer.capacity_gb",
        );
        check(
            "experiment: {breakpoints: {layers: []}}",
            "experiment.breakpoints",
        );
        check(
            "experiment: {activation_steering: {repeats: 0}}",
            "experiment.activation_steering.repeats",
        );
        check(
            "experiment: {sessions: {check: 0}}",
            "experiment.sessions.check",
        );
        check(
            "output: {metrics: [speed]}",
            "output.metrics: there is no 'speed'",
        );
        check(
            "targets: [{metric: speed, at_most: 1}]",
            "targets[0]: no run has a 'speed'",
        );
        check(
            "targets: [{metric: spread, at_most: 1, of: nobody}]",
            "targets[0]: there is no baseline 'nobody'",
        );
        check(
            "baselines: {ring_buffer_async_prefetch: {enabled: false}}",
            "baselines.ring_buffer_async_prefetch.enabled",
        );
    }
}
