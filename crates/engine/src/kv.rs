//! How much of each tier pages of KV take.

use djinn_device::{Backend, host};
use djinn_kv::{KvMemory, PageDemand};
use djinn_model::Model;

use djinn_weights::MemorySettings;

use crate::{Blueprint, EngineError, Settings, backend::slab_on_host};

impl Blueprint {
    /// Lays a model out for sessions whose pages need not all be where passes run:
    /// `settings.pages` is what they come to together. What the device does not hold is in
    /// host memory, as far as there is any, and then on disk.
    pub fn for_sessions(
        model: &Model,
        backend: &dyn Backend,
        settings: Settings,
        memory: MemorySettings,
        kv: &KvMemory,
    ) -> Result<Self, EngineError> {
        let rooms = Rooms {
            model,
            backend,
            demand: PageDemand {
                total: settings.pages,
                longest: settings.table_pages(),
            },
            settings,
            memory,
            kv,
        };
        rooms.lay_out()
    }
}

struct Rooms<'a> {
    model: &'a Model,
    backend: &'a dyn Backend,
    settings: Settings,
    memory: MemorySettings,
    kv: &'a KvMemory,
    demand: PageDemand,
}

impl Rooms<'_> {
    fn draw(&self, pages: usize, host_pages: usize) -> Result<Blueprint, EngineError> {
        let settings = Settings {
            pages,
            host_pages,
            ..self.settings.clone()
        };
        Blueprint::draw(self.model, self.backend, settings, self.memory)
    }

    /// As many pages on the device as there is room for.
    fn lay_out(&self) -> Result<Blueprint, EngineError> {
        let least = self.demand.longest;
        let first = self.draw(least.min(self.demand.total), 0)?;
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
        let mut pages = self.demand.device_pages(room, page_bytes);
        loop {
            let drawn = self.with_host(pages, page_bytes);
            // Alignment may cost a page, tables of the host's some more, and pages what
            // streaming needs.
            let works = drawn
                .as_ref()
                .is_ok_and(|b| !stay || b.weights().keeps_everything());
            if works || pages <= least {
                return self.with_disk(drawn?);
            }
            pages = match stay {
                true => pages - 1,
                false => least.midpoint(pages),
            };
        }
    }

    /// So many pages on the device, and the rest in host memory as far as there is any.
    fn with_host(&self, pages: usize, page_bytes: u64) -> Result<Blueprint, EngineError> {
        let blueprint = self.draw(pages, 0)?;
        let slab = slab_on_host(self.backend, blueprint.footprint().slab());
        let there = host::available_memory().saturating_sub(slab);
        let there = there.min(self.memory.host_budget);
        // What is free now may be a little less when it is taken.
        let there = there - there / 32;
        let host = there.saturating_sub(blueprint.host_bytes());
        match self.demand.host_pages(pages, host, page_bytes) {
            0 => Ok(blueprint),
            host_pages => self.draw(pages, host_pages),
        }
    }

    /// What host memory has no room for, on disk.
    fn with_disk(&self, mut blueprint: Blueprint) -> Result<Blueprint, EngineError> {
        let Some(spill) = &self.kv.spill else {
            return Ok(blueprint);
        };
        let (pages, host_pages) = (blueprint.settings.pages, blueprint.settings.host_pages);
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
