//! Figures of a server from two readings: sizes of the later one, and rates between both.

use std::collections::BTreeMap;

use djinn_client::v1;

/// Figures of a server.
pub struct Figures {
    /// Name of the server.
    pub node: String,
    /// Device of the server.
    pub device: String,
    /// Version of the server.
    pub version: String,
    /// Seconds since the server started.
    pub uptime_s: f64,
    /// Number of open connections.
    pub connections: u64,
    /// Requests per second.
    pub requests_per_s: f64,
    /// Resident memory of the server's process.
    pub rss_bytes: u64,
    /// Figures of every model.
    pub models: Vec<ModelFigures>,
}

/// Figures of one model.
pub struct ModelFigures {
    /// Name of the model.
    pub name: String,
    /// Load state of the model.
    pub state: &'static str,
    /// One sentence on which weights are resident and which stream.
    pub routing: String,
    /// Memory of the model, by purpose.
    pub memory: v1::ModelMemory,
    /// Generated tokens per second.
    pub tokens_per_s: f64,
    /// Passes per second.
    pub passes_per_s: f64,
    /// Share of the time in which passes ran.
    pub busy: f64,
    /// Bytes per second over the link while passes ran; zero if no weights stream.
    pub link: f64,
    /// Share of the link's measured bandwidth, if known.
    pub link_share: Option<f64>,
    /// Share of the passes' time spent waiting for weights.
    pub stalled: f64,
    /// KV pages by tier.
    pub tiers: Vec<TierFigures>,
    /// Bytes of KV pages per second that leave the device.
    pub paged_out: f64,
    /// Bytes of KV pages per second that return to the device.
    pub paged_in: f64,
    /// Number of sessions by state.
    pub sessions: BTreeMap<String, u64>,
    /// Prompt tokens found in the prefix cache since the model was loaded.
    pub adopted: u64,
    /// Share of prompts of which the prefix cache had a part, since the model was loaded.
    pub prefix_hits: f64,
}

/// KV pages in one tier.
pub struct TierFigures {
    /// Name of the tier.
    pub name: &'static str,
    /// Number of pages in use.
    pub pages: u64,
    /// Number of pages that fit.
    pub room: u64,
    /// Bytes of the pages in use.
    pub bytes: u64,
    /// Number of pages that only the prefix cache holds.
    pub cached: u64,
}

/// Name of a model's load state.
pub fn model_state(model: &v1::Model) -> &'static str {
    match v1::ModelState::try_from(model.state) {
        Ok(v1::ModelState::Unloaded) => "unloaded",
        Ok(v1::ModelState::Loading) => "loading",
        Ok(v1::ModelState::Ready) => "ready",
        Ok(v1::ModelState::Failed) => "failed",
        Ok(v1::ModelState::SwappedOut) => "swapped out",
        _ => "unknown",
    }
}

/// Increase per unit of time; zero without time.
fn rate(more: f64, over: f64) -> f64 {
    if over > 0.0 {
        more.max(0.0) / over
    } else {
        0.0
    }
}

impl Figures {
    /// Figures between two readings; without the first one, rates are zero.
    pub fn between(
        server: &v1::CapabilitiesReply,
        before: Option<&v1::Status>,
        now: &v1::Status,
    ) -> Self {
        let over = before.map_or(0.0, |before| now.uptime_s - before.uptime_s);
        let requests = before.map_or(0, |before| now.requests.saturating_sub(before.requests));
        let of = |model: &v1::ModelStatus| {
            let name = name(model);
            let mut before = before.iter().flat_map(|before| &before.models);
            let before = before.find(|before| self::name(before) == name);
            // A model that was loaded again counts from zero.
            let before = before.filter(|before| before.passes <= model.passes);
            ModelFigures::between(before, model, over)
        };
        Figures {
            node: server.node.clone(),
            device: server.device.clone(),
            version: server.version.clone(),
            uptime_s: now.uptime_s,
            connections: now.connections,
            requests_per_s: rate(requests as f64, over),
            rss_bytes: now.rss_bytes,
            models: now.models.iter().map(of).collect(),
        }
    }
}

fn name(model: &v1::ModelStatus) -> &str {
    model.model.as_ref().map_or("", |model| &model.name)
}

impl ModelFigures {
    fn between(before: Option<&v1::ModelStatus>, now: &v1::ModelStatus, over: f64) -> Self {
        let zero = v1::ModelStatus::default();
        // Without an earlier reading there are no rates.
        let (was, over) = match before {
            Some(before) => (before, over),
            None => (&zero, 0.0),
        };
        let more = |now: u64, was: u64| now.saturating_sub(was) as f64;
        let busy_s = match before {
            Some(was) => now.busy_s - was.busy_s,
            None => 0.0,
        };
        let link = rate(more(now.link_bytes, was.link_bytes), busy_s);
        let model = now.model.clone().unwrap_or_default();
        ModelFigures {
            state: model_state(&model),
            memory: model.memory.unwrap_or_default(),
            tokens_per_s: rate(more(now.tokens, was.tokens), over),
            passes_per_s: rate(more(now.passes, was.passes), over),
            busy: rate(busy_s, over).min(1.0),
            link,
            link_share: (now.link_ceiling > 0.0 && link > 0.0).then(|| link / now.link_ceiling),
            stalled: rate(now.stalled_s - was.stalled_s, busy_s).min(1.0),
            tiers: tiers(now),
            paged_out: rate(more(now.paged_out_bytes, was.paged_out_bytes), over),
            paged_in: rate(more(now.paged_in_bytes, was.paged_in_bytes), over),
            sessions: now.sessions.clone().into_iter().collect(),
            adopted: now.adopted_tokens,
            prefix_hits: rate(now.prefix_hits as f64, now.prefix_lookups as f64),
            name: model.name,
            routing: model.routing,
        }
    }
}

