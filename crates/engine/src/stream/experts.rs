//! Experts that are brought in when they are chosen.

use djinn_memory::Cache;

use super::{
    copies::Copies,
    queue::{Queue, Ticket},
};
use crate::EngineError;

/// The pool's slots and what is in them. Experts are numbered over all blocks.
pub(super) struct Experts {
    cache: Cache,
    /// How each expert is copied into the first slot.
    copies: Vec<Copies>,
    /// What a slot's expert waits for before it can be used.
    arriving: Vec<Option<Ticket>>,
    slot_bytes: u64,
}

impl Experts {
    pub fn new(slots: usize, slot_bytes: u64, copies: Vec<Copies>) -> Self {
        Experts {
            cache: Cache::new(slots, copies.len()),
            arriving: vec![None; slots],
            copies,
            slot_bytes,
        }
    }

    /// Bytes of an expert on the link.
    pub fn bytes(&self, expert: usize) -> u64 {
        self.copies[expert].bytes()
    }

    /// What to call it in the record.
    pub fn label(&self, expert: usize) -> u32 {
        self.copies[expert].label
    }

    /// Demands one that is not there. `false` if all slots are taken by those of
    /// `secured`. Those of `wanted` go last.
    pub fn bring(
        &mut self,
        queue: &Queue,
        expert: usize,
        secured: &[usize],
        wanted: &[usize],
    ) -> bool {
        if self.cache.place(expert).is_some() {
            return true;
        }
        let stays = |held| secured.contains(&held);
        let last = |held| wanted.contains(&held);
        let Some(slot) = self.cache.admit(expert, stays, last) else {
            return false;
        };
        let there = self.copies[expert].moved(slot as u64 * self.slot_bytes);
        self.arriving[slot] = Some(queue.demand(there.chunks()));
        true
    }

    /// Waits for one that was demanded, and says how far its slot is from the first.
    pub fn wait(&mut self, queue: &Queue, expert: usize) -> Result<u64, EngineError> {
        let slot = self.cache.place(expert).expect("it was brought");
        if let Some(ticket) = self.arriving[slot] {
            queue.wait_for(ticket)?;
            self.arriving[slot] = None;
        }
        Ok(slot as u64 * self.slot_bytes)
    }

    /// Whether one is there and need not be waited for.
    pub fn is_there(&self, expert: usize) -> bool {
        let slot = self.cache.place(expert);
        slot.is_some_and(|slot| self.arriving[slot].is_none())
    }

    pub fn touch(&mut self, expert: usize) {
        self.cache.touch(expert);
    }

    /// Forgets what has not arrived.
    pub fn give_up(&mut self) {
        for expert in 0..self.copies.len() {
            if let Some(slot) = self.cache.place(expert)
                && self.arriving[slot].take().is_some()
            {
                self.cache.drop_item(expert);
            }
        }
    }
}
