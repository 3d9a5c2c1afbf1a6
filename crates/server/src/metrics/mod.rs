//! Prometheus metrics: counters of requests, latency histograms, and the state of loaded models.

mod model;
mod snapshot;

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
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

use self::model::ReadingCollector;

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
    requests: Family<MethodLabel, Counter>,
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
        let requests = Family::default();
        let errors = Family::default();
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
        registry.register("requests", "Requests by method", requests.clone());
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

    /// Counts a request.
    pub fn request(&self, method: &'static str) {
        self.answered.fetch_add(1, Ordering::Relaxed);
        self.requests.get_or_create(&MethodLabel { method }).inc();
    }

    /// Counts an error.
    pub fn error(&self, code: ErrorCode) {
        let kind = code.name();
        self.errors.get_or_create(&ErrorLabel { kind }).inc();
    }

    /// Writes all metrics in the OpenMetrics text format.
    pub fn text(&self, readings: Vec<ModelReading>) -> String {
        let mut now = Registry::with_prefix("djinn");
        let connections = self.open_connections();
        now.register_collector(Box::new(ReadingCollector {
            connections,
            readings,
        }));
        let mut out = String::new();
        // Encoding into a string does not fail.
        let _ = text::encode_registry(&mut out, &self.registry);
        let _ = text::encode_registry(&mut out, &now);
        let _ = text::encode_eof(&mut out);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::{EngineSnapshot, Metrics, ModelReading, PassTotals};
    use djinn_wire::ErrorCode;

    #[test]
    fn metrics_are_written_in_openmetrics_format() {
        let metrics = Metrics::new();
        metrics.error(ErrorCode::NotFound);
        metrics.request("chat");
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
            ring_bytes: 0,
            link_ceiling: 200.0,
            page_bytes: 1,
            page_tokens: 1,
        };
        let text = metrics.text(vec![reading]);
        for line in [
            "djinn_errors_total{kind=\"not-found\"} 1",
            "djinn_requests_total{method=\"chat\"} 1",
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
}
