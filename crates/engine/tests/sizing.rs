//! Sizing: any budget above the least gives an engine within it, and shrinking changes no bit.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{How, bits, open, request, stories};
use djinn_device::Backend;
use djinn_engine::{
    Blueprint, ContextDemand, ContextReason, ContextShortage, Count, Engine, EngineError, KvMemory,
    Request, SessionDemand, Settings, SizeRange,
};
use djinn_model::Model;
use djinn_weights::{MemorySettings, PlanError};

/// Demand of a server.
fn server(context: ContextDemand) -> SessionDemand {
    SessionDemand {
        context,
        batch: Count::UpTo(8),
        open: 16,
        rows: Count::UpTo(Settings::ROWS),
        probes: true,
        full_sessions: 4,
        together: false,
    }
}

fn sized(
    model: &Model,
    backend: &dyn Backend,
    demand: SessionDemand,
    budget: u64,
) -> Result<Blueprint, EngineError> {
    let range = SizeRange::for_sessions(&model.program, demand)?;
    let memory = MemorySettings {
        budget,
        // Without host memory, no pages stream.
        host_budget: 0,
        ..MemorySettings::default()
    };
    Blueprint::sized(model, backend, &range, memory, &KvMemory::default())
}

/// Least budget that a model accepts for a demand.
fn least(model: &Model, backend: &dyn Backend, demand: SessionDemand) -> u64 {
    match sized(model, backend, demand, 1) {
        Err(EngineError::Plan(PlanError::Budget { least, .. })) => least,
        other => panic!("{:?}", other.err()),
    }
}

#[test]
fn every_budget_above_the_least_is_used_and_kept() {
    let backend = How::default().backend();
    for reference in [
        "shape:smollm2-135m",
        "shape:llama-2-13b",
        "shape:mixtral-8x7b",
    ] {
        let model = Model::open(reference).unwrap();
        let free = server(ContextDemand::Free(1));
        let least = least(&model, &*backend, free);
        let model_context = model.program.dims.context;
        let mut before = 0;
        for sixteenths in [16, 17, 20, 24, 32, 64, 256, 1024, 4096, 16384] {
            let budget = least / 16 * sixteenths + least % 16;
            let blueprint = sized(&model, &*backend, free, budget);
            let blueprint = blueprint.unwrap_or_else(|error| panic!("{reference}: {error}"));
            let total = blueprint.footprint().total();
            assert!(total <= budget, "{reference}: {total} in {budget}");
            let sizing = blueprint.sizing().unwrap();
            let context = blueprint.settings().context;
            assert_eq!(context, sizing.context);
            assert!(context <= model_context, "{reference} in {budget}");
            // Four times the memory gives a longer context. A little more may go into comfort.
            if sixteenths % 64 == 0 {
                assert!(context >= before, "{reference} in {budget}");
                before = context;
            }
            // The claims of the choice hold.
            let set = |context| {
                sized(
                    &model,
                    &*backend,
                    server(ContextDemand::Set(context)),
                    budget,
                )
            };
            let largest = set(sizing.largest).unwrap();
            assert_eq!(largest.settings().context, sizing.largest);
            if sizing.largest + 16 <= model_context {
                let error = set(sizing.largest + 16).err().unwrap();
                assert!(matches!(error, EngineError::ContextMemory(_)), "{error}");
            }
            if sizing.reason == ContextReason::Model {
                assert_eq!(context, model_context);
            }
        }
        let plenty = sized(&model, &*backend, free, 1 << 40).unwrap();
        assert_eq!(plenty.settings().context, model_context, "{reference}");
        assert!(plenty.sizing().unwrap().reduced.is_empty() && !plenty.plan().streams());
        let error = sized(&model, &*backend, free, least - 1).err().unwrap();
        assert!(
            matches!(error, EngineError::Plan(PlanError::Budget { .. })),
            "{error}"
        );
    }
}

