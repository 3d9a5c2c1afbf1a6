//! Experts that are brought in when they are chosen.

use super::Result;
use crate::Cache;

/// The pool's slots and who is in them. Experts are numbered over all blocks.
pub(super) struct ExpertCache {
    cache: Cache,
    slot_bytes: u64,
}

/// Where an expert goes.
pub(super) enum Spot {
    /// It is there, or on its way.
    Taken,
    /// It was given this slot.
    Given(usize),
    /// All slots are taken by others that must stay.
    None,
}

/// What brings experts into slots.
pub(super) trait Pool {
    fn cache(&mut self) -> &mut ExpertCache;
    /// Sets an expert on its way into the slot it was given.
    fn bring(&mut self, expert: usize, slot: usize) -> Result<()>;
    /// What comes next uses it.
    fn arrive(&mut self, expert: usize, slot: usize) -> Result<()>;
    /// All that uses it has been given to the device.
    fn used(&mut self, slot: usize) -> Result<()>;
}

impl ExpertCache {
    pub fn new(slots: usize, slot_bytes: u64, experts: usize) -> Self {
        ExpertCache {
            cache: Cache::new(slots, experts),
            slot_bytes,
        }
    }

    /// Gives one that is not there a slot, unless those of `secured` take all of them.
    /// Those of `wanted` go last.
    pub fn place(&mut self, expert: usize, secured: &[usize], wanted: &[usize]) -> Spot {
        if self.cache.place(expert).is_some() {
            return Spot::Taken;
        }
        let stays = |held| secured.contains(&held);
        let last = |held| wanted.contains(&held);
        let slot = self.cache.admit(expert, stays, last);
        slot.map_or(Spot::None, Spot::Given)
    }

    /// How far a slot is from the first.
    pub fn shift(&self, slot: usize) -> u64 {
        slot as u64 * self.slot_bytes
    }

    /// Forgets whoever is in a slot that `gone` says.
    pub fn forget(&mut self, experts: usize, mut gone: impl FnMut(usize) -> bool) {
        for expert in 0..experts {
            if self.cache.place(expert).is_some_and(&mut gone) {
                self.cache.drop_item(expert);
            }
        }
    }
}

/// Runs chosen experts in order. Those that come next are brought ahead of their turn,
/// as far as slots allow, where that is wanted.
pub(super) fn serve(
    pool: &mut impl Pool,
    chosen: &[usize],
    ahead: bool,
    run: &mut dyn FnMut(usize, u64) -> Result<()>,
) -> Result<()> {
    let mut secured = 0;
    for &expert in chosen {
        pool.cache().cache.touch(expert);
    }
    for (turn, &expert) in chosen.iter().enumerate() {
        let last = if ahead { chosen.len() } else { turn + 1 };
        secured = secured.max(turn);
        while secured < last {
            let (held, wanted) = (&chosen[turn..secured], &chosen[secured + 1..]);
            let next = chosen[secured];
            match pool.cache().place(next, held, wanted) {
                Spot::Taken => {}
                Spot::Given(slot) => pool.bring(next, slot)?,
                Spot::None => break,
            }
            secured += 1;
        }
        let slot = pool.cache().cache.place(expert).expect("it was brought");
        pool.arrive(expert, slot)?;
        let shift = pool.cache().shift(slot);
        run(turn, shift)?;
        pool.used(slot)?;
    }
    Ok(())
}
