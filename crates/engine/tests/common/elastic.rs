//! Helpers of the tests of elastic memory: engines in which weights yield to KV pages.

use std::path::Path;

use djinn_device::Backend;
use djinn_engine::{Blueprint, Engine, KvMemory, Request, Settings};
use djinn_model::Model;
use djinn_types::{DType, KvDtype, Tier};
use djinn_weights::MemorySettings;

use super::{golden, ids, open, request};

pub const TIERS: [Tier; 2] = [Tier::Files, Tier::Host];

/// Requests of different lengths, some of them sampled: so many that their KV pages need more
/// memory than a ring.
pub fn requests(folder: &Path, prompt: usize, generate: usize) -> Vec<Request> {
    const KV_BYTES: u64 = 1800 << 10;
    let one = open(folder).program.kv_bytes_per_token(DType::F32) * (prompt + generate) as u64;
    let count = KV_BYTES.div_ceil(one) as usize;
    let golden = golden(folder);
    let tokens = golden
        .get("input_ids")
        .unwrap_or_else(|| &golden["cat.input_ids"]);
    let tokens = ids(tokens);
    let ask = |i: usize| {
        let prompt: Vec<u32> = (0..prompt + i % 5)
            .map(|at| tokens[(7 * i + at * (i + 1)) % tokens.len()])
            .collect();
        let mut ask = request(folder, &prompt, &[], generate + i % 7);
        ask.sampling.temperature = (i % 3) as f32 / 2.0;
        ask.sampling.seed = i as u64;
        ask.sampling.logprobs = i.is_multiple_of(2).then_some(1);
        ask
    };
    (0..count).map(ask).collect()
}

pub fn settings(model: &Model, requests: &[Request]) -> Settings {
    let sessions = requests.len();
    let settings = Settings::for_requests(model, requests, 64).unwrap();
    // Sessions may go on for another turn.
    let context = settings.context + 16;
    Settings {
        sessions,
        rows: 64.max(sessions),
        logit_rows: 64.max(sessions),
        context,
        pages: sessions * context.div_ceil(settings.page_tokens),
        ..settings
    }
}

fn memory(tier: Tier, budget: u64) -> MemorySettings {
    MemorySettings {
        budget,
        tier: Some(tier),
        chunk: Some(16 << 10),
        elastic: true,
        ..MemorySettings::default()
    }
}

/// Draws a blueprint for these requests in a budget.
pub fn draw(
    model: &Model,
    backend: &dyn Backend,
    settings: &Settings,
    memory: MemorySettings,
) -> Blueprint {
    let kv = KvMemory::default();
    Blueprint::for_sessions(model, backend, settings.clone(), memory, &kv).unwrap()
}

/// Draws the blueprint with the smallest budget in which at least `resident` of the units that may
/// yield are resident at the lowest level, and units yield for pages.
pub fn draw_elastic(
    model: &Model,
    backend: &dyn Backend,
    settings: &Settings,
    tier: Tier,
    resident: Resident,
) -> Blueprint {
    let auto = KvDtype::default();
    draw_elastic_in(model, backend, settings, (tier, auto), resident)
}

/// Draws the blueprint, as [`draw_elastic`] does, with keys and values of this type.
pub fn draw_elastic_in(
    model: &Model,
    backend: &dyn Backend,
    settings: &Settings,
    (tier, kv_dtype): (Tier, KvDtype),
    resident: Resident,
) -> Blueprint {
    let memory = |budget| MemorySettings {
        kv_dtype,
        ..memory(tier, budget)
    };
    let one = Settings {
        pages: settings.context.div_ceil(settings.page_tokens),
        ..settings.clone()
    };
    let whole = Blueprint::draw(model, backend, one, memory(u64::MAX)).unwrap();
    let first = match resident {
        Resident::All => whole.footprint().total(),
        Resident::Some => whole.footprint().total() - model.program.weight_bytes() / 3,
    };
    let mut budgets = (first..).step_by(32 << 10).take(400);
    let fits = |blueprint: &Blueprint| {
        blueprint.levels().is_some_and(|range| match resident {
            Resident::All => range.least == 0,
            Resident::Some => range.least > 0,
        })
    };
    let drawn = budgets.find_map(|budget| {
        let drawn = draw(model, backend, settings, memory(budget));
        let total = drawn.footprint().total();
        assert!(total <= budget, "{total} of {budget}");
        fits(&drawn).then_some(drawn)
    });
    drawn.expect("some budget makes the layout elastic")
}

/// Weights that are resident at the lowest level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resident {
    All,
    Some,
}

pub fn load(model: Model, backend: &dyn Backend, blueprint: Blueprint) -> Engine {
    Engine::load(model, backend, blueprint, &mut |_| {}).unwrap()
}

/// Runs idle steps until weights have returned.
pub fn settle(engine: &mut Engine) {
    for _ in 0..100 {
        engine.maintain(std::time::Instant::now());
        engine.check_integrity();
    }
}
