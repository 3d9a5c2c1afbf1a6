//! Search for the settings that fit a memory budget.

use djinn_device::{Backend, host};
use djinn_kv::KvMemory;
use djinn_model::Model;
use djinn_weights::MemorySettings;

use super::{
    ContextDemand, SizeRange,
    choice::{ContextReason, SizingChoice},
    need::MemoryNeed,
};
use crate::{
    Blueprint, EngineError, Settings,
    backend::{kv_dtype, slab_on_host},
    error::{ContextShortage, LimitKind},
    kv_window::{WindowedPages, missing_host_pages},
};

/// Number of steps that a layout may shrink so that all weights stay resident.
const STEPS_FOR_RESIDENCE: u32 = 6;
/// Divisor of the budget that gives the memory for activations, logits and probes.
const WORKING_SHARE: u64 = 4;

impl Blueprint {
    /// Lays out a model with as much of the range as fits in memory. Numbers that the user set
    /// stay; the others shrink before anything is refused.
    pub fn sized(
        model: &Model,
        backend: &dyn Backend,
        range: &SizeRange,
        memory: MemorySettings,
        kv: &KvMemory,
    ) -> Result<Self, EngineError> {
        let search = Search {
            need: MemoryNeed::new(model, backend, memory)?,
            model,
            backend,
            range,
            memory,
            kv,
        };
        search.lay_out()
    }
}

/// Settings that fit.
#[derive(Clone)]
struct Fitting {
    settings: Settings,
    reason: ContextReason,
}

struct Search<'a> {
    model: &'a Model,
    backend: &'a dyn Backend,
    range: &'a SizeRange,
    memory: MemorySettings,
    kv: &'a KvMemory,
    need: MemoryNeed<'a>,
}

