//! Layout of a slab in which weights yield to KV pages.

use djinn_device::{Backend, host};
use djinn_kv::PageDemand;
use djinn_model::Model;
use djinn_types::{IO_BLOCK, Tier};
use djinn_weights::{ElasticWeights, LevelRange, MemorySettings, SharedMemory, WeightLayout};

use crate::{Blueprint, EngineError, Settings, backend::slab_on_host, blueprint::BlueprintDraft};

/// Number of attempts to fit a layout into its budget.
const ATTEMPTS: usize = 4;

/// An elastic layout before its range of levels is known.
pub(crate) struct ElasticDraft<'a> {
    pub model: &'a Model,
    pub backend: &'a dyn Backend,
    pub settings: &'a Settings,
    pub memory: MemorySettings,
    pub demand: PageDemand,
    /// Fixed layout for the same sessions.
    pub fixed: &'a Blueprint,
}

impl ElasticDraft<'_> {
    /// Draws the layout. Returns `None` if it would have no more pages than the fixed one, or
    /// would stream weights that the fixed one keeps.
    pub fn draw(&self) -> Result<Option<Blueprint>, EngineError> {
        let keeps_everything = self.fixed.weights().keeps_everything();
        let options = self.draft(0, 0)?.options();
        let (program, files) = (&self.model.program, &*self.model.weights);
        let Some(weights) = ElasticWeights::cut(program, files, options, keeps_everything) else {
            return Ok(None);
        };
        // The sizes of driver and alignment follow from the layout, so it may need several
        // attempts.
        let mut spare = IO_BLOCK;
        for _ in 0..ATTEMPTS {
            let Some(range) = self.range(&weights, spare)? else {
                return Ok(None);
            };
            if range.frames <= self.fixed.settings().pages || (keeps_everything && range.least > 0)
            {
                return Ok(None);
            }
            let blueprint = self.finish(&weights, range)?;
            let (total, budget) = (blueprint.footprint().total(), self.memory.budget);
            if total <= budget && blueprint.least_frames() >= self.demand.longest {
                return Ok(Some(blueprint));
            }
            spare += (total.saturating_sub(budget)).max(blueprint.page_bytes());
        }
        Ok(None)
    }

    fn draft(&self, pages: usize, host_pages: usize) -> Result<BlueprintDraft<'_>, EngineError> {
        let settings = Settings {
            pages,
            host_pages,
            ..self.settings.clone()
        };
        BlueprintDraft::new(self.model, self.backend, settings, self.memory)
    }

    /// Bytes of host memory for weights that yield and for pages.
    fn host_room(&self) -> u64 {
        let slab = slab_on_host(self.backend, self.fixed.footprint().slab());
        let there = host::available_memory().saturating_sub(slab);
        let there = there.min(self.memory.host_budget);
        // Free memory may shrink a little before it is allocated.
        let there = there - there / 32;
        there.saturating_sub(self.fixed.link().load_staging())
    }

    /// Bytes of host memory for weights that yield. Pages get what they need first, but at most
    /// half of the room.
    fn image_room(&self, weights: &ElasticWeights) -> u64 {
        if weights.tier() == Tier::Files {
            return u64::MAX;
        }
        let room = self.host_room();
        let pages = (self.demand.total + self.demand.longest) as u64;
        let pages = pages.saturating_mul(self.fixed.page_bytes());
        (room - pages.min(room / 2)).saturating_sub(weights.table_bytes())
    }

    fn range(
        &self,
        weights: &ElasticWeights,
        spare: u64,
    ) -> Result<Option<LevelRange>, EngineError> {
        let page_bytes = self.fixed.page_bytes();
        let host_pages = self.demand.host_pages(0, self.host_room(), page_bytes);
        let beside = self.draft(0, host_pages)?.beside(weights.pieces()).total();
        let taken = beside.saturating_add(weights.fixed_bytes() + spare);
        let Some(bytes) = self.memory.budget.checked_sub(taken) else {
            return Ok(None);
        };
        let shared = SharedMemory {
            bytes,
            frame_bytes: page_bytes,
            least_frames: self.demand.longest.min(self.demand.total),
            most_frames: self.demand.total,
            host_bytes: self.image_room(weights),
        };
        Ok(LevelRange::fit(&weights.unit_bytes(), &shared))
    }

    fn finish(
        &self,
        weights: &ElasticWeights,
        range: LevelRange,
    ) -> Result<Blueprint, EngineError> {
        let whole = self.fixed.weights().whole_bytes();
        let layout = WeightLayout::elastic_at(&self.model.program, weights, range, whole);
        let room = self.host_room().saturating_sub(layout.host_bytes());
        // Waiting sessions leave the device when weights return.
        let least = self.demand.longest.min(self.demand.total);
        let host_pages = self.demand.host_pages(least, room, self.fixed.page_bytes());
        self.draft(range.frames, host_pages)?.finish(layout)
    }
}
