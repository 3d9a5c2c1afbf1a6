//! Elastic memory of a running engine: moves the boundary between weights and KV pages.

use djinn_kv::Pages;
use djinn_model::program::Program;

use crate::{
    blueprint::Blueprint,
    error::EngineError,
    executor::Executor,
    scheduler::{
        Scheduler,
        elastic::{ElasticPolicy, page_need},
        eviction::evict_waiting,
    },
    session::residency::SessionMemory,
};

/// Division of device memory between weights and KV pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemorySplit {
    /// Number of units of weights that stream.
    pub level: usize,
    /// Lowest level of the layout; equal to the highest one if the plan is fixed.
    pub least: usize,
    /// Highest level of the layout.
    pub most: usize,
    /// Bytes of weights that stay on the device.
    pub resident_bytes: u64,
    /// Bytes of weights that stream in each pass.
    pub streamed_bytes: u64,
    /// Number of KV frames on the device.
    pub frames: usize,
    /// Bytes of device memory for KV frames.
    pub kv_bytes: u64,
    /// Number of changes of the level so far.
    pub switches: u64,
    /// Number of changes of the level that failed.
    pub failed: u64,
}

impl MemorySplit {
    /// Adds the division of the memory of a blueprint.
    pub(crate) fn of(self, blueprint: &Blueprint) -> Self {
        let range = blueprint.levels();
        MemorySplit {
            level: blueprint.weights().level(),
            least: range.map_or(0, |range| range.least),
            most: range.map_or(0, |range| range.most),
            resident_bytes: blueprint.footprint().resident,
            streamed_bytes: blueprint.plan().ring.streamed_bytes(),
            frames: blueprint.frames(),
            kv_bytes: blueprint.footprint().kv,
            ..self
        }
    }
}

/// Parts of an engine that a change of the level needs.
pub(crate) struct ElasticParts<'e> {
    pub program: &'e Program,
    pub executor: &'e mut Executor,
    pub blueprint: &'e mut Blueprint,
    pub scheduler: &'e mut Scheduler,
    pub residency: SessionMemory<'e>,
}

/// Policy of an elastic layout, and counts of what it did.
pub(crate) struct ElasticMemory {
    policy: ElasticPolicy,
    least: usize,
    switches: u64,
    failed: u64,
}

impl ElasticMemory {
    /// Creates the policy of a blueprint; `None` if its plan is fixed.
    pub fn new(blueprint: &Blueprint) -> Option<Self> {
        let range = blueprint.levels()?;
        let frames = (range.least..=range.most).map(|level| blueprint.frames_at(level));
        Some(ElasticMemory {
            policy: ElasticPolicy::new(frames.collect()),
            least: range.least,
            switches: 0,
            failed: 0,
        })
    }

    /// Counts of changes so far.
    pub fn counts(&self) -> MemorySplit {
        MemorySplit {
            switches: self.switches,
            failed: self.failed,
            ..MemorySplit::default()
        }
    }

    /// Moves the boundary by the policy, between two passes.
    pub fn balance(&mut self, parts: &mut ElasticParts<'_>) {
        let residency = &parts.residency;
        let spill = &parts.scheduler.spill;
        let batch = parts.scheduler.batch();
        let need = page_need(residency.sessions, residency.pager, spill, batch);
        let level = parts.blueprint.weights().level();
        let wanted = self.least + self.policy.decide(level - self.least, need);
        // A failure is counted. The level stays, and the policy tries again later.
        let _ = self.switch(parts, wanted);
    }

    /// Changes the level, as far as pages can move. Failures leave the engine at the level
    /// before.
    pub fn set_level(
        &mut self,
        parts: &mut ElasticParts<'_>,
        level: usize,
    ) -> Result<(), EngineError> {
        let range = parts.blueprint.levels();
        let level = range.map_or(level, |range| level.clamp(range.least, range.most));
        self.policy.restart();
        self.switch(parts, level)
    }

    fn switch(&mut self, parts: &mut ElasticParts<'_>, level: usize) -> Result<(), EngineError> {
        let before = parts.blueprint.weights().level();
        if level == before {
            return Ok(());
        }
        if level < before && !vacate(parts, level) {
            self.policy.restart();
            return Ok(());
        }
        let (executor, blueprint) = (&mut *parts.executor, &mut *parts.blueprint);
        let switched = executor.switch(parts.program, blueprint, level);
        match switched {
            Ok(()) => self.switches += 1,
            Err(_) => {
                self.failed += 1;
                self.policy.restart();
            }
        }
        // Frames become available after the weights in them have left, or if weights could not
        // return. More frames move no page.
        let frames = parts.blueprint.frames();
        let pager = &mut *parts.residency.pager;
        pager.set_device_frames(frames)?;
        let streamed = parts.blueprint.plan().ring.streamed_bytes();
        parts.scheduler.note_streamed(streamed);
        switched
    }
}

/// Frees the frames that weights need at a lower level. Returns whether all of them are free.
fn vacate(parts: &mut ElasticParts<'_>, level: usize) -> bool {
    let frames = parts.blueprint.frames_at(level);
    let residency = &mut parts.residency;
    // Cached pages leave their frames to others.
    let held = |pages: &Pages| pages.device().total() - pages.device_room();
    let more = held(residency.pager.pages()).saturating_sub(frames);
    if more > 0 {
        evict_waiting(residency, &parts.scheduler.spill, more);
    }
    let pages = residency.pager.pages();
    if held(pages) > frames {
        return false;
    }
    let outside: Vec<_> = pages.outside(frames).collect();
    let moved = residency.pager.set_device_frames(frames);
    let is_moved = moved.is_ok();
    residency.defer_failure(moved.map_err(EngineError::from), &outside);
    if !is_moved {
        let frames = parts.blueprint.frames();
        let restored = residency.pager.set_device_frames(frames);
        residency.defer_failure(restored.map_err(EngineError::from), &[]);
    }
    is_moved
}
