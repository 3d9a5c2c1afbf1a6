//! Layout for many sessions: how many KV pages lie on the device, in host memory and on disk.

use djinn_device::{Backend, host};
use djinn_kv::{KvMemory, PageDemand};
use djinn_model::Model;

use djinn_weights::{MemorySettings, Overrides};

use crate::{
    Blueprint, EngineError, Settings,
    backend::slab_on_host,
    elastic_draft::ElasticDraft,
    kv_window::{WindowedPages, exceeds_kv_memory, missing_host_pages},
};

/// Tokens per session of a pass for which host memory keeps room, if the model may leave the device.
const SWAPPED_TOKENS: usize = 512;

impl Blueprint {
    /// Lays out a model for sessions whose KV pages need not all fit on the device.
    /// `settings.pages` is the number of pages of all sessions together. Host memory takes the
    /// pages that the device has no room for, and the disk takes the rest. If the device has no
    /// room for the longest session either, its pages stream through a KV window.
    ///
    /// With [`MemorySettings::elastic`], resident weights yield to KV pages when sessions need
    /// them, unless the user fixed either part or a fixed plan has room for everything.
    pub fn for_sessions(
        model: &Model,
        backend: &dyn Backend,
        settings: Settings,
        memory: MemorySettings,
        kv: &KvMemory,
    ) -> Result<Self, EngineError> {
        let longest = settings.table_pages().min(settings.pages);
        Self::for_pages(model, backend, settings, memory, kv, longest)
    }

    /// Whether host memory has room for the KV pages of running sessions when the model leaves the
    /// device.
    pub fn has_room_to_swap(&self) -> bool {
        self.settings.host_pages >= swapped_pages(&self.settings)
    }

    /// Lays out a model as [`for_sessions`](Self::for_sessions) does, with at least `least` pages on
    /// the device.
    pub(crate) fn for_pages(
        model: &Model,
        backend: &dyn Backend,
        settings: Settings,
        memory: MemorySettings,
        kv: &KvMemory,
        least: usize,
    ) -> Result<Self, EngineError> {
        let layout = SessionLayout {
            model,
            backend,
            demand: PageDemand {
                total: settings.pages,
                longest: settings.table_pages(),
            },
            least,
            settings,
            memory,
            kv,
        };
        if exceeds_kv_memory(model, &layout.settings, &layout.memory, kv)
            && let Some(pages) = layout.windowed_pages()
        {
            return layout.with_window(pages);
        }
        let laid_out = layout.lay_out().and_then(|fixed| layout.finish(fixed));
        laid_out.or_else(|error| match error {
            // The error of memory for the whole session names what all of it needs.
            EngineError::Plan(_) => match layout.windowed_pages() {
                Some(pages) => layout.with_window(pages).map_err(|other| match other {
                    EngineError::Plan(_) => error,
                    other => other,
                }),
                None => Err(error),
            },
            error => Err(error),
        })
    }
}

/// Number of KV pages of running sessions that host memory should take when the model leaves the device.
fn swapped_pages(settings: &Settings) -> usize {
    let tokens = SWAPPED_TOKENS.min(settings.context) * settings.sessions;
    let pages = tokens.div_ceil(settings.page_tokens);
    settings.table_pages().max(pages).min(settings.pages)
}

struct SessionLayout<'a> {
    model: &'a Model,
    backend: &'a dyn Backend,
    settings: Settings,
    memory: MemorySettings,
    kv: &'a KvMemory,
    demand: PageDemand,
    /// Least number of pages on the device.
    least: usize,
}

