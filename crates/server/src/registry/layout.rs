//! Layout of one model: how much host memory it takes for leaving the device, and for how many sessions
//! it is sized.

use djinn_device::Backend;
use djinn_engine::{
    Blueprint, ContextDemand, Count, KvMemory, SessionDemand, Settings, SizeRange, Tier,
};
use djinn_model::Model;
use djinn_weights::{Keep, MemorySettings, Overrides};

use super::loader::{ModelLoader, is_host_shortage};
use crate::{
    ServeError,
    config::{HostCopy, LoadOptions},
};

/// Default number of sessions in one pass.
const BATCH_DEFAULT: usize = 32;
/// Default number of open sessions.
const SESSIONS_DEFAULT: usize = 256;
/// Number of sessions at the full context for which a model needs KV memory.
pub(super) const FULL_SESSIONS: usize = 4;

impl ModelLoader {
    /// Plans the model's memory without reserving it.
    pub fn blueprint(&self, model: &Model) -> Result<Blueprint, ServeError> {
        match &self.preset {
            Some(preset) => (preset.draw)(model),
            None => self.draw(model, self.budget(model)?),
        }
    }

    /// Plans the layout of the model in `budget` bytes of device memory. If the server has other models,
    /// the plan reserves host memory for the KV pages of running sessions, because the model could not
    /// leave the device without them. The plan adds a copy of the weights where host memory has room, and
    /// leaves room for the weights of models that are loaded later. Settings of the user replace both.
    pub fn draw(&self, model: &Model, budget: u64) -> Result<Blueprint, ServeError> {
        let (mut best, mut shortage) = (None::<Blueprint>, None);
        for (host_budget, host_copy) in self.host_choices() {
            match self.draw_with(model, budget, host_budget, host_copy) {
                Ok(drawn) if drawn.has_room_to_swap() => return Ok(drawn),
                Ok(drawn) => {
                    let pages = |blueprint: &Blueprint| blueprint.settings().host_pages;
                    if best.as_ref().is_none_or(|best| pages(&drawn) > pages(best)) {
                        best = Some(drawn);
                    }
                }
                Err(error) if is_host_shortage(&error) => shortage = Some(error),
                Err(error) => return Err(error),
            }
        }
        best.ok_or_else(|| shortage.expect("there is a choice"))
    }

    /// Budgets of host memory to try, each with whether it has to hold a copy of the weights, the best one
    /// first.
    fn host_choices(&self) -> Vec<(u64, bool)> {
        let all = self.config.memory.host_budget;
        let host = all.saturating_sub(self.host_taken);
        let spare = host.saturating_sub(self.host_for_later());
        let copies = match self.config.host_copy {
            HostCopy::On => &[true][..],
            HostCopy::Auto if !self.is_alone && self.weights_come_from_host() => &[true, false],
            _ => &[false],
        };
        let with_budgets = |&copy| [(spare, copy), (host, copy)];
        let mut choices: Vec<(u64, bool)> = copies.iter().flat_map(with_budgets).collect();
        choices.dedup();
        choices
    }

    /// Bytes of host memory to leave for the weights of models that are loaded later.
    fn host_for_later(&self) -> u64 {
        match self.weights_come_from_host() {
            true => self.sharers.iter().map(|sharer| sharer.weight_bytes).sum(),
            false => 0,
        }
    }

    /// Whether weights pass through host memory, so that a copy there is of use.
    fn weights_come_from_host(&self) -> bool {
        let tier = self.config.memory.tier;
        tier.unwrap_or(self.config.backend.tier()) == Tier::Host
    }

    fn draw_with(
        &self,
        model: &Model,
        budget: u64,
        host_budget: u64,
        host_copy: bool,
    ) -> Result<Blueprint, ServeError> {
        let all = self.config.memory;
        let memory = MemorySettings {
            budget,
            host_budget,
            prefetch: self.layout.prefetch.unwrap_or(all.prefetch),
            kv_dtype: self.layout.kv_dtype.unwrap_or(all.kv_dtype),
            host_copy,
            may_swap: !self.is_alone || host_copy,
            overrides: Overrides {
                keep: self
                    .layout
                    .resident
                    .map_or(all.overrides.keep, Keep::AtMost),
                ..all.overrides
            },
            ..all
        };
        let backend = &*self.config.backend;
        lay_out(model, backend, self.layout, memory, &self.config.kv)
    }
}

/// Plans how a server lays out a model: which weights stay resident and which stream. Fails if the
/// memory is not free.
pub fn draw(
    model: &Model,
    backend: &dyn Backend,
    layout: LoadOptions,
    memory: MemorySettings,
    kv: &KvMemory,
) -> Result<Blueprint, ServeError> {
    let blueprint = lay_out(model, backend, layout, memory, kv)?;
    blueprint.check(backend)?;
    Ok(blueprint)
}

/// Plans a layout like [`draw`], also if other models hold memory that it needs.
fn lay_out(
    model: &Model,
    backend: &dyn Backend,
    layout: LoadOptions,
    memory: MemorySettings,
    kv: &KvMemory,
) -> Result<Blueprint, ServeError> {
    let range = SizeRange::for_sessions(&model.program, demand(model, layout))?;
    Ok(Blueprint::sized(model, backend, &range, memory, kv)?)
}

/// Whether weights or KV pages stream in some pass.
pub(super) fn streams(blueprint: &Blueprint) -> bool {
    blueprint.plan().streams() || blueprint.streamed_kv_bytes() > 0
}

/// Sessions that a server is sized for. A context above the model's is cut to it, because one setting
/// can apply to several models.
fn demand(model: &Model, layout: LoadOptions) -> SessionDemand {
    let limit = model.program.dims.context;
    let context = layout.context.inspect(|&context| {
        if context > limit {
            tracing::warn!(
                model = model.name,
                context,
                limit,
                "the context exceeds the model's"
            );
        }
    });
    let open = layout.sessions.unwrap_or(SESSIONS_DEFAULT).max(1);
    SessionDemand {
        context: match context {
            Some(context) => ContextDemand::Set(context.min(limit)),
            None => ContextDemand::Free(1),
        },
        batch: Count::or(layout.batch, BATCH_DEFAULT),
        open,
        rows: Count::or(layout.rows, Settings::ROWS),
        probes: true,
        full_sessions: FULL_SESSIONS.min(open),
        together: false,
    }
}
