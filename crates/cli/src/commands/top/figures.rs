//! What two looks at a server come to: sizes as they are, rates between them.

use std::collections::BTreeMap;

use djinn_client::v1;

use crate::commands::models::state;

/// A server as it stands.
pub struct Figures {
    pub node: String,
    pub device: String,
    pub version: String,
    pub uptime_s: f64,
    pub connections: u64,
    pub requests_per_s: f64,
    pub rss_bytes: u64,
    pub models: Vec<ModelFigures>,
}

/// One of its models.
pub struct ModelFigures {
    pub name: String,
    pub state: &'static str,
    pub routing: String,
    pub memory: v1::ModelMemory,
    pub tokens_per_s: f64,
    pub passes_per_s: f64,
    /// Share of the time in which passes ran.
    pub busy: f64,
    /// Over the link while passes ran, in bytes a second; none where nothing streams.
    pub link: f64,
    /// Of what the link gives alone, where that is known.
    pub link_share: Option<f64>,
    /// Share of the passes' time that they waited for weights.
    pub stalled: f64,
    pub tiers: Vec<Tier>,
    /// Pages of KV on their way, in bytes a second.
    pub paged_out: f64,
    pub paged_in: f64,
    pub sessions: BTreeMap<String, u64>,
    /// Tokens that were not computed because another session had, since the model was loaded.
    pub adopted: u64,
}

/// KV in one tier.
pub struct Tier {
    pub name: &'static str,
    pub pages: u64,
    pub room: u64,
    pub bytes: u64,
}

/// A difference over a difference.
fn rate(more: f64, over: f64) -> f64 {
    if over > 0.0 {
        more.max(0.0) / over
    } else {
        0.0
    }
}

impl Figures {
    /// What became of a server from one look to the next.
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
            // One that was loaded anew counts from nothing.
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
        // Without a look before there are no rates yet.
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
            state: state(&model),
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
            name: model.name,
            routing: model.routing,
        }
    }
}

fn tiers(now: &v1::ModelStatus) -> Vec<Tier> {
    let all = [
        ("device", now.device),
        ("host", now.host),
        ("disk", now.disk),
    ];
    let some = all
        .into_iter()
        .filter_map(|(name, tier)| Some((name, tier?)));
    let tier = |(name, tier): (&'static str, v1::TierPages)| Tier {
        name,
        pages: tier.used,
        room: tier.total,
        bytes: tier.used * tier.page_bytes,
    };
    some.map(tier).collect()
}

#[cfg(test)]
pub mod tests {
    use djinn_client::v1;

    use super::Figures;

    /// A server that generated 50 tokens in half a second, and streamed a billion bytes for them.
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
    fn one_look_has_no_rates() {
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
