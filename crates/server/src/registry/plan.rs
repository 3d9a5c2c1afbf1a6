//! Plan of a model's memory, and the predicted time of a pass. Loads nothing.

use std::time::Duration;

use djinn_device::Backend;
use djinn_engine::{Blueprint, SizingChoice, Tier, rates};
use djinn_model::Model;
use djinn_weights::{Bound, PlannedPiece, Rates, Region};
use djinn_wire::v1;

use super::{layout::streams, load::link_ceiling, loader::ModelLoader};
use crate::{ServeError, engine_thread::facts};

/// Duration for which files are read to measure their bandwidth.
const FILE_TIME: Duration = Duration::from_secs(1);
/// Bytes that a processor reads to measure the bandwidth of its memory; fewer if the budget is smaller.
const MEMORY_BYTES: u64 = 1 << 29;

/// Plans the memory of a model as a request asks.
pub(super) fn plan(
    loader: ModelLoader,
    request: &v1::PlanRequest,
) -> Result<v1::PlanReply, ServeError> {
    let model = Model::open(&loader.reference)?;
    let blueprint = loader.blueprint(&model)?;
    let backend = &*loader.config.backend;
    let link = match request.link_bytes_per_s {
        Some(rate) if streams(&blueprint) => rate,
        Some(_) => 0.0,
        None => link_ceiling(backend, &model, &blueprint, FILE_TIME),
    };
    if streams(&blueprint) && link <= 0.0 {
        return Err(ServeError::Internal(
            "The bandwidth of the link could not be measured: check the model's files and the free host \
             memory, or give the bandwidth"
                .to_owned(),
        ));
    }
    let prediction = match request.predict {
        true => predict(backend, &model, &blueprint, request, link),
        false => None,
    };
    let mut reply = describe(backend, &model, &blueprint);
    reply.link_bytes_per_s = link;
    reply.pass_s = match link > 0.0 {
        true => {
            let streamed = blueprint.plan().ring.streamed_bytes() + blueprint.streamed_kv_bytes();
            streamed as f64 / link
        }
        false => 0.0,
    };
    reply.prediction = prediction;
    if request.pieces {
        let ring = blueprint.plan().ring_offset;
        let pieces = blueprint.weights().planned_pieces();
        reply.pieces = pieces
            .iter()
            .map(|piece| describe_piece(piece, ring))
            .collect();
    }
    Ok(reply)
}

/// Everything about a plan except times and pieces.
fn describe(backend: &dyn Backend, model: &Model, blueprint: &Blueprint) -> v1::PlanReply {
    let (settings, plan) = (blueprint.settings(), blueprint.plan());
    let (memory, link) = (blueprint.memory(), blueprint.link());
    let pages = settings.context.div_ceil(settings.page_tokens) as u64;
    let (name, card) = (backend.name(), backend.card());
    v1::PlanReply {
        routing: blueprint.reason(),
        dims: Some(facts::dims(&model.program.dims)),
        memory: Some(facts::memory(blueprint)),
        session_kv_bytes: pages * blueprint.page_bytes(),
        limits: Some(facts::limits(blueprint)),
        model: model.name.clone(),
        device: card.map_or(name.clone(), |card| format!("{name} ({})", card.name())),
        budget_bytes: memory.budget,
        host_budget_bytes: card.map_or(0, |_| memory.host_budget),
        weights_bytes: model.program.weight_bytes(),
        ring: Some(v1::PlanRing {
            bytes: plan.ring.bytes,
            ahead_bytes: plan.ring.ahead,
            offset: plan.ring_offset,
            slots: plan.ring.slots.len() as u64,
        }),
        experts: Some(v1::PlanExperts {
            count: plan.pool.count as u64,
            slots: plan.pool_slots as u64,
            bytes: plan.pool.bytes,
        }),
        chunk_bytes: link.chunk,
        workers: link.workers as u64,
        prefetch: memory.prefetch,
        link_source: rates::link_source(backend, model).to_owned(),
        sizing: Some(sizing(model, blueprint)),
        ..v1::PlanReply::default()
    }
}

/// Context, sessions and KV pages of a plan.
fn sizing(model: &Model, blueprint: &Blueprint) -> v1::PlanSizing {
    let (settings, weights) = (blueprint.settings(), blueprint.weights());
    let chosen = blueprint.sizing();
    let streamed = blueprint.plan().ring.streamed_bytes();
    let file_bytes = match blueprint.link().tier {
        Tier::Files => streamed,
        Tier::Host => 0,
    };
    v1::PlanSizing {
        model_context: model.program.dims.context as u64,
        longest_context: chosen.map_or(settings.context, |chosen| chosen.largest) as u64,
        context_reason: chosen.map_or_else(String::new, SizingChoice::context_text),
        reduced: chosen.map_or_else(Vec::new, |chosen| {
            chosen.reduced.iter().map(ToString::to_string).collect()
        }),
        page_bytes: blueprint.page_bytes(),
        page_tokens: settings.page_tokens as u64,
        device_pages: blueprint.frames() as u64,
        host_pages: settings.host_pages as u64,
        disk_pages: settings.disk_pages as u64,
        host_weights_bytes: weights.host_bytes(),
        staging_bytes: weights.staging_bytes(),
        file_bytes,
        kv_window_bytes: blueprint.footprint().kv_window,
        streamed_pages: blueprint.streamed_kv_bytes() / blueprint.page_bytes().max(1),
        yield_bytes: weights.zone_bytes(),
        most_device_pages: settings.pages as u64,
        host_copy: blueprint.memory().host_copy && blueprint.link().tier == Tier::Host,
    }
}

/// Predicts the time of a pass; `None` if the bandwidth of the device's memory cannot be measured.
fn predict(
    backend: &dyn Backend,
    model: &Model,
    blueprint: &Blueprint,
    request: &v1::PlanRequest,
    link: f64,
) -> Option<v1::PassPrediction> {
    let compute = match request.compute_bytes_per_s {
        Some(rate) => rate,
        None => rates::memory_bandwidth(backend, MEMORY_BYTES.min(blueprint.memory().budget))
            .inspect_err(|error| tracing::warn!(%error, "memory bandwidth not measured"))
            .ok()?,
    };
    let is_measured = request.link_bytes_per_s.is_none();
    let rates = Rates {
        link: if link > 0.0 { link } else { f64::INFINITY },
        compute,
        shared: is_measured && rates::link_shares_cores(backend, model),
    };
    let work = blueprint.work(model);
    let prediction = blueprint.plan().predict(&work, &rates);
    Some(v1::PassPrediction {
        link_bytes: prediction.link_bytes,
        link_bytes_per_s: link,
        link_s: prediction.link_s,
        compute_bytes_per_s: compute,
        compute_s: prediction.compute_s,
        pass_s: prediction.pass_s,
        link_bound: matches!(prediction.bound, Bound::Link),
        link_shares_cores: rates.shared,
    })
}

fn describe_piece(piece: &PlannedPiece, ring_offset: u64) -> v1::PlanPiece {
    let offset = piece.placement.offset;
    let (place, offset) = match piece.placement.region {
        Region::Ring(_) => (v1::PiecePlace::Ring, offset - ring_offset),
        Region::Pool => (v1::PiecePlace::Expert, 0),
        Region::Resident | Region::Host => (v1::PiecePlace::Resident, offset),
    };
    v1::PlanPiece {
        name: piece.name.clone(),
        segment: piece.segment.to_string(),
        bytes: piece.placement.bytes,
        place: place.into(),
        offset,
        after: piece.after.map(|after| after as u64),
    }
}
