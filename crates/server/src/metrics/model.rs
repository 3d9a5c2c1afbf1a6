//! Metrics of loaded models, read when Prometheus scrapes.

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{counter::ConstCounter, gauge::ConstGauge},
};

use super::snapshot::ModelReading;

/// Collector of gauges and counters that are read when Prometheus scrapes.
#[derive(Debug)]
pub struct ReadingCollector {
    /// Number of open connections.
    pub connections: u64,
    /// Whether the server is ready for requests.
    pub is_ready: bool,
    /// State of every loaded model.
    pub readings: Vec<ModelReading>,
}

/// Labels of one sample.
type Labels = Vec<(&'static str, String)>;

/// Writes all samples of one metric.
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

impl Collector for ReadingCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        for (name, help, value) in [
            ("connections", "Open connections", self.connections as f64),
            (
                "ready",
                "Whether the server is ready for requests",
                f64::from(self.is_ready),
            ),
        ] {
            let values = [(Labels::new(), value)];
            write_family(&mut encoder, (name, help), false, &values)?;
        }
        for (name, help, is_counter, read) in METRICS {
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

/// Callback that adds a sample with labels in addition to the model's name.
type AddSample<'a> = dyn FnMut(&[(&'static str, &str)], f64) + 'a;
/// Metric: name, description, whether the value only grows, and the function that reads it.
type ModelMetric = (
    &'static str,
    &'static str,
    bool,
    fn(&ModelReading, &mut AddSample<'_>),
);

/// Metrics of every loaded model.
const METRICS: &[ModelMetric] = &[
    ("passes", "Passes through the model", true, |r, add| {
        add(&[], r.snapshot.totals.passes as f64);
    }),
    (
        "rows",
        "Rows (tokens) computed in passes, prompts included",
        true,
        |r, add| {
            add(&[], r.snapshot.totals.rows as f64);
        },
    ),
    ("tokens", "Tokens generated", true, |r, add| {
        add(&[], r.snapshot.totals.tokens as f64);
    }),
    (
        "adopted_tokens",
        "Prompt tokens taken from the prefix cache",
        true,
        |r, add| {
            add(&[], r.snapshot.prefix.tokens_reused as f64);
        },
    ),
    (
        "prefix_lookups",
        "Prompts looked up in the prefix cache",
        true,
        |r, add| {
            add(&[], r.snapshot.prefix.lookups as f64);
        },
    ),
    (
        "prefix_hits",
        "Prompts of which the prefix cache had a part",
        true,
        |r, add| {
            add(&[], r.snapshot.prefix.hits as f64);
        },
    ),
    (
        "prefix_evicted_pages",
        "Pages that left the prefix cache because their room was needed",
        true,
        |r, add| {
            add(&[], r.snapshot.prefix.pages_evicted as f64);
        },
    ),
    (
        "prefix_cache_bytes",
        "Bytes of pages that only the prefix cache holds; they count as free",
        false,
        |r, add| {
            let prefix = &r.snapshot.prefix;
            add(&[("tier", "device")], prefix.device_bytes as f64);
            add(&[("tier", "host")], prefix.host_bytes as f64);
            add(&[("tier", "disk")], prefix.disk_bytes as f64);
        },
    ),
    ("pass_seconds", "Time spent in passes", true, |r, add| {
        add(&[], r.snapshot.totals.busy_s);
    }),
    (
        "link_bytes",
        "Bytes of weights transferred to the device",
        true,
        |r, add| {
            add(&[], r.snapshot.totals.link_bytes as f64);
        },
    ),
    (
        "link_stall_seconds",
        "Time that passes waited for weights",
        true,
        |r, add| {
            add(&[], r.snapshot.totals.stalled_s);
        },
    ),
    (
        "link_bytes_per_second",
        "Transfer rate of weights while a transfer runs",
        false,
        |r, add| {
            add(&[], rate(r));
        },
    ),
    (
        "link_share",
        "Transfer rate of weights as a share of the link's measured bandwidth",
        false,
        |r, add| {
            if r.link_ceiling > 0.0 {
                add(&[], rate(r) / r.link_ceiling);
            }
        },
    ),
    (
        "ring_bytes",
        "Size of the ring that weights stream through",
        false,
        |r, add| {
            add(&[], r.ring_bytes as f64);
        },
    ),
    (
        "resident_bytes",
        "Bytes of weights that stay on the device now",
        false,
        |r, add| add(&[], r.snapshot.split.resident_bytes as f64),
    ),
    (
        "streamed_bytes",
        "Bytes of weights that stream in each pass now",
        false,
        |r, add| add(&[], r.snapshot.split.streamed_bytes as f64),
    ),
    (
        "memory_switches",
        "Changes of the division of device memory between weights and KV pages",
        true,
        |r, add| add(&[], r.snapshot.split.switches as f64),
    ),
    (
        "on_device",
        "Whether the model holds device memory; 0 if it has left the device for another model",
        false,
        |r, add| add(&[], f64::from(!r.snapshot.is_swapped_out)),
    ),
    (
        "swaps",
        "Times that the model left the device for another one",
        true,
        |r, add| add(&[], r.snapshot.totals.swaps as f64),
    ),
    (
        "swaps_refused",
        "Times that the model stayed on the device because host memory had no room for its KV pages",
        true,
        |r, add| add(&[], r.snapshot.totals.swaps_refused as f64),
    ),
    (
        "ring_occupancy",
        "Share of pass time in which no pass waited for weights",
        false,
        |r, add| {
            if r.ring_bytes > 0 && r.snapshot.totals.busy_s > 0.0 {
                add(
                    &[],
                    1.0 - (r.snapshot.totals.stalled_s / r.snapshot.totals.busy_s).min(1.0),
                );
            }
        },
    ),
    (
        "kv_pages",
        "KV pages that sessions hold, by memory tier",
        false,
        |r, add| {
            for (tier, pages) in tiers(r) {
                add(&[("tier", tier)], pages.used as f64);
            }
        },
    ),
    (
        "kv_pages_room",
        "Capacity in KV pages, by memory tier",
        false,
        |r, add| {
            for (tier, pages) in tiers(r) {
                add(&[("tier", tier)], pages.total as f64);
            }
        },
    ),
    (
        "kv_bytes",
        "Bytes of KV cache that sessions hold, by memory tier",
        false,
        |r, add| {
            for (tier, pages) in tiers(r) {
                add(&[("tier", tier)], pages.used as f64 * r.page_bytes as f64);
            }
        },
    ),
    (
        "paged_bytes",
        "Bytes of KV cache moved between memory tiers, by direction",
        true,
        |r, add| {
            let paged = &r.snapshot.paged;
            let ways = [
                ("to-host", paged.copied_out),
                ("to-device", paged.copied_in),
                ("to-window", paged.streamed),
                ("to-disk", paged.spilled),
                ("from-disk", paged.fetched),
            ];
            for (way, traffic) in ways {
                add(&[("way", way)], traffic.bytes as f64);
            }
        },
    ),
    ("sessions", "Open sessions, by state", false, |r, add| {
        for state in ["ready", "running", "waiting", "paused", "done"] {
            let count = r.snapshot.sessions.get(state).copied().unwrap_or(0);
            add(&[("state", state)], count as f64);
        }
    }),
    ("passes_failed", "Passes that failed", true, |r, add| {
        add(&[], r.snapshot.totals.failed as f64);
    }),
    (
        "queue_requests",
        "Requests that wait for a free session",
        false,
        |r, add| {
            add(&[], r.snapshot.waiting as f64);
        },
    ),
    (
        "queue_jobs",
        "Jobs that wait for the engine thread",
        false,
        |r, add| {
            add(&[], r.queued_jobs as f64);
        },
    ),
    (
        "engine_busy_seconds",
        "Time that the engine thread has spent on its current pass or job",
        false,
        |r, add| {
            add(&[], r.busy_for.as_secs_f64());
        },
    ),
    ("sessions_ended", "Sessions that ended", true, |r, add| {
        add(&[], r.snapshot.totals.ended as f64);
    }),
];

fn rate(reading: &ModelReading) -> f64 {
    match reading.snapshot.totals.link_s > 0.0 {
        true => reading.snapshot.totals.link_bytes as f64 / reading.snapshot.totals.link_s,
        false => 0.0,
    }
}

fn tiers(reading: &ModelReading) -> [(&'static str, djinn_engine::TierUsage); 3] {
    let pages = &reading.snapshot.pages;
    [
        ("device", pages.device),
        ("host", pages.host),
        ("disk", pages.disk),
    ]
}
