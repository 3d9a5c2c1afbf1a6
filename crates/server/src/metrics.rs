//! What Prometheus reads.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, text},
    metrics::{
        counter::{ConstCounter, Counter},
        family::Family,
        gauge::ConstGauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::{Registry, Unit},
};

use crate::{error::Kind, host::Snapshot};

/// Latencies of one model's sessions.
pub struct Latency {
    /// From when a turn was asked for to when it came.
    pub queue: Histogram,
    /// From when a turn was asked for to its first token.
    pub first: Histogram,
    /// From one token to the next.
    pub next: Histogram,
}

/// Everything that is counted as it happens.
pub struct Metrics {
    registry: Registry,
    queue: Family<OfModel, Histogram>,
    first: Family<OfModel, Histogram>,
    next: Family<OfModel, Histogram>,
    requests: Family<OfRequest, Counter>,
    errors: Family<OfError, Counter>,
    /// Connections that are open now.
    pub connections: AtomicU64,
    /// Requests since the start.
    pub answered: AtomicU64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfModel {
    model: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfRequest {
    method: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfError {
    kind: &'static str,
}

/// How a model stands, for whoever reads metrics.
pub struct Reading {
    /// Which.
    pub model: String,
    /// How its engine stands.
    pub snapshot: Snapshot,
    /// Bytes of the ring, and what the link gives alone, in bytes a second, where that is known.
    pub ring_bytes: u64,
    /// That.
    pub link_ceiling: f64,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Tokens that it has room for.
    pub page_tokens: u64,
}

fn histogram() -> Histogram {
    // From a tenth of a millisecond to a minute and a half.
    Histogram::new(exponential_buckets(1e-4, 2.0, 20))
}

impl Metrics {
    /// Nothing counted yet.
    pub fn new() -> Arc<Self> {
        let mut registry = Registry::with_prefix("djinn");
        let queue = Family::<OfModel, Histogram>::new_with_constructor(histogram);
        let first = Family::<OfModel, Histogram>::new_with_constructor(histogram);
        let next = Family::<OfModel, Histogram>::new_with_constructor(histogram);
        let requests = Family::default();
        let errors = Family::default();
        registry.register_with_unit(
            "queue",
            "From when a turn was asked for to when it came",
            Unit::Seconds,
            queue.clone(),
        );
        registry.register_with_unit(
            "first_token",
            "From when a turn was asked for to its first token: queue and prompt",
            Unit::Seconds,
            first.clone(),
        );
        registry.register_with_unit(
            "next_token",
            "From one token of a session to its next",
            Unit::Seconds,
            next.clone(),
        );
        registry.register("requests", "Requests by method", requests.clone());
        registry.register(
            "errors",
            "Requests that were refused or failed, by kind",
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

    /// The latencies of a model.
    pub fn latency(&self, model: &str) -> Latency {
        let labels = OfModel {
            model: model.to_owned(),
        };
        Latency {
            queue: self.queue.get_or_create_owned(&labels),
            first: self.first.get_or_create_owned(&labels),
            next: self.next.get_or_create_owned(&labels),
        }
    }

    /// Counts a request.
    pub fn request(&self, method: &'static str) {
        self.answered.fetch_add(1, Ordering::Relaxed);
        self.requests.get_or_create(&OfRequest { method }).inc();
    }

    /// Counts an error.
    pub fn error(&self, kind: Kind) {
        let kind = kind.name();
        self.errors.get_or_create(&OfError { kind }).inc();
    }

    /// All of it, as Prometheus reads it.
    pub fn text(&self, readings: Vec<Reading>) -> String {
        let mut now = Registry::with_prefix("djinn");
        let connections = self.connections.load(Ordering::Relaxed);
        now.register_collector(Box::new(Now {
            connections,
            readings,
        }));
        let mut out = String::new();
        // Writing to a string does not fail.
        let _ = text::encode_registry(&mut out, &self.registry);
        let _ = text::encode_registry(&mut out, &now);
        let _ = text::encode_eof(&mut out);
        out
    }
}

/// What is read when it is asked for.
#[derive(Debug)]
struct Now {
    connections: u64,
    readings: Vec<Reading>,
}

impl std::fmt::Debug for Reading {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.model)
    }
}

type Labels = Vec<(&'static str, String)>;

/// One number of every model, or of some things of it.
fn write_family(
    encoder: &mut DescriptorEncoder<'_>,
    (name, help): (&str, &str),
    is_counter: bool,
    values: &[(Labels, f64)],
) -> std::fmt::Result {
    let zero = ConstGauge::new(0.0f64);
    let kind = match is_counter {
        true => ConstCounter::new(0.0f64).metric_type(),
        false => zero.metric_type(),
    };
    let mut family = encoder.encode_descriptor(name, help, None, kind)?;
    for (labels, value) in values {
        let encoder = family.encode_family(labels)?;
        match is_counter {
            true => ConstCounter::new(*value).encode(encoder)?,
            false => ConstGauge::new(*value).encode(encoder)?,
        }
    }
    Ok(())
}

impl Collector for Now {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let open = [(Labels::new(), self.connections as f64)];
        write_family(
            &mut encoder,
            ("connections", "Connections that are open"),
            false,
            &open,
        )?;
        for (name, help, is_counter, read) in NUMBERS {
            let mut values: Vec<(Labels, f64)> = Vec::new();
            for reading in &self.readings {
                let mut add = |more: &[(&'static str, &str)], value: f64| {
                    let mut labels = vec![("model", reading.model.clone())];
                    labels.extend(more.iter().map(|(k, v)| (*k, (*v).to_owned())));
                    values.push((labels, value));
                };
                read(reading, &mut add);
            }
            write_family(&mut encoder, (name, help), *is_counter, &values)?;
        }
        Ok(())
    }
}

type Add<'a> = dyn FnMut(&[(&'static str, &str)], f64) + 'a;
type Number = (&'static str, &'static str, bool, fn(&Reading, &mut Add<'_>));

/// Every number of a model: its name, what it is, whether it only grows, and where it is read.
const NUMBERS: &[Number] = &[
    (
        "passes",
        "Trips of a batch through the model",
        true,
        |r, add| {
            add(&[], r.snapshot.passes as f64);
        },
    ),
    (
        "rows",
        "Tokens that went through the model",
        true,
        |r, add| {
            add(&[], r.snapshot.rows as f64);
        },
    ),
    ("tokens", "Tokens generated", true, |r, add| {
        add(&[], r.snapshot.tokens as f64);
    }),
    (
        "adopted_tokens",
        "Tokens not computed because another session had",
        true,
        |r, add| {
            add(&[], r.snapshot.adopted as f64);
        },
    ),
    (
        "pass_seconds",
        "Seconds in which passes ran",
        true,
        |r, add| {
            add(&[], r.snapshot.busy_s);
        },
    ),
    (
        "link_bytes",
        "Bytes of weights that came over the link",
        true,
        |r, add| {
            add(&[], r.snapshot.link_bytes as f64);
        },
    ),
    (
        "link_stall_seconds",
        "Seconds that passes waited for weights",
        true,
        |r, add| {
            add(&[], r.snapshot.stalled_s);
        },
    ),
    (
        "link_bytes_per_second",
        "Rate of the link while something moved",
        false,
        |r, add| {
            add(&[], rate(r));
        },
    ),
    (
        "link_share",
        "That rate as a share of what the link gives alone",
        false,
        |r, add| {
            if r.link_ceiling > 0.0 {
                add(&[], rate(r) / r.link_ceiling);
            }
        },
    ),
    (
        "ring_bytes",
        "Bytes of the ring that weights stream through",
        false,
        |r, add| {
            add(&[], r.ring_bytes as f64);
        },
    ),
    (
        "ring_occupancy",
        "Share of passes' time in which the ring had what was needed",
        false,
        |r, add| {
            if r.ring_bytes > 0 && r.snapshot.busy_s > 0.0 {
                add(
                    &[],
                    1.0 - (r.snapshot.stalled_s / r.snapshot.busy_s).min(1.0),
                );
            }
        },
    ),
    (
        "kv_pages",
        "Pages of KV that sessions hold, by tier",
        false,
        |r, add| {
            for (tier, pages) in tiers(r) {
                add(&[("tier", tier)], pages.used as f64);
            }
        },
    ),
    (
        "kv_pages_room",
        "Pages of KV there is room for, by tier",
        false,
        |r, add| {
            for (tier, pages) in tiers(r) {
                add(&[("tier", tier)], pages.total as f64);
            }
        },
    ),
    (
        "kv_bytes",
        "Bytes of KV that sessions hold, by tier",
        false,
        |r, add| {
            for (tier, pages) in tiers(r) {
                add(&[("tier", tier)], pages.used as f64 * r.page_bytes as f64);
            }
        },
    ),
    (
        "paged_bytes",
        "Bytes of KV that moved, by way",
        true,
        |r, add| {
            let paged = &r.snapshot.paged;
            let ways = [
                ("to-host", paged.copied_out),
                ("to-device", paged.copied_in),
                ("to-disk", paged.spilled),
                ("from-disk", paged.fetched),
            ];
            for (way, traffic) in ways {
                add(&[("way", way)], traffic.bytes as f64);
            }
        },
    ),
    (
        "sessions",
        "Sessions that are open, by state",
        false,
        |r, add| {
            for state in ["ready", "running", "waiting", "paused", "done"] {
                let count = r.snapshot.sessions.get(state).copied().unwrap_or(0);
                add(&[("state", state)], count as f64);
            }
        },
    ),
    (
        "sessions_ended",
        "Sessions that are over",
        true,
        |r, add| {
            add(&[], r.snapshot.ended as f64);
        },
    ),
];

fn rate(reading: &Reading) -> f64 {
    match reading.snapshot.link_s > 0.0 {
        true => reading.snapshot.link_bytes as f64 / reading.snapshot.link_s,
        false => 0.0,
    }
}

fn tiers(reading: &Reading) -> [(&'static str, djinn_engine::TierUsage); 3] {
    let pages = &reading.snapshot.pages;
    [
        ("device", pages.device),
        ("host", pages.host),
        ("disk", pages.disk),
    ]
}

#[cfg(test)]
mod tests {
    use super::{Metrics, Reading};
    use crate::{error::Kind, host::Snapshot};

    #[test]
    fn what_is_read() {
        let metrics = Metrics::new();
        metrics.error(Kind::NotFound);
        metrics.request("chat");
        metrics.latency("m").first.observe(0.01);
        let reading = Reading {
            model: "m".to_owned(),
            snapshot: Snapshot {
                tokens: 7,
                link_bytes: 50,
                link_s: 0.5,
                ..Snapshot::default()
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
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
    }
}