fn tiers(now: &v1::ModelStatus) -> Vec<TierFigures> {
    let all = [
        ("device", now.device),
        ("host", now.host),
        ("disk", now.disk),
    ];
    let some = all
        .into_iter()
        .filter_map(|(name, tier)| Some((name, tier?)));
    let tier = |(name, tier): (&'static str, v1::TierPages)| TierFigures {
        name,
        pages: tier.used,
        room: tier.total,
        bytes: tier.used * tier.page_bytes,
        cached: tier.cached,
    };
    some.map(tier).collect()
}

#[cfg(test)]
pub mod tests {
    use djinn_client::v1;

    use super::Figures;

    /// Server whose model keeps this many bytes of its weights on the device, and the rest of 4 GB of
    /// weights and KV pages to KV pages.
    pub fn divided(resident_bytes: u64) -> Figures {
        let memory = v1::ModelMemory {
            resident_bytes,
            kv_bytes: 4_000_000_000 - resident_bytes,
            total_bytes: 4_000_000_000,
            streamed_bytes: 3_000_000_000 - resident_bytes,
            ..v1::ModelMemory::default()
        };
        let model = v1::Model {
            name: "elastic".to_owned(),
            state: v1::ModelState::Ready.into(),
            memory: Some(memory),
            ..v1::Model::default()
        };
        let now = v1::Status {
            models: vec![v1::ModelStatus {
                model: Some(model),
                ..v1::ModelStatus::default()
            }],
            ..v1::Status::default()
        };
        Figures::between(&v1::CapabilitiesReply::default(), None, &now)
    }

    /// Server that generated 50 tokens in half a second, and streamed a billion bytes for them.
    pub fn example() -> Figures {
        let model = |tokens, bytes, busy_s| v1::ModelStatus {
            model: Some(v1::Model {
                name: "big".to_owned(),
                state: v1::ModelState::Ready.into(),
                routing: "most of it streams".to_owned(),
                memory: Some(v1::ModelMemory {
                    resident_bytes: 3_000_000_000,
                    ring_bytes: 1_000_000_000,
                    kv_bytes: 500_000_000,
                    total_bytes: 5_000_000_000,
                    host_bytes: 20_000_000_000,
                    ..v1::ModelMemory::default()
                }),
                ..v1::Model::default()
            }),
            tokens,
            passes: tokens,
            busy_s,
            link_bytes: bytes,
            stalled_s: busy_s / 2.0,
            link_ceiling: 8e9,
            device: Some(v1::TierPages {
                used: 3,
                total: 10,
                page_bytes: 1_000_000,
                page_tokens: 16,
                cached: 2,
            }),
            sessions: [("running".to_owned(), 2), ("done".to_owned(), 0)].into(),
            ..v1::ModelStatus::default()
        };
        let at = |uptime_s, model| v1::Status {
            uptime_s,
            models: vec![model],
            ..v1::Status::default()
        };
        let (before, now) = (
            at(100.0, model(100, 0, 10.0)),
            at(100.5, model(150, 1_000_000_000, 10.25)),
        );
        Figures::between(&v1::CapabilitiesReply::default(), Some(&before), &now)
    }

    #[test]
    fn rates_are_differences() {
        let figures = example();
        let model = &figures.models[0];
        assert_eq!((model.tokens_per_s, model.busy), (100.0, 0.5));
        assert_eq!((model.link, model.link_share), (4e9, Some(0.5)));
        assert_eq!(
            (model.stalled, model.sessions().as_str()),
            (0.5, "2 running")
        );
        let text = figures.text();
        for part in ["big", "4.00", "50 %", "100.0", "3.0 MB", "2 running"] {
            assert!(text.contains(part), "'{part}' is not in {text}");
        }
        assert_eq!(figures.json()["models"][0]["share_of_link"], 0.5);
    }

    #[test]
    fn one_reading_has_no_rates() {
        let now = v1::Status {
            models: vec![v1::ModelStatus {
                tokens: 5,
                busy_s: 3.0,
                ..v1::ModelStatus::default()
            }],
            ..v1::Status::default()
        };
        let figures = Figures::between(&v1::CapabilitiesReply::default(), None, &now);
        let model = &figures.models[0];
        assert_eq!(
            (model.tokens_per_s, model.busy, model.link_share),
            (0.0, 0.0, None)
        );
    }
}