impl SessionLayout<'_> {
    fn draw(&self, pages: usize, host_pages: usize) -> Result<Blueprint, EngineError> {
        let settings = Settings {
            pages,
            host_pages,
            ..self.settings.clone()
        };
        Blueprint::draw(self.model, self.backend, settings, self.memory)
    }

    fn windowed_pages(&self) -> Option<WindowedPages> {
        WindowedPages::new(self.model, &self.settings, &self.memory, self.kv)
    }

    /// Places the pages of a window on the device, and as many frames as the KV memory has room
    /// for, but at least as many as a pass writes.
    fn with_window(&self, pages: WindowedPages) -> Result<Blueprint, EngineError> {
        let windowed = SessionLayout {
            settings: Settings {
                window_pages: pages.window,
                ..self.settings.clone()
            },
            least: pages.least,
            ..*self
        };
        let mut frames = pages.wanted;
        let first = loop {
            match windowed.draw(frames, 0) {
                Err(EngineError::Plan(_)) if frames > pages.least => {
                    frames = pages.least.midpoint(frames);
                }
                drawn => break drawn?,
            }
        };
        let page_bytes = first.page_bytes().max(1);
        if first.weights().keeps_everything() && self.kv.device.is_none() {
            let room = self.memory.budget.saturating_sub(first.footprint().total());
            let more = usize::try_from(room / page_bytes).unwrap_or(usize::MAX);
            frames = frames.saturating_add(more).min(self.demand.longest);
        }
        let blueprint = loop {
            match windowed.with_host(frames, page_bytes) {
                Err(EngineError::Plan(_)) if frames > pages.least => {
                    frames = pages.least.midpoint(frames);
                }
                drawn => break windowed.with_disk(drawn?)?,
            }
        };
        match missing_host_pages(blueprint.settings()) {
            None => Ok(self.explained(blueprint)),
            Some(needed) => Err(EngineError::WindowNeedsHost {
                needed: needed as u64 * page_bytes,
                there: blueprint.host_page_bytes(),
            }),
        }
    }

    /// Lets weights yield where that gains pages, and places pages on disk.
    fn finish(&self, fixed: Blueprint) -> Result<Blueprint, EngineError> {
        if let Some(elastic) = self.elastic(&fixed)? {
            // The image of the weights may leave too little host memory for a disk tier.
            if let Ok(elastic) = self.with_disk(elastic) {
                return Ok(elastic);
            }
        }
        Ok(self.explained(self.with_disk(fixed)?))
    }

    /// Records in a fixed plan why no weights yield, if the user asks for it.
    fn explained(&self, mut fixed: Blueprint) -> Blueprint {
        let has_all = fixed.settings.pages >= self.demand.total;
        fixed.fixed_because = match self.memory.elastic {
            false => None,
            true if self.memory.overrides != Overrides::default() => {
                Some("--resident or --ring fixes the plan")
            }
            true if self.kv.device.is_some() => Some("--kv fixes the number of KV pages"),
            true if has_all => Some("all KV pages fit on the device"),
            true if self.model.program.dims.experts > 0 => {
                Some("weights of a model with experts do not yield")
            }
            true if fixed.settings.window_pages > 0 => Some("KV pages stream through a window"),
            true => Some("a plan in which weights yield does not fit, or has no more KV pages"),
        };
        fixed
    }

    /// Places as many pages on the device as fit, and the others in host memory.
    fn lay_out(&self) -> Result<Blueprint, EngineError> {
        let least = self.least;
        let first = self.draw(least, 0)?;
        let page_bytes = first.page_bytes().max(1);
        let stay = first.weights().keeps_everything() && self.kv.device.is_none();
        let footprint = first.footprint();
        let room = match stay {
            true => self.memory.budget.saturating_sub(footprint.total()),
            false => {
                let kv = self.kv.streamed_device_bytes(self.memory.budget);
                kv.saturating_sub(footprint.kv)
            }
        };
        let more =
            self.demand.device_pages(room, page_bytes) - self.demand.longest.min(self.demand.total);
        let mut pages = least.saturating_add(more).min(self.demand.total);
        loop {
            let drawn = self.with_host(pages, page_bytes);
            // Alignment may cost a page, page tables of host memory some more, and pages may
            // take the room that streaming needs.
            let works = drawn
                .as_ref()
                .is_ok_and(|b| !stay || b.weights().keeps_everything());
            if works || pages <= least {
                return drawn;
            }
            pages = match stay {
                true => pages - 1,
                false => least.midpoint(pages),
            };
        }
    }

    /// Places `pages` pages on the device, and the others in host memory as far as they fit.
    fn with_host(&self, pages: usize, page_bytes: u64) -> Result<Blueprint, EngineError> {
        let blueprint = self.draw(pages, 0)?;
        let slab = slab_on_host(self.backend, blueprint.footprint().slab());
        let there = host::available_memory().saturating_sub(slab);
        let there = there.min(self.memory.host_budget);
        // Free memory may shrink a little before it is allocated.
        let there = there - there / 32;
        let host = there.saturating_sub(blueprint.host_bytes());
        let mut host_pages = self.demand.host_pages(pages, host, page_bytes);
        if self.memory.may_swap {
            let swapped = swapped_pages(blueprint.settings());
            host_pages = host_pages.max(swapped.min((host / page_bytes) as usize));
        }
        // The tables of host memory may need more device memory than there is.
        while host_pages > 0 {
            match self.draw(pages, host_pages) {
                Err(EngineError::Plan(_)) if pages <= self.least => host_pages /= 2,
                drawn => return drawn,
            }
        }
        Ok(blueprint)
    }

    /// Lays out the model so that weights yield to pages; `None` if that gains no pages.
    fn elastic(&self, fixed: &Blueprint) -> Result<Option<Blueprint>, EngineError> {
        let is_free = self.memory.overrides == Overrides::default() && self.kv.device.is_none();
        if !self.memory.elastic || !is_free || fixed.settings.pages >= self.demand.total {
            return Ok(None);
        }
        let draft = ElasticDraft {
            model: self.model,
            backend: self.backend,
            settings: &self.settings,
            memory: self.memory,
            demand: self.demand,
            fixed,
        };
        draft.draw()
    }

    /// Places the pages on disk that host memory has no room for.
    fn with_disk(&self, mut blueprint: Blueprint) -> Result<Blueprint, EngineError> {
        let Some(spill) = &self.kv.spill else {
            return Ok(blueprint);
        };
        let (pages, host_pages) = (blueprint.least_frames(), blueprint.settings.host_pages);
        let page_bytes = blueprint.page_bytes();
        let bytes = |pages: usize| pages as u64 * page_bytes;
        let disk_pages = self
            .demand
            .disk_pages(pages, host_pages, spill.bytes, page_bytes)
            .map_err(|error| EngineError::SpillNeedsHost {
                needed: bytes(error.needed),
                there: bytes(error.host),
            })?;
        if disk_pages > 0 {
            blueprint.settings.disk_pages = disk_pages;
            blueprint.spill = Some(spill.folder.clone());
        }
        Ok(blueprint)
    }
}