#[test]
fn refused_contexts_name_numbers_that_work() {
    let backend = How::default().backend();
    let model = Model::open("shape:smollm2-135m").unwrap();
    for budget in [10_000_000, 60_000_000, 150_000_000] {
        let set = |context, budget| {
            sized(
                &model,
                &*backend,
                server(ContextDemand::Set(context)),
                budget,
            )
        };
        let Err(EngineError::ContextMemory(shortage)) = set(8192, budget) else {
            panic!("a context of 8192 fits in {budget}");
        };
        let ContextShortage { longest, least, .. } = shortage;
        let longest = longest.unwrap();
        assert!(set(longest, budget).is_ok() && set(longest + 16, budget).is_err());
        assert!(set(8192, least).is_ok() && set(8192, least - 1).is_err());
    }
}

#[test]
fn a_context_larger_than_the_device_streams_its_pages() {
    let backend = How::default().backend();
    let model = Model::open("shape:smollm2-135m").unwrap();
    let range = SizeRange::for_sessions(&model.program, server(ContextDemand::Set(8192))).unwrap();
    let sized = |budget| {
        let memory = MemorySettings {
            budget,
            host_budget: 2 << 30,
            ..MemorySettings::default()
        };
        Blueprint::sized(&model, &*backend, &range, memory, &KvMemory::default())
    };
    let blueprint = sized(60_000_000).unwrap();
    assert!(blueprint.footprint().total() <= 60_000_000);
    assert_eq!(blueprint.settings().context, 8192);
    assert!(blueprint.settings().window_pages > 0);
    let Err(EngineError::ContextMemory(ContextShortage { least, longest, .. })) = sized(5_000_000)
    else {
        panic!("a context of 8192 fits in 5 MB");
    };
    assert!(longest.unwrap() < 8192);
    assert!(sized(least).is_ok() && sized(least - 1).is_err());
}

#[test]
fn numbers_that_the_user_set_stay() {
    let backend = How::default().backend();
    let model = Model::open("shape:smollm2-135m").unwrap();
    let demand = SessionDemand {
        batch: Count::Set(8),
        rows: Count::Set(200),
        ..server(ContextDemand::Set(512))
    };
    for budget in [60_000_000, 100_000_000, 1_000_000_000] {
        let blueprint = sized(&model, &*backend, demand, budget).unwrap();
        let settings = blueprint.settings();
        assert_eq!(
            (settings.context, settings.sessions, settings.rows),
            (512, 8, 200)
        );
    }
    let error = sized(&model, &*backend, demand, 5_000_000).err().unwrap();
    assert!(matches!(
        error,
        EngineError::ContextMemory(_) | EngineError::Plan(PlanError::Budget { .. })
    ));
}

/// Runs a request in an engine with these settings.
fn run(request: &Request, change: impl FnOnce(&mut Settings)) -> common::Bits {
    let (model, backend) = (open(&stories()), How::default().backend());
    let mut settings =
        Settings::for_requests(&model, std::slice::from_ref(request), Settings::ROWS).unwrap();
    change(&mut settings);
    let memory = MemorySettings::default();
    let blueprint = Blueprint::draw(&model, &*backend, settings, memory).unwrap();
    let mut engine = Engine::load(model, &*backend, blueprint, &mut |_| {}).unwrap();
    let id = engine.open(request.clone()).unwrap();
    while !engine.is_idle() {
        engine.step().unwrap();
    }
    bits(&engine.close(id).unwrap())
}

#[test]
fn few_rows_of_logits_and_of_probes_give_the_same_bits() {
    let folder = stories();
    let tokens: Vec<u32> = (1..40).collect();
    let hooks = [
        "logits",
        "ln_final.hook_normalized|mean",
        "blocks.*.hook_resid_post|lens3",
        "blocks.1.attn.hook_pattern",
        "blocks.0.mlp.hook_post|top5",
    ];
    let request = request(&folder, &tokens, &hooks, 5);
    let plenty = run(&request, |_| {});
    assert!(plenty.1.len() >= 5);
    for rows in [1, 2, 7] {
        let scarce = run(&request, |settings| {
            settings.logit_rows = rows;
            settings.probe_limits.pattern_rows = rows;
            settings.probe_limits.packed_rows = rows;
        });
        assert!(scarce == plenty, "{rows} rows");
    }
}
