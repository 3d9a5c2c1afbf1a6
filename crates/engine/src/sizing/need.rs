//! Memory that settings need, counted without a plan, so that many settings can be tried.

use djinn_device::Backend;
use djinn_model::Model;
use djinn_weights::{Keep, LinkSettings, MemorySettings, Pieces};

use crate::{
    EngineError, Settings,
    backend::{packing, piece_bytes},
    blueprint::{BlueprintDraft, FixedBytes},
};

/// Counts the memory that settings need for one model on one device.
pub(super) struct MemoryNeed<'a> {
    model: &'a Model,
    backend: &'a dyn Backend,
    memory: MemorySettings,
    link: LinkSettings,
    /// The weights if all of them stay.
    whole: Pieces,
    /// The weights if they stream.
    cut: Pieces,
}

impl<'a> MemoryNeed<'a> {
    pub fn new(
        model: &'a Model,
        backend: &'a dyn Backend,
        memory: MemorySettings,
    ) -> Result<Self, EngineError> {
        let link = LinkSettings::resolve(&memory, backend.tier())?;
        let (program, weights) = (&model.program, &*model.weights);
        let packing = packing(backend, link.tier);
        let largest = piece_bytes(backend, program.weight_bytes());
        Ok(MemoryNeed {
            whole: Pieces::whole(program, weights, packing),
            cut: Pieces::cut(program, weights, packing, largest),
            model,
            backend,
            memory,
            link,
        })
    }

    /// Bytes beside the weights, by purpose; `None` beyond the limits of the device.
    fn beside(&self, settings: &Settings, pieces: &Pieces) -> Option<FixedBytes> {
        let settings = settings.clone();
        let draft = BlueprintDraft::new(self.model, self.backend, settings, self.memory);
        Some(draft.ok()?.beside(pieces))
    }

    /// Bytes beside weights that are cut into these pieces.
    fn fixed(&self, settings: &Settings, pieces: &Pieces) -> u64 {
        let fixed = self.beside(settings, pieces);
        let fixed = fixed.map_or(u64::MAX, |fixed| fixed.total());
        fixed.saturating_add(pieces.kept_bytes())
    }

    /// Bytes with all weights resident; `None` if the user does not want all of them to stay.
    pub fn resident(&self, settings: &Settings) -> Option<u64> {
        let stays = match self.memory.overrides.keep {
            Keep::Fit | Keep::All => true,
            Keep::Nothing => false,
            Keep::AtMost(bytes) => self.whole.kept_bytes() <= bytes,
        };
        stays.then(|| self.fixed(settings, &self.whole))
    }

    /// Smallest budget that works.
    pub fn least(&self, settings: &Settings) -> u64 {
        self.with_ring(settings, self.cut.through_bytes())
    }

    /// Smallest budget in which the link of streamed weights is busy all the time.
    pub fn busy(&self, settings: &Settings) -> u64 {
        self.with_ring(settings, self.cut.busy_bytes(&self.link))
    }

    /// Smallest budget with `bytes` for a ring and experts, unless the user set the ring.
    fn with_ring(&self, settings: &Settings, bytes: u64) -> u64 {
        let resident = self.resident(settings).unwrap_or(u64::MAX);
        if self.memory.overrides.keep == Keep::All {
            return resident;
        }
        let through = match self.memory.overrides.ring {
            Some(ring) => self.cut.through_bytes().max(ring),
            None => bytes,
        };
        let streamed = self.fixed(settings, &self.cut).saturating_add(through);
        resident.min(streamed)
    }

    /// Bytes for activations and scratch.
    pub fn working(&self, settings: &Settings) -> u64 {
        let fixed = self.beside(settings, &self.cut);
        fixed.map_or(u64::MAX, |fixed| {
            fixed.activations.saturating_add(fixed.scratch)
        })
    }

    /// Bytes of a number of KV pages.
    pub fn page_bytes(&self, settings: &Settings, pages: usize) -> u64 {
        let settings = Settings {
            pages,
            ..settings.clone()
        };
        self.beside(&settings, &self.cut)
            .map_or(u64::MAX, |fixed| fixed.kv)
    }
}
