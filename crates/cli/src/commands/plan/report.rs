//! Report about the plan of one model.

use djinn_client::v1;
use djinn_types::{Size, text::seconds};
use serde_json::{Value, json};

use super::{
    memory_line::plural,
    pieces::{piece_json, pieces_table},
};
use crate::args::PlanArgs;

/// A plan, as it is printed.
#[derive(Clone, Copy)]
pub(super) struct PlanReport<'a> {
    pub args: &'a PlanArgs,
    pub name: &'a str,
    pub plan: &'a v1::PlanReply,
}

impl PlanReport<'_> {
    fn memory(&self) -> v1::ModelMemory {
        self.plan.memory.unwrap_or_default()
    }

    fn prediction(&self) -> v1::PassPrediction {
        self.plan.prediction.unwrap_or_default()
    }

    fn limits(&self) -> v1::ModelLimits {
        self.plan.limits.unwrap_or_default()
    }

    fn kv_dtype(&self) -> String {
        self.limits().kv_dtype().name()
    }

    fn sizing(&self) -> v1::PlanSizing {
        self.plan.sizing.clone().unwrap_or_default()
    }

    fn tokens_per_s(&self) -> f64 {
        self.limits().batch as f64 / self.prediction().pass_s
    }

    /// Passes that a prompt as long as the context needs.
    fn prompt_passes(&self) -> u64 {
        self.limits().context.div_ceil(self.limits().rows.max(1))
    }

    /// Lines about the decisions of the plan.
    pub fn head(&self) -> String {
        let limits = self.limits();
        let open = match limits.sessions > limits.batch {
            true => format!(" ({} may be open)", limits.sessions),
            false => String::new(),
        };
        format!(
            "{} in {}, {}{open} of up to {} positions, KV in {}\n{}\n\
             KV of one session takes {}; a pass has up to {}\n",
            self.name,
            Size(self.plan.budget_bytes),
            plural(limits.batch, "session"),
            limits.context,
            self.kv_dtype(),
            self.plan.routing,
            Size(self.plan.session_kv_bytes),
            plural(limits.rows, "row"),
        )
    }

    /// Tables of pieces, and the predicted time.
    pub fn details(&self) -> String {
        let pieces = pieces_table(&self.plan.pieces, self.args.pieces);
        let name = match self.args.config {
            Some(_) => format!("{}\n", self.name),
            None => String::new(),
        };
        format!("{name}{pieces}\n{}", self.predicted())
    }

    /// Lines about the predicted time of a pass.
    fn predicted(&self) -> String {
        if self.plan.prediction.is_none() {
            return "the speed is not predicted: the bandwidth of the memory was not measured; give --compute\n"
                .to_owned();
        }
        let (p, limits) = (self.prediction(), self.limits());
        let source = |given: bool, measured: &str| match given {
            true => "as given".to_owned(),
            false => format!("measured: {measured}"),
        };
        let link = match p.link_bytes > 0.0 {
            true => format!(
                "{} a token, {} at {:.2} GB/s ({}{})",
                Size((p.link_bytes / self.limits().batch as f64) as u64),
                seconds(p.link_s),
                p.link_bytes_per_s / 1e9,
                source(self.args.link.is_some(), &self.plan.link_source),
                match p.link_shares_cores {
                    true => ", on the cores that compute",
                    false => "",
                },
            ),
            false => "nothing".to_owned(),
        };
        let limit = match p.link_bytes > 0.0 && p.link_bound {
            true => "limited by the link",
            false => "limited by compute",
        };
        format!(
            "a pass, all sessions generating at the end of their context:\n\
             \x20 over the link   {link}\n\
             \x20 compute         {} at {:.1} GB/s ({})\n\
             \x20 together        {}: {:.3} tokens/s, {limit}\n\
             first token of a prompt:\n\
             \x20 {:<15} at least {}: one pass\n\
             \x20 {:<15} at least {}: {}\n",
            seconds(p.compute_s),
            p.compute_bytes_per_s / 1e9,
            source(self.args.compute.is_some(), "bandwidth of the memory"),
            seconds(p.pass_s),
            self.tokens_per_s(),
            format!("{} tokens", limits.rows.min(limits.context)),
            seconds(p.pass_s),
            format!("{} tokens", limits.context),
            seconds(p.pass_s * self.prompt_passes() as f64),
            plural(self.prompt_passes(), "pass").replace("passs", "passes"),
        )
    }

    pub fn json(&self) -> Value {
        let (plan, memory) = (&self.plan, self.memory());
        let experts = plan.experts.unwrap_or_default();
        let (limits, sizing) = (self.limits(), self.sizing());
        let above_zero = |x: u64| (x > 0).then_some(x);
        json!({
            "model": plan.model,
            "device": plan.device,
            "server": self.args.server.server,
            "budget_bytes": plan.budget_bytes,
            "host_budget_bytes": above_zero(plan.host_budget_bytes),
            "name": self.name,
            "sessions": limits.batch,
            "open_sessions": limits.sessions,
            "context": limits.context,
            "model_context": sizing.model_context,
            "longest_context": sizing.longest_context,
            "context_reason": sizing.context_reason,
            "rows": limits.rows,
            "reduced": sizing.reduced,
            "kv": kv_json(&sizing),
            "reason": plan.routing,
            "weights_bytes": plan.weights_bytes,
            "session_kv_bytes": plan.session_kv_bytes,
            "kv_dtype": self.kv_dtype(),
            "bytes": {
                "resident": memory.resident_bytes, "ring": memory.ring_bytes,
                "experts": memory.experts_bytes, "kv": memory.kv_bytes,
                "activations": memory.activations_bytes, "scratch": memory.scratch_bytes,
                "driver": memory.driver_bytes, "host": memory.host_bytes,
                "total": memory.total_bytes,
            },
            "streamed_bytes_per_pass": memory.streamed_bytes,
            "yield_bytes": sizing.yield_bytes,
            "host_copy": sizing.host_copy,
            "ring": ring_json(plan.ring.unwrap_or_default()),
            "experts": {
                "count": experts.count, "slots": experts.slots, "bytes": experts.bytes,
            },
            "chunk_bytes": plan.chunk_bytes,
            "workers": plan.workers,
            "prefetch": plan.prefetch,
            "link_source": plan.link_source,
            "prediction": plan.prediction.is_some().then(|| self.prediction_json()),
            "pieces": plan.pieces.iter().map(piece_json).collect::<Vec<Value>>(),
        })
    }

    fn prediction_json(&self) -> Value {
        let (p, limits) = (self.prediction(), self.limits());
        json!({
            "link_bytes_per_pass": p.link_bytes,
            "link_bytes_per_token": p.link_bytes / limits.batch as f64,
            "link_bytes_per_s": (p.link_bytes_per_s > 0.0).then_some(p.link_bytes_per_s),
            "link_s": p.link_s,
            "compute_bytes_per_s": p.compute_bytes_per_s, "compute_s": p.compute_s,
            "pass_s": p.pass_s, "tokens_per_s": self.tokens_per_s(),
            "first_token_s": p.pass_s,
            "full_prompt_s": p.pass_s * self.prompt_passes() as f64,
            "binds": if p.link_bound { "link" } else { "compute" },
        })
    }
}

fn kv_json(sizing: &v1::PlanSizing) -> Value {
    json!({
        "page_bytes": sizing.page_bytes, "page_tokens": sizing.page_tokens,
        "device_pages": sizing.device_pages, "most_device_pages": sizing.most_device_pages,
        "host_pages": sizing.host_pages, "disk_pages": sizing.disk_pages,
        "window_bytes": sizing.kv_window_bytes, "streamed_pages": sizing.streamed_pages,
    })
}

fn ring_json(ring: v1::PlanRing) -> Value {
    json!({
        "bytes": ring.bytes, "ahead_bytes": ring.ahead_bytes, "offset": ring.offset,
        "slots": ring.slots,
    })
}
