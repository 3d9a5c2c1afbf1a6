//! Experts that are copied into the slots of a pool when a router chooses them.

use djinn_device::DeviceError;

use crate::expert_cache::ExpertCache;

/// Slots of the expert pool. Experts are numbered over all blocks.
pub(super) struct ExpertSlots {
    cache: ExpertCache,
    slot_bytes: u64,
}

/// Result of assigning a slot to an expert.
pub(super) enum SlotChoice {
    /// The expert is in memory, or a copy of it is in flight.
    Present,
    /// The expert was assigned this slot and must be copied there.
    Assigned(usize),
    /// All slots hold experts that must stay.
    Full,
}

/// Copies experts into slots and orders the copies with operations.
pub(super) trait ExpertLoader {
    /// Slots of the pool.
    fn slots(&mut self) -> &mut ExpertSlots;
    /// Starts the copy of an expert into the slot that it was assigned.
    fn start_copy(&mut self, expert: usize, slot: usize) -> Result<(), DeviceError>;
    /// Makes the next operations wait for the copy of an expert.
    fn await_copy(&mut self, expert: usize, slot: usize) -> Result<(), DeviceError>;
    /// Releases a slot after all operations that use its expert are enqueued.
    fn release(&mut self, slot: usize) -> Result<(), DeviceError>;
}

impl ExpertSlots {
    pub fn new(slots: usize, slot_bytes: u64, experts: usize) -> Self {
        ExpertSlots {
            cache: ExpertCache::new(slots, experts),
            slot_bytes,
        }
    }

    /// Assigns a slot to an expert. Experts in `held` must stay; experts in `upcoming` are
    /// evicted last.
    pub fn assign(&mut self, expert: usize, held: &[usize], upcoming: &[usize]) -> SlotChoice {
        if self.cache.slot_of(expert).is_some() {
            return SlotChoice::Present;
        }
        let stays = |other| held.contains(&other);
        let last = |other| upcoming.contains(&other);
        let slot = self.cache.admit(expert, stays, last);
        slot.map_or(SlotChoice::Full, SlotChoice::Assigned)
    }

    /// Assigns slots to the experts that are loaded before the first pass. Returns pairs
    /// of expert and slot.
    pub fn assign_first(&mut self, experts: &[usize]) -> Vec<(usize, usize)> {
        let assign = |&expert: &usize| match self.assign(expert, &[], &[]) {
            SlotChoice::Assigned(slot) => (expert, slot),
            _ => unreachable!("there are no more experts than slots, and each comes once"),
        };
        experts.iter().map(assign).collect()
    }

    /// Distance in bytes of a slot from the first slot.
    pub fn distance(&self, slot: usize) -> u64 {
        slot as u64 * self.slot_bytes
    }

    /// Removes the experts from all slots for which `lost` is true.
    pub fn remove_lost(&mut self, mut lost: impl FnMut(usize) -> bool) {
        for expert in 0..self.cache.experts() {
            if self.cache.slot_of(expert).is_some_and(&mut lost) {
                self.cache.remove(expert);
            }
        }
    }
}

/// Runs the chosen experts in order. With `prefetch`, copies of the following experts
/// start as soon as slots are free.
pub(super) fn run_chosen(
    loader: &mut impl ExpertLoader,
    chosen: &[usize],
    prefetch: bool,
    run: &mut dyn FnMut(usize, u64) -> Result<(), DeviceError>,
) -> Result<(), DeviceError> {
    // Experts before this index of `chosen` are in memory or in flight.
    let mut secured = 0;
    for &expert in chosen {
        loader.slots().cache.count_use(expert);
    }
    for (index, &expert) in chosen.iter().enumerate() {
        let last = if prefetch { chosen.len() } else { index + 1 };
        secured = secured.max(index);
        while secured < last {
            let (held, upcoming) = (&chosen[index..secured], &chosen[secured + 1..]);
            let next = chosen[secured];
            match loader.slots().assign(next, held, upcoming) {
                SlotChoice::Present => {}
                SlotChoice::Assigned(slot) => loader.start_copy(next, slot)?,
                SlotChoice::Full => break,
            }
            secured += 1;
        }
        let slot = loader.slots().cache.slot_of(expert);
        let slot = slot.expect("the expert was assigned a slot");
        loader.await_copy(expert, slot)?;
        let distance = loader.slots().distance(slot);
        run(index, distance)?;
        loader.release(slot)?;
    }
    Ok(())
}