impl Search<'_> {
    fn lay_out(&self) -> Result<Blueprint, EngineError> {
        self.check_device()?;
        let fitting = self.choose()?;
        let (mut blueprint, reason) = self.draw(fitting)?;
        let settings = blueprint.settings();
        let largest = self.largest(self.most_context().0, |context| self.fits_anyhow(context));
        blueprint.sizing = Some(SizingChoice {
            context: settings.context,
            model_context: self.range.model_context,
            reason,
            largest: largest.unwrap_or(0).max(settings.context),
            reduced: self.range.reduced(settings),
        });
        Ok(blueprint)
    }

    /// Draws the blueprint. More streamed weights need more host memory: where that is scarce, a
    /// shorter context keeps more weights on the device.
    fn draw(&self, mut fitting: Fitting) -> Result<(Blueprint, ContextReason), EngineError> {
        loop {
            let settings = fitting.settings.clone();
            let least = self.range.device_pages(&settings);
            let drawn = Blueprint::for_pages(
                self.model,
                self.backend,
                settings,
                self.memory,
                self.kv,
                least,
            );
            let (context, free) = (fitting.settings.context, self.range.context);
            match (drawn, free) {
                (
                    Err(EngineError::HostBudget { .. } | EngineError::SpillNeedsHost { .. }),
                    ContextDemand::Free(_),
                ) if context > self.range.least_context() => {
                    let shorter = (context / 2).max(self.range.least_context());
                    let pages = self.range.pages_for(shorter);
                    fitting = Fitting {
                        settings: Settings {
                            context: shorter,
                            pages,
                            ..fitting.settings
                        },
                        reason: ContextReason::Fits,
                    };
                }
                (drawn, _) => return drawn.map(|blueprint| (blueprint, fitting.reason)),
            }
        }
    }

    /// Refuses a context that the kernels of the device do not support.
    fn check_device(&self) -> Result<(), EngineError> {
        match self.range.context {
            ContextDemand::Set(context) | ContextDemand::Needed(context) => {
                LimitKind::DeviceKeys.check(self.rounded(context), self.device_limits().keys)
            }
            ContextDemand::Free(_) => Ok(()),
        }
    }

    fn device_limits(&self) -> djinn_device::DeviceLimits {
        let program = &self.model.program;
        let dtype = kv_dtype(&self.memory, program);
        self.backend.limits(dtype, program.dims.d_head)
    }

    fn rounded(&self, context: usize) -> usize {
        context.next_multiple_of(self.range.most.page_tokens)
    }

    /// Settings after some steps of shrinking, within the limits of the device.
    fn at(&self, step: u32, context: usize) -> Settings {
        let mut settings = self.range.at(step, context);
        let limits = self.device_limits();
        let keys = &mut settings.probe_limits.pattern_keys;
        *keys = (*keys).min(limits.pattern_keys);
        settings.pages = settings.pages.min(self.range.device_pages(&settings));
        settings
    }

    /// Longest context that anything but memory allows, and the reason.
    fn most_context(&self) -> (usize, ContextReason) {
        let (model, tokens) = (self.range.model_context, self.range.most.page_tokens);
        let device = self.device_limits().keys / tokens * tokens;
        let one_page = self.need.page_bytes(&self.range.most, 1).max(1);
        let in_kv = self.kv.device.map_or(usize::MAX, |bytes| {
            let pages = usize::try_from(bytes / one_page).unwrap_or(usize::MAX);
            pages.saturating_mul(tokens)
        });
        let limits = [
            (model, ContextReason::Model),
            (device, ContextReason::Device),
            (in_kv, ContextReason::KvLimit),
        ];
        let least = limits.into_iter().min_by_key(|(tokens, _)| *tokens);
        let (most, reason) = least.unwrap_or((model, ContextReason::Model));
        (most.max(self.range.least_context().min(model)), reason)
    }

    /// The settings that fit with the least shrinking.
    fn choose(&self) -> Result<Fitting, EngineError> {
        let resident = (0..=STEPS_FOR_RESIDENCE).find_map(|step| self.resident_at(step));
        let streamed = || {
            (0..=SizeRange::LAST).find_map(|step| {
                let fitting = self.streamed_at(step)?;
                let works = step == SizeRange::LAST
                    || self.need.working(&fitting.settings) <= self.memory.budget / WORKING_SHARE;
                works.then_some(fitting)
            })
        };
        let fitting = resident.or_else(streamed).or_else(|| self.windowed());
        fitting.ok_or_else(|| self.refusal())
    }

    /// Settings for a context that the user or the requests fix and that exceeds the device: its
    /// pages stream through a KV window.
    fn windowed(&self) -> Option<Fitting> {
        let (context, reason) = match self.range.context {
            ContextDemand::Set(context) => (context, ContextReason::Set),
            ContextDemand::Needed(context) => (context, ContextReason::Needed),
            ContextDemand::Free(_) => return None,
        };
        (0..=SizeRange::LAST).find_map(|step| {
            let fitting = self.fitting(step, context, reason);
            let needed = self.window_need(&fitting.settings)?;
            let works = step == SizeRange::LAST
                || self.need.working(&fitting.settings) <= self.memory.budget / WORKING_SHARE;
            (works && needed <= self.memory.budget).then_some(fitting)
        })
    }

    /// Smallest budget in which the pages of a session stream through a KV window; `None` if host
    /// memory has no room for them, or a window gains nothing.
    fn window_need(&self, settings: &Settings) -> Option<u64> {
        let pages = WindowedPages::new(self.model, settings, &self.memory, self.kv)?;
        let page_bytes = self.need.page_bytes(settings, 1).max(1);
        let slab = slab_on_host(self.backend, self.memory.budget);
        let host = host::available_memory().saturating_sub(slab);
        let host = host.min(self.memory.host_budget) / page_bytes;
        let all = settings.pages.saturating_add(settings.table_pages());
        let windowed = Settings {
            pages: pages.least,
            window_pages: pages.window,
            host_pages: usize::try_from(host).unwrap_or(usize::MAX).min(all),
            ..settings.clone()
        };
        match missing_host_pages(&windowed) {
            None => Some(self.need.least(&windowed)),
            Some(_) => None,
        }
    }

    /// Whether a context fits with everything else at its smallest, if need be through a KV window.
    fn fits_anyhow(&self, context: usize) -> bool {
        let settings = self
            .fitting(SizeRange::LAST, context, ContextReason::Set)
            .settings;
        let windowed = || self.window_need(&settings);
        self.fits(SizeRange::LAST, context)
            || windowed().is_some_and(|bytes| bytes <= self.memory.budget)
    }

    /// Settings that keep all weights resident, with the longest context that allows it.
    fn resident_at(&self, step: u32) -> Option<Fitting> {
        let budget = self.memory.budget;
        let fits = |context: usize, sessions: usize| {
            let settings = self.at(step, context);
            let pages = settings.table_pages().saturating_mul(sessions);
            let settings = Settings {
                pages: settings.pages.max(pages),
                ..settings
            };
            self.need
                .resident(&settings)
                .is_some_and(|bytes| bytes <= budget)
        };
        let (context, reason) = match self.range.context {
            ContextDemand::Set(context) => (context, ContextReason::Set),
            ContextDemand::Needed(context) => (context, ContextReason::Needed),
            ContextDemand::Free(least) => {
                let (most, limit) = self.most_context();
                let comfort = SizeRange::COMFORT.max(least).min(most);
                let longest = self.largest(most, |context| fits(context, self.range.full_sessions));
                let context = longest.unwrap_or(0).max(comfort);
                match context == most {
                    true => (context, limit),
                    false => (context, ContextReason::Resident),
                }
            }
        };
        fits(context, 1).then(|| self.fitting(step, context, reason))
    }

    /// Settings for weights that stream. Up to [`SizeRange::COMFORT`] tokens of context take
    /// precedence over resident weights; more tokens get the share that KV has while weights
    /// stream.
    fn streamed_at(&self, step: u32) -> Option<Fitting> {
        let (context, reason) = match self.range.context {
            ContextDemand::Set(context) => (context, ContextReason::Set),
            ContextDemand::Needed(context) => (context, ContextReason::Needed),
            ContextDemand::Free(least) => {
                let (most, limit) = self.most_context();
                let is_busy =
                    |context: usize| self.need.busy(&self.at(step, context)) <= self.memory.budget;
                let longest = match step {
                    SizeRange::LAST => self.largest(most, |context| self.fits(step, context)),
                    _ => self.largest(most, is_busy),
                };
                let longest = longest.filter(|&longest| longest >= least.min(most))?;
                let share = self.kv.streamed_device_bytes(self.memory.budget);
                let in_share = self.largest(most, |context| {
                    let settings = self.at(step, context);
                    let pages = settings.table_pages();
                    let pages = pages.saturating_mul(self.range.full_sessions);
                    self.need.page_bytes(&settings, pages) <= share
                });
                let wanted = in_share.unwrap_or(0).max(SizeRange::COMFORT).max(least);
                match longest.min(wanted) {
                    context if context == most => (context, limit),
                    context if context == longest => (context, ContextReason::Fits),
                    context => (context, ContextReason::Share),
                }
            }
        };
        self.fits(step, context)
            .then(|| self.fitting(step, context, reason))
    }

    fn fits(&self, step: u32, context: usize) -> bool {
        self.need.least(&self.at(step, context)) <= self.memory.budget
    }

    fn fitting(&self, step: u32, context: usize, reason: ContextReason) -> Fitting {
        let settings = Settings {
            pages: self.range.pages_for(context),
            ..self.at(step, context)
        };
        Fitting { settings, reason }
    }

    /// Largest context up to `most` that has a property: `most` itself, or whole pages. A shorter
    /// context has the property too.
    fn largest(&self, most: usize, has: impl Fn(usize) -> bool) -> Option<usize> {
        if has(most) {
            return Some(most);
        }
        let tokens = self.range.most.page_tokens;
        let (mut fits, mut exceeds) = (0, most.div_ceil(tokens));
        while exceeds - fits > 1 {
            let middle = fits.midpoint(exceeds);
            match has(middle * tokens) {
                true => fits = middle,
                false => exceeds = middle,
            }
        }
        (fits > 0).then_some(fits * tokens)
    }

    /// Error for a range of which nothing fits: names the memory and the context that work.
    fn refusal(&self) -> EngineError {
        let context = self.range.least_context();
        let settings = self.at(SizeRange::LAST, context);
        let whole = self
            .fitting(SizeRange::LAST, context, ContextReason::Set)
            .settings;
        let windowed = self.window_need(&whole).unwrap_or(u64::MAX);
        let least = self.need.least(&settings).min(windowed);
        let is_free = matches!(self.range.context, ContextDemand::Free(_));
        let longest = self.largest(context, |context| self.fits_anyhow(context));
        let longest = longest.filter(|_| !is_free);
        if longest.is_some() || !self.range.flags.is_empty() {
            return EngineError::ContextMemory(ContextShortage {
                context: (!is_free).then_some(context),
                is_set: matches!(self.range.context, ContextDemand::Set(_)),
                longest,
                kv: self.need.page_bytes(&settings, settings.pages),
                budget: self.memory.budget,
                least,
                flags: self.range.flags.clone(),
            });
        }
        let drawn = Blueprint::draw(self.model, self.backend, settings, self.memory);
        drawn
            .err()
            .unwrap_or(EngineError::Plan(djinn_weights::PlanError::NotAll {
                budget: self.memory.budget,
                whole: least,
            }))
    }
}
