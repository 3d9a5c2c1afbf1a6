//! How much of each tier pages of KV take.

use std::path::PathBuf;

use djinn_device::{Backend, host};
use djinn_model::Model;

use djinn_weights::MemorySettings;

use crate::{Blueprint, EngineError, Settings, backend::slab_on_host};

/// Which part of the device's memory pages take where weights stream.
const KV_SHARE: u64 = 8;

/// Where pages of sessions may be.
#[derive(Clone, Debug, Default)]
pub struct KvMemory {
    /// Bytes of the device; when not said, as the weights leave room for, or an eighth of
    /// its memory where those do not all fit.
    pub device: Option<u64>,
    /// What is behind the host's memory, if anything is.
    pub spill: Option<SpillTo>,
}

/// Disk for pages that host memory has no room for.
#[derive(Clone, Debug)]
pub struct SpillTo {
    /// The folder the file is made in.
    pub folder: PathBuf,
    /// Bytes it may take.
    pub bytes: u64,
}

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
            all: settings.pages,
            least: settings.table_pages(),
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
    /// Pages of all sessions, and of the longest.
    all: usize,
    least: usize,
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
        let (all, least) = (self.all, self.least);
        let first = self.draw(least.min(all), 0)?;
        let page_bytes = first.page_bytes().max(1);
        let stay = first.weights().keeps_everything() && self.kv.device.is_none();
        let footprint = first.footprint();
        let room = match stay {
            true => self.memory.budget.saturating_sub(footprint.total()),
            false => {
                let kv = self.kv.device.unwrap_or(self.memory.budget / KV_SHARE);
                kv.saturating_sub(footprint.kv)
            }
        };
        let fits = usize::try_from(room / page_bytes).unwrap_or(usize::MAX);
        let mut pages = least.saturating_add(fits).min(all);
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
        let host = there.saturating_sub(blueprint.host_bytes()) / page_bytes;
        let host = usize::try_from(host).unwrap_or(usize::MAX);
        // Whoever waits is there, whatever the device could hold: it comes back without
        // somebody else's having to go first.
        match self.all > pages {
            true => self.draw(pages, (self.all + self.least).min(host)),
            false => Ok(blueprint),
        }
    }

    /// What host memory has no room for, on disk.
    fn with_disk(&self, mut blueprint: Blueprint) -> Result<Blueprint, EngineError> {
        let Some(spill) = &self.kv.spill else {
            return Ok(blueprint);
        };
        let settings = &mut blueprint.settings;
        let here = settings.pages + settings.host_pages;
        // The reserve of the host is for what comes back, beside room for one to go.
        let wanted = (self.all + 3 * self.least).saturating_sub(here);
        if self.all <= settings.pages || wanted == 0 {
            return Ok(blueprint);
        }
        let (host, needed) = (settings.host_pages, 2 * self.least);
        let page_bytes = blueprint.page_bytes();
        if host < needed {
            let bytes = |pages: usize| pages as u64 * page_bytes;
            return Err(EngineError::SpillNeedsHost {
                needed: bytes(needed),
                there: bytes(host),
            });
        }
        let most = usize::try_from(spill.bytes / page_bytes.max(1)).unwrap_or(usize::MAX);
        blueprint.settings.disk_pages = wanted.min(most);
        blueprint.spill = Some(spill.folder.clone());
        Ok(blueprint)
    }
}
