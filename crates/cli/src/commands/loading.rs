//! Loading a model: checks of its blueprint, notes for the user, progress.

use djinn_engine::{Blueprint, Engine, PrefixCacheSettings};
use djinn_model::Model;
use djinn_terminal::Failure;

use crate::{
    args::{ResolvedModel, Switch},
    progress::Loading,
};

/// Checks a blueprint, describes it, and loads it without a server, for benchmarks of the engine.
pub fn load(
    resolved: &ResolvedModel,
    model: Model,
    blueprint: Blueprint,
) -> Result<Engine, Failure> {
    check_and_describe(resolved, &model, &blueprint)?;
    let loading = Loading::new(&model.name);
    let backend = resolved.backend();
    let mut engine = Engine::load(model, backend, blueprint, &mut |progress| {
        loading.update(progress);
    })?;
    engine.set_prefix_cache(PrefixCacheSettings::OFF);
    Ok(engine)
}

/// Checks that a blueprint fits this machine. Prints which weights stay in memory, which stream, and which
/// flags have no effect.
pub fn check_and_describe(
    resolved: &ResolvedModel,
    model: &Model,
    blueprint: &Blueprint,
) -> Result<(), Failure> {
    resolved.check_budget(blueprint.memory().budget)?;
    blueprint.check(resolved.backend())?;
    eprintln!("{}: {}", model.name, blueprint.reason());
    resolved.print_device();
    eprint!("{}", unused_flags(resolved, blueprint));
    Ok(())
}

/// Notes about flags without effect.
pub fn unused_flags(resolved: &ResolvedModel, blueprint: &Blueprint) -> String {
    let args = &resolved.args;
    let mut notes = String::new();
    let on_card = resolved.backend().card().is_some();
    if args.device.threads.is_some() && on_card {
        notes += "note: --threads has no effect: the card computes\n";
    }
    if args.memory.host_memory.is_some() && blueprint.host_bytes() == 0 {
        notes +=
            "note: --host-memory has no effect: host memory holds neither weights nor KV pages\n";
    }
    if args.memory.ring.is_some() && blueprint.plan().ring.slots.is_empty() {
        notes += "note: --ring has no effect: all weights are resident\n";
    }
    let may_stream = blueprint.plan().streams() || blueprint.levels().is_some();
    if !blueprint.memory().prefetch && !may_stream {
        notes += "note: --prefetch off has no effect: no weights stream\n";
    }
    let is_explained = blueprint.levels().is_some() || blueprint.fixed_because().is_some();
    if args.memory.elastic == Switch::On && !is_explained {
        notes +=
            "note: --elastic on has no effect: this command keeps the division of memory fixed\n";
    }
    notes
}
