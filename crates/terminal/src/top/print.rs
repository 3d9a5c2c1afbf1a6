//! Figures of a server as a line, a table, and JSON.

use std::collections::BTreeMap;

use djinn_types::{
    Size,
    text::{seconds, table},
};
use serde_json::{Value, json};

use super::figures::{Figures, ModelFigures};

impl Figures {
    /// Line about the server.
    pub fn head(&self) -> String {
        format!(
            "{} · djinn {} on {} · up {} · {} connections · {:.1} requests/s · {} of host memory",
            self.node,
            self.version,
            self.device,
            duration(self.uptime_s),
            self.connections,
            self.requests_per_s,
            Size(self.rss_bytes)
        )
    }

    /// Line about the server, and a table of its models.
    pub fn text(&self) -> String {
        let rows: Vec<Vec<String>> = self.models.iter().map(ModelFigures::row).collect();
        let head = [
            "model",
            "state",
            "device",
            "host",
            "KV device",
            "KV host",
            "KV disk",
            "ring",
            "link GB/s",
            "of link",
            "stalled",
            "busy",
            "tokens/s",
            "sessions",
        ];
        format!("{}\n{}", self.head(), table(&head, &rows))
    }

    /// All figures as JSON.
    pub fn json(&self) -> Value {
        json!({
            "node": self.node, "device": self.device, "version": self.version,
            "uptime_s": self.uptime_s, "connections": self.connections,
            "requests_per_s": self.requests_per_s, "rss_bytes": self.rss_bytes,
            "models": self.models.iter().map(ModelFigures::json).collect::<Vec<Value>>(),
        })
    }
}

impl ModelFigures {
    /// Number of sessions by state, for example `2 running, 1 waiting`.
    pub fn sessions(&self) -> String {
        let some = self.sessions.iter().filter(|(_, count)| **count > 0);
        let some: Vec<String> = some
            .map(|(state, count)| format!("{count} {state}"))
            .collect();
        match some.is_empty() {
            true => "none".to_owned(),
            false => some.join(", "),
        }
    }

    /// Share of the link in percent; `-` if it is not known.
    pub fn of_link(&self) -> String {
        let share = self.link_share;
        share.map_or("-".to_owned(), |share| format!("{:.0} %", 100.0 * share))
    }

    fn row(&self) -> Vec<String> {
        let kv = |name: &str| {
            let tier = self.tiers.iter().find(|tier| tier.name == name);
            tier.map_or("-".to_owned(), |tier| Size(tier.bytes).to_string())
        };
        vec![
            self.name.clone(),
            self.state.to_owned(),
            Size(self.memory.total_bytes).to_string(),
            Size(self.memory.host_bytes).to_string(),
            kv("device"),
            kv("host"),
            kv("disk"),
            Size(self.memory.ring_bytes).to_string(),
            format!("{:.2}", self.link / 1e9),
            self.of_link(),
            format!("{:.0} %", 100.0 * self.stalled),
            format!("{:.0} %", 100.0 * self.busy),
            format!("{:.1}", self.tokens_per_s),
            self.sessions(),
        ]
    }

    fn json(&self) -> Value {
        let memory = &self.memory;
        let kv: BTreeMap<&str, Value> = self
            .tiers
            .iter()
            .map(|tier| {
                let figures = json!({
                    "pages": tier.pages, "room_pages": tier.room, "bytes": tier.bytes,
                    "cached_pages": tier.cached,
                });
                (tier.name, figures)
            })
            .collect();
        json!({
            "name": self.name, "state": self.state, "routing": self.routing,
            "bytes": {
                "resident": memory.resident_bytes, "ring": memory.ring_bytes,
                "experts": memory.experts_bytes, "kv": memory.kv_bytes,
                "activations": memory.activations_bytes, "total": memory.total_bytes,
                "host": memory.host_bytes, "streamed": memory.streamed_bytes,
            },
            "kv": kv,
            "tokens_per_s": self.tokens_per_s, "passes_per_s": self.passes_per_s,
            "busy": self.busy, "link_gb_per_s": self.link / 1e9,
            "share_of_link": self.link_share, "stalled": self.stalled,
            "paged_out_bytes_per_s": self.paged_out, "paged_in_bytes_per_s": self.paged_in,
            "sessions": self.sessions, "adopted_tokens": self.adopted,
            "prefix_hits": self.prefix_hits,
        })
    }
}

/// Duration in seconds, minutes, or hours and minutes.
fn duration(s: f64) -> String {
    match s as u64 {
        0..60 => seconds(s),
        s @ 60..3600 => format!("{} min", s / 60),
        s => format!("{} h {} min", s / 3600, s % 3600 / 60),
    }
}
