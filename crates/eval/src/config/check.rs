//! Checks of configuration values. Errors name the key and the accepted values.

use djinn_report::METRICS;

use super::{error::ConfigProblem, sections::EvalConfig};
use crate::baselines::NAMES;

/// Series of points that targets may name.
const SERIES: [&str; 6] = [
    "resume",
    "resume_from_host",
    "resume_inside",
    "resume_from_host_inside",
    "p50",
    "p99",
];

/// Returns an error for the key unless the condition holds.
fn require(key: &str, condition: bool, reason: &str) -> Result<(), ConfigProblem> {
    let (key, reason) = (key.to_owned(), reason.to_owned());
    match condition {
        true => Ok(()),
        false => Err(ConfigProblem::Value { key, reason }),
    }
}

/// Returns the metric that a name in `output.metrics` refers to. Names of older versions are accepted.
pub(super) fn metric_key(name: &str) -> Option<&'static str> {
    let name = match name {
        "latency_ms" => "total_time_ms",
        "peak_vram_mb" => "vram_used_mb",
        "logit_norm_diff" => "logit_norm",
        name => name,
    };
    djinn_report::metric(name).map(|metric| metric.key)
}

impl EvalConfig {
    /// Checks all values.
    pub(super) fn check(&self) -> Result<(), ConfigProblem> {
        self.check_requests()?;
        self.check_memory()?;
        self.check_sessions()?;
        self.check_targets()
    }

    fn check_requests(&self) -> Result<(), ConfigProblem> {
        let experiment = &self.experiment;
        let runs = experiment.measurement.runs;
        require(
            "experiment.measurement.runs",
            runs > 0,
            "must be at least 1",
        )?;
        let inference = &experiment.inference;
        require(
            "experiment.inference",
            inference.prompt_length > 0 && inference.generation_length > 0,
            "prompt_length and generation_length must be at least 1",
        )?;
        require(
            "experiment.inference.batch_size",
            inference.batch_size == 1,
            "must be 1; memory-pressure and agents measure several sessions",
        )?;
        let timeout = experiment
            .server
            .as_ref()
            .map_or(1.0, |s| s.timeout_seconds);
        require(
            "experiment.server.timeout_seconds",
            timeout > 0.0 && timeout <= 1e6,
            "must be above 0 and at most 1000000",
        )?;
        let ours = self.baselines.get("ring_buffer_async_prefetch");
        require(
            "baselines.ring_buffer_async_prefetch.enabled",
            ours.is_none_or(|ours| ours.enabled),
            "cannot be disabled, because it is the system under test; set use_async_prefetch: false to turn off prefetch",
        )?;
        require(
            "experiment.activation_steering.modification_type",
            experiment.activation_steering.modification_type == "scale",
            "must be 'scale'",
        )
    }

    fn check_memory(&self) -> Result<(), ConfigProblem> {
        let machine = &self.environment;
        let margin = machine.safety_margin_gb.unwrap_or(0.0);
        let room = machine.max_gpu_memory_gb.map_or(1.0, |all| all - margin);
        require(
            "environment.max_gpu_memory_gb",
            room > 0.0 && margin >= 0.0,
            "must be larger than safety_margin_gb",
        )?;
        require(
            "environment.safety_margin_gb",
            machine.safety_margin_gb.is_none() || machine.max_gpu_memory_gb.is_some(),
            "needs max_gpu_memory_gb",
        )?;
        let capacity = self.experiment.ring_buffer.capacity_gb;
        require(
            "experiment.ring_buffer.capacity_gb",
            capacity.is_none_or(|gb| gb > 0.0),
            "must be above 0",
        )
    }

    fn check_sessions(&self) -> Result<(), ConfigProblem> {
        let sessions = &self.experiment.sessions;
        let [from, to] = sessions.think_seconds;
        require(
            "experiment.sessions.think_seconds",
            (0.0..=1e5).contains(&from) && (from..=1e5).contains(&to),
            "must be a range of seconds up to 100000, such as [0.5, 2]",
        )?;
        require(
            "experiment.sessions",
            sessions.count > 0 && sessions.turns > 0,
            "count and turns must be at least 1",
        )?;
        require(
            "experiment.sessions.check",
            sessions.check > 0,
            "must be at least 1, so that tokens are compared with a session that runs alone",
        )?;
        let breakpoints = &self.experiment.breakpoints;
        require(
            "experiment.breakpoints",
            !breakpoints.layers.is_empty() && breakpoints.repeats > 0,
            "layers must not be empty, and repeats must be at least 1",
        )?;
        require(
            "experiment.activation_steering.repeats",
            self.experiment.activation_steering.repeats > 0,
            "must be at least 1",
        )
    }

    fn check_targets(&self) -> Result<(), ConfigProblem> {
        for name in &self.output.metrics {
            let names: Vec<&str> = METRICS.iter().map(|metric| metric.key).collect();
            let reason = format!("unknown metric '{name}'; known: {}", names.join(", "));
            require("output.metrics", metric_key(name).is_some(), &reason)?;
        }
        for (number, target) in self.targets.iter().enumerate() {
            let key = format!("targets[{number}]");
            let metric = target.metric.as_str();
            let is_known = metric == "spread"
                || SERIES.contains(&metric)
                || djinn_report::metric(metric).is_some();
            require(
                &key,
                is_known,
                &format!("unknown metric or series '{metric}'"),
            )?;
            let of = target.of.as_deref().unwrap_or(NAMES[0]);
            let reason = format!("unknown baseline '{of}'; known: {}", NAMES.join(", "));
            require(&key, NAMES.contains(&of), &reason)?;
            let is_limited = target.at_least.is_some() || target.at_most.is_some();
            require(&key, is_limited, "needs at_least or at_most")?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use crate::config::{ConfigProblem, EvalConfig};

    #[test]
    fn invalid_values_are_rejected_with_their_key() {
        let check = |text: &str, expect: &str| {
            let problem = EvalConfig::parse(text).unwrap_err();
            let ConfigProblem::Value { key, .. } = &problem else {
                panic!("{text}: {problem}");
            };
            assert_eq!(key, expect, "{text}: {problem}");
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
        check("output: {metrics: [speed]}", "output.metrics");
        check("targets: [{metric: speed, at_most: 1}]", "targets[0]");
        check(
            "targets: [{metric: spread, at_most: 1, of: unknown}]",
            "targets[0]",
        );
        check("targets: [{metric: spread}]", "targets[0]");
        check(
            "baselines: {ring_buffer_async_prefetch: {enabled: false}}",
            "baselines.ring_buffer_async_prefetch.enabled",
        );
    }
}
