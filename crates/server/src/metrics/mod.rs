//! Prometheus metrics: counters of requests, latency histograms, and the state of loaded models.

mod format;
mod model;
mod process;
mod snapshot;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use djinn_wire::ErrorCode;
use prometheus_client::{
    encoding::{EncodeLabelSet, text},
    metrics::{
        counter::Counter,
        family::Family,
        histogram::{Histogram, exponential_buckets},
    },
    registry::{Registry, Unit},
};

use self::{model::ReadingCollector, process::ProcessCollector};

pub use format::MetricsFormat;
pub use snapshot::{EngineSnapshot, ModelReading, PassTotals};

/// Latency histograms of one model.
pub struct Latency {
    /// Time from the request of a turn to its first pass.
    pub queue: Histogram,
    /// Time from the request of a turn to its first token.
    pub first: Histogram,
    /// Time between two tokens of a turn.
    pub next: Histogram,
}

/// Metrics of a server that events update.
pub struct Metrics {
    registry: Registry,
    queue: Family<ModelLabel, Histogram>,
    first: Family<ModelLabel, Histogram>,
    next: Family<ModelLabel, Histogram>,
    requests: Family<RequestLabel, Counter>,
    durations: Family<MethodLabel, Histogram>,
    prompt_tokens: Counter,
    cached_tokens: Counter,
    errors: Family<ErrorLabel, Counter>,
    connections: AtomicU64,
    /// Number of requests since the start.
    pub answered: AtomicU64,
}

/// Guard that counts one connection as open.
pub struct OpenConnection<'m>(&'m AtomicU64);

