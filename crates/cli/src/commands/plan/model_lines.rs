//! Lines about the memory of one model: bytes of each purpose, and why.

use djinn_client::v1;
use djinn_types::Size;

use super::memory_line::{MemoryLine, PlanTier, Purpose, plural};

/// Device memory of a model.
pub(super) fn device_lines(model: &str, plan: &v1::PlanReply) -> Vec<MemoryLine> {
    let memory = plan.memory.unwrap_or_default();
    let (limits, sizing) = (
        plan.limits.unwrap_or_default(),
        plan.sizing.clone().unwrap_or_default(),
    );
    let ring = plan.ring.unwrap_or_default();
    let experts = plan.experts.unwrap_or_default();
    let streams = memory.streamed_bytes > 0 || experts.slots < experts.count;
    let is_elastic = sizing.yield_bytes > 0;
    let resident = match (is_elastic, streams) {
        (true, _) => "stay on the device at any load",
        (false, true) => "as many pieces as fit beside the rest, spread evenly over a pass",
        (false, false) => "all weights fit",
    };
    let yields = format!(
        "yield to KV pages when sessions need these, up to {}",
        plural(sizing.most_device_pages, "page")
    );
    let ahead = Size(ring.ahead_bytes);
    let ring = match (memory.streamed_bytes, is_elastic) {
        (0, true) => "weights that have yielded stream through it".to_owned(),
        (bytes, _) => format!(
            "{} stream through it in every pass, {ahead} ahead",
            Size(bytes)
        ),
    };
    let experts = format!(
        "{} of {} experts, {} each",
        experts.slots,
        experts.count,
        Size(experts.bytes)
    );
    let kv = format!(
        "{} of {} tokens, {} each",
        plural(sizing.device_pages, "page"),
        sizing.page_tokens,
        Size(sizing.page_bytes)
    );
    let window = match sizing.streamed_pages {
        0 => "pages beyond these stream through it in every pass".to_owned(),
        pages => format!("pages beyond these stream through it, {pages} of a full session"),
    };
    let activations = format!(
        "buffers of a pass of {}, and of probes",
        plural(limits.rows, "row")
    );
    let parts = [
        (
            Purpose::Resident,
            memory.resident_bytes.saturating_sub(sizing.yield_bytes),
            resident.to_owned(),
        ),
        (Purpose::Yields, sizing.yield_bytes, yields),
        (Purpose::Ring, memory.ring_bytes, ring),
        (Purpose::Experts, memory.experts_bytes, experts),
        (
            Purpose::Kv,
            memory.kv_bytes.saturating_sub(sizing.kv_window_bytes),
            kv,
        ),
        (Purpose::Window, sizing.kv_window_bytes, window),
        (Purpose::Activations, memory.activations_bytes, activations),
        (
            Purpose::Scratch,
            memory.scratch_bytes,
            "working memory of the kernels".to_owned(),
        ),
        (
            Purpose::Driver,
            memory.driver_bytes,
            "context, kernels and tables of the driver".to_owned(),
        ),
    ];
    lines(model, PlanTier::Device, parts)
}

/// Host memory and disk of a model.
pub(super) fn outside_lines(model: &str, plan: &v1::PlanReply) -> Vec<MemoryLine> {
    let sizing = plan.sizing.clone().unwrap_or_default();
    let pages = |pages: u64, sessions: &str| {
        let why = format!("{} of sessions that {sessions}", plural(pages, "page"));
        (Purpose::Kv, pages.saturating_mul(sizing.page_bytes), why)
    };
    let (weights, why) = match (sizing.host_copy, sizing.yield_bytes) {
        (true, _) => (
            Purpose::HostCopy,
            "all weights, from which the model returns to the device",
        ),
        (false, 0) => (
            Purpose::Streamed,
            "weights that are copied to the device in every pass",
        ),
        (false, _) => (
            Purpose::Streamed,
            "weights that may yield; yielded ones are copied in every pass",
        ),
    };
    let host_pages = match (sizing.kv_window_bytes, sizing.host_copy) {
        (1.., _) => "wait, or that stream in every pass",
        (0, true) => "wait, or whose model is off the device",
        (0, false) => "wait",
    };
    let host = [
        (weights, sizing.host_weights_bytes, why.to_owned()),
        pages(sizing.host_pages, host_pages),
        (
            Purpose::Staging,
            sizing.staging_bytes,
            "buffers through which resident weights are loaded".to_owned(),
        ),
    ];
    let disk = [
        (
            Purpose::Streamed,
            sizing.file_bytes,
            "weights that are read from the model's files in every pass".to_owned(),
        ),
        pages(sizing.disk_pages, "wait"),
    ];
    let mut all = lines(model, PlanTier::Host, host);
    all.extend(lines(model, PlanTier::Disk, disk));
    all
}

fn lines(
    model: &str,
    tier: PlanTier,
    parts: impl IntoIterator<Item = (Purpose, u64, String)>,
) -> Vec<MemoryLine> {
    let line = |(purpose, bytes, why)| MemoryLine {
        model: Some(model.to_owned()),
        tier,
        purpose,
        bytes,
        why,
    };
    parts.into_iter().map(line).collect()
}
