//! Division of device memory among models. Each model gets what it needs; if that is more than there
//! is, the models get fair parts, or take turns with all of it.

use djinn_engine::{Blueprint, SizingChoice};
use djinn_model::Model;

use super::{
    layout::{FULL_SESSIONS, streams},
    loader::{ModelLoader, Sharer},
};
use crate::ServeError;

/// Tokens per session of a pass for which a model needs KV memory, unless its context is shorter.
const SESSION_TOKENS: usize = 4096;

impl ModelLoader {
    /// Bytes of device memory for the model: the bytes that are set for it, or else what it needs, or
    /// less if it works well in its fair part of the free memory. If the result is more than the free
    /// memory, the model takes turns with others.
    pub(super) fn budget(&self, model: &Model) -> Result<u64, ServeError> {
        let all = self.config.memory.budget;
        if let Some(asked) = self.layout.memory {
            return Ok(asked.min(all));
        }
        let need = self.need(model)?;
        let part = self.part(need);
        let is_enough = || self.draw(model, part).is_ok_and(|drawn| works_well(&drawn));
        match part < need && is_enough() {
            true => Ok(part),
            false => Ok(need),
        }
    }

    /// Bytes of device memory that the model needs to keep its weights and the KV pages of its sessions
    /// there; all memory if that is not enough.
    fn need(&self, model: &Model) -> Result<u64, ServeError> {
        let all = self.config.memory.budget;
        let alone = self.draw(model, all)?;
        if streams(&alone) || alone.levels().is_some() {
            return Ok(all);
        }
        let (settings, footprint) = (alone.settings(), alone.footprint());
        if self.config.kv.device.is_some() {
            return Ok(footprint.total());
        }
        let context = settings.context;
        let tokens = (FULL_SESSIONS * context).max(settings.sessions * context.min(SESSION_TOKENS));
        let kv = tokens.div_ceil(settings.page_tokens) as u64 * alone.page_bytes();
        // Tables and alignment take some more.
        let kv = (kv + kv / 64).min(footprint.kv);
        Ok(footprint.total() - footprint.kv + kv)
    }

    /// Part of the free memory that is fair to the models that are loaded later.
    fn part(&self, need: u64) -> u64 {
        let need_of = |sharer: &Sharer| {
            let loader = ModelLoader {
                reference: sharer.reference.clone(),
                layout: sharer.layout,
                ..self.clone()
            };
            if let Some(asked) = sharer.layout.memory {
                return asked.min(self.config.memory.budget);
            }
            // A model that cannot be loaded takes no memory.
            let opened = Model::open(&loader.reference);
            opened.map_or(0, |model| loader.need(&model).unwrap_or(0))
        };
        let needs: Vec<u64> = std::iter::once(need)
            .chain(self.sharers.iter().map(need_of))
            .collect();
        fair_parts(self.free, &needs)[0]
    }
}

/// Whether a model keeps its weights on the device and has room for a useful context.
fn works_well(blueprint: &Blueprint) -> bool {
    let is_tight = blueprint.sizing().is_some_and(SizingChoice::is_tight);
    !streams(blueprint) && !is_tight
}

/// Divides `free` bytes by what each model needs: models that need less than an equal part get what
/// they need, and the others share the rest equally.
fn fair_parts(free: u64, needs: &[u64]) -> Vec<u64> {
    let mut order: Vec<usize> = (0..needs.len()).collect();
    order.sort_by_key(|&model| needs[model]);
    let mut parts = vec![0; needs.len()];
    let mut left = free;
    for (done, &model) in order.iter().enumerate() {
        let equal = left / (needs.len() - done) as u64;
        parts[model] = needs[model].min(equal);
        left -= parts[model];
    }
    parts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::fair_parts;

    #[test]
    fn models_that_need_little_leave_the_rest_to_others() {
        assert_eq!(fair_parts(100, &[80, 10, 90]), [45, 10, 45]);
        assert_eq!(fair_parts(100, &[30, 10, 20]), [30, 10, 20]);
        assert_eq!(fair_parts(100, &[70]), [70]);
        assert_eq!(fair_parts(0, &[70, 1]), [0, 0]);
    }

    proptest! {
        #[test]
        fn no_model_gets_less_than_an_equal_part_or_its_need(
            free in 0u64..1000,
            needs in prop::collection::vec(0u64..1000, 1..6),
        ) {
            let parts = fair_parts(free, &needs);
            prop_assert!(parts.iter().sum::<u64>() <= free);
            for (part, need) in parts.iter().zip(&needs) {
                prop_assert!(part <= need);
                prop_assert!(*part >= (*need).min(free / needs.len() as u64));
            }
        }
    }
}