impl Drop for OpenConnection<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ModelLabel {
    model: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MethodLabel {
    method: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabel {
    method: &'static str,
    status: u16,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ErrorLabel {
    kind: &'static str,
}

fn histogram() -> Histogram {
    // The buckets range from 0.1 ms to 52 s.
    Histogram::new(exponential_buckets(1e-4, 2.0, 20))
}

impl Metrics {
    /// Registers all metrics.
    pub fn new() -> Arc<Self> {
        let mut registry = Registry::with_prefix("djinn");
        let queue = Family::<ModelLabel, Histogram>::new_with_constructor(histogram);
        let first = Family::<ModelLabel, Histogram>::new_with_constructor(histogram);
        let next = Family::<ModelLabel, Histogram>::new_with_constructor(histogram);
        let durations = Family::<MethodLabel, Histogram>::new_with_constructor(histogram);
        let (requests, errors) = (Family::default(), Family::default());
        let (prompt_tokens, cached_tokens) = (Counter::default(), Counter::default());
        registry.register_with_unit(
            "queue",
            "Time from the request of a turn to its first pass",
            Unit::Seconds,
            queue.clone(),
        );
        registry.register_with_unit(
            "first_token",
            "Time from the request of a turn to its first token, queueing and prefill included",
            Unit::Seconds,
            first.clone(),
        );
        registry.register_with_unit(
            "next_token",
            "Time between two tokens of a turn",
            Unit::Seconds,
            next.clone(),
        );
        registry.register(
            "requests",
            "Requests whose answer has been sent, by method, status and outcome",
            requests.clone(),
        );
        registry.register_with_unit(
            "request_duration",
            "Time from a request to the end of its answer, by method",
            Unit::Seconds,
            durations.clone(),
        );
        registry.register(
            "prompt_tokens",
            "Tokens of the prompts of all requests",
            prompt_tokens.clone(),
        );
        registry.register(
            "cached_prompt_tokens",
            "Tokens of prompts that the prefix cache had",
            cached_tokens.clone(),
        );
        registry.register(
            "errors",
            "Requests that were rejected or failed, by error code",
            errors.clone(),
        );
        Arc::new(Metrics {
            registry,
            queue,
            first,
            next,
            requests,
            durations,
            prompt_tokens,
            cached_tokens,
            errors,
            connections: AtomicU64::new(0),
            answered: AtomicU64::new(0),
        })
    }

    /// Latency histograms of a model.
    pub fn latency(&self, model: &str) -> Latency {
        let labels = ModelLabel {
            model: model.to_owned(),
        };
        Latency {
            queue: self.queue.get_or_create_owned(&labels),
            first: self.first.get_or_create_owned(&labels),
            next: self.next.get_or_create_owned(&labels),
        }
    }

    /// Counts a connection as open until the returned guard is dropped.
    pub fn connection_opened(&self) -> OpenConnection<'_> {
        self.connections.fetch_add(1, Ordering::Relaxed);
        OpenConnection(&self.connections)
    }

    /// Number of connections that are open now.
    pub fn open_connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    /// Counts a request that has arrived.
    pub fn request_started(&self) {
        self.answered.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a request whose answer has been sent.
    pub fn request_ended(
        &self,
        method: &'static str,
        status: u16,
        outcome: &'static str,
        took: Duration,
    ) {
        let label = RequestLabel {
            method,
            status,
            outcome,
        };
        self.requests.get_or_create(&label).inc();
        let duration = self.durations.get_or_create(&MethodLabel { method });
        duration.observe(took.as_secs_f64());
    }

    /// Counts the prompt tokens of a request, and those of them that the prefix cache had.
    pub fn add_prompt_tokens(&self, all: u64, cached: u64) {
        self.prompt_tokens.inc_by(all);
        self.cached_tokens.inc_by(cached);
    }

    /// Counts an error.
    pub fn error(&self, code: ErrorCode) {
        let kind = code.name();
        self.errors.get_or_create(&ErrorLabel { kind }).inc();
    }

    /// Writes all metrics as text.
    pub fn text(
        &self,
        readings: Vec<ModelReading>,
        is_ready: bool,
        format: MetricsFormat,
    ) -> String {
        let mut now = Registry::with_prefix("djinn");
        let connections = self.open_connections();
        now.register_collector(Box::new(ReadingCollector {
            connections,
            is_ready,
            readings,
        }));
        let mut process = Registry::with_prefix("process");
        process.register_collector(Box::new(ProcessCollector));
        let mut out = String::new();
        // Encoding into a string does not fail.
        for registry in [&self.registry, &now, &process] {
            let _ = text::encode_registry(&mut out, registry);
        }
        let _ = text::encode_eof(&mut out);
        format.convert(out)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use djinn_wire::ErrorCode;

    use super::{EngineSnapshot, Metrics, MetricsFormat, ModelReading, PassTotals};

    #[test]
    fn metrics_are_written_in_openmetrics_format() {
        let metrics = Metrics::new();
        metrics.error(ErrorCode::NotFound);
        metrics.request_ended("chat", 200, "ok", Duration::from_millis(3));
        metrics.add_prompt_tokens(5, 2);
        metrics.latency("m").first.observe(0.01);
        let reading = ModelReading {
            model: "m".to_owned(),
            snapshot: EngineSnapshot {
                totals: PassTotals {
                    tokens: 7,
                    link_bytes: 50,
                    link_s: 0.5,
                    ..PassTotals::default()
                },
                ..EngineSnapshot::default()
            },
            queued_jobs: 0,
            busy_for: Duration::ZERO,
            ring_bytes: 0,
            link_ceiling: 200.0,
            page_bytes: 1,
            page_tokens: 1,
        };
        let text = metrics.text(vec![reading], true, MetricsFormat::OpenMetrics);
        for line in [
            "djinn_ready{} 1.0",
            "djinn_prompt_tokens_total 5",
            "djinn_request_duration_seconds_count{method=\"chat\"} 1",
            "process_resident_memory_bytes ",
            "process_open_fds ",
            "djinn_errors_total{kind=\"not-found\"} 1",
            "djinn_requests_total{method=\"chat\",status=\"200\",outcome=\"ok\"} 1",
            "djinn_tokens_total{model=\"m\"} 7.0",
            "djinn_link_share{model=\"m\"} 0.5",
            "djinn_kv_pages{model=\"m\",tier=\"disk\"} 0.0",
            "djinn_sessions{model=\"m\",state=\"paused\"} 0.0",
            "djinn_first_token_seconds_count{model=\"m\"} 1",
        ] {
            assert!(text.contains(line), "missing {line} in\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
    }

    /// Text of all metrics of a server with one model.
    fn everything() -> String {
        let metrics = Metrics::new();
        metrics.error(ErrorCode::NotFound);
        metrics.request_ended("chat", 200, "ok", Duration::from_millis(3));
        let latency = metrics.latency("m");
        for histogram in [&latency.queue, &latency.first, &latency.next] {
            histogram.observe(0.01);
        }
        let reading = ModelReading {
            model: "m".to_owned(),
            snapshot: EngineSnapshot::default(),
            queued_jobs: 0,
            busy_for: Duration::ZERO,
            ring_bytes: 0,
            link_ceiling: 0.0,
            page_bytes: 1,
            page_tokens: 1,
        };
        metrics.text(vec![reading], true, MetricsFormat::Prometheus)
    }

    #[test]
    fn dashboards_and_alerts_use_metrics_that_exist() {
        let text = everything();
        let deploy = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
        let mut count = 0;
        for file in ["grafana-dashboard.json", "alerts.yml"] {
            let content = std::fs::read_to_string(deploy.join(file)).expect(file);
            let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let words = content.split(|c| !is_name(c));
            for name in words.filter(|w| w.starts_with("djinn_") || w.starts_with("process_")) {
                assert!(text.contains(name), "{file} uses {name}");
                count += 1;
            }
        }
        assert!(count > 30, "the files use {count} metrics");
    }
}
