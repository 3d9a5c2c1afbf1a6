//! Choice of the experts in memory: the cache prefers experts with more uses, and of equal ones
//! those needed sooner.

/// Slots for some of many experts. Every pass uses a part of the experts in order of their
/// numbers.
#[derive(Clone, Debug)]
pub(crate) struct ExpertCache {
    /// Expert in each slot.
    slots: Vec<Option<usize>>,
    /// Slot of each expert.
    slot_by_expert: Vec<Option<usize>>,
    /// Number of uses of each expert. The cache halves all numbers from time to time, so that old
    /// uses count less.
    uses: Vec<u32>,
    since_halving: usize,
}

/// Average number of uses of an expert after which all counts are halved.
const USES_BEFORE_HALVING: usize = 16;

impl ExpertCache {
    /// Creates empty slots for the experts `0..experts`.
    pub fn new(slots: usize, experts: usize) -> Self {
        ExpertCache {
            slots: vec![None; slots],
            slot_by_expert: vec![None; experts],
            uses: vec![0; experts],
            since_halving: 0,
        }
    }

    /// Number of experts.
    pub fn experts(&self) -> usize {
        self.slot_by_expert.len()
    }

    /// Returns the slot that holds an expert.
    pub fn slot_of(&self, expert: usize) -> Option<usize> {
        self.slot_by_expert[expert]
    }

    /// Counts a use of an expert.
    pub fn count_use(&mut self, expert: usize) {
        self.uses[expert] = self.uses[expert].saturating_add(1);
        self.since_halving += 1;
        if self.since_halving >= USES_BEFORE_HALVING * self.uses.len() {
            self.since_halving = 0;
            self.uses.iter_mut().for_each(|uses| *uses /= 2);
        }
    }

    /// Assigns a slot to an expert, and evicts another expert unless a slot is free. Returns
    /// `None` if all slots hold experts that must stay. An expert for which `last` is true is
    /// evicted only if no other expert can be.
    pub fn admit(
        &mut self,
        expert: usize,
        must_stay: impl Fn(usize) -> bool,
        last: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        debug_assert!(
            self.slot_by_expert[expert].is_none(),
            "expert {expert} is already in memory"
        );
        let free = self.slots.iter().position(Option::is_none);
        let slot = free.or_else(|| {
            let held = self.slots.iter().enumerate();
            let candidates = held.filter_map(|(slot, held)| Some((slot, (*held)?)));
            candidates
                .filter(|&(_, held)| !must_stay(held))
                .min_by_key(|&(_, held)| {
                    let until_next = self.distance(expert, held);
                    (last(held), self.uses[held], std::cmp::Reverse(until_next))
                })
                .map(|(slot, _)| slot)
        })?;
        if let Some(before) = self.slots[slot].replace(expert) {
            self.slot_by_expert[before] = None;
        }
        self.slot_by_expert[expert] = Some(slot);
        Some(slot)
    }

    /// Frees the slot of an expert, because its copy failed.
    pub fn remove(&mut self, expert: usize) {
        if let Some(slot) = self.slot_by_expert[expert].take() {
            self.slots[slot] = None;
        }
    }

    /// Number of experts from one to another in cyclic order.
    fn distance(&self, from: usize, to: usize) -> usize {
        let count = self.slot_by_expert.len();
        (to + count - from) % count
    }

    /// Panics unless the two maps between experts and slots agree.
    #[cfg(test)]
    fn check_integrity(&self) {
        for (slot, held) in self.slots.iter().enumerate() {
            assert!(held.is_none_or(|expert| self.slot_by_expert[expert] == Some(slot)));
        }
        let placed = self.slot_by_expert.iter().flatten().count();
        assert_eq!(placed, self.slots.iter().flatten().count());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::ExpertCache;

    /// Counts the misses of the last `rounds` rounds, in which each round uses all experts.
    fn cyclic_misses(slots: usize, experts: usize, rounds: usize) -> usize {
        let mut cache = ExpertCache::new(slots, experts);
        let mut misses = 0;
        for round in 0..2 * rounds {
            for expert in 0..experts {
                cache.count_use(expert);
                if cache.slot_of(expert).is_none() {
                    cache.admit(expert, |_| false, |_| false).expect("a slot");
                    misses += usize::from(round >= rounds);
                }
            }
        }
        misses
    }

    #[test]
    fn cyclic_use_keeps_all_slots_but_one() {
        // The optimum changes only one slot from round to round.
        assert_eq!(cyclic_misses(10, 10, 4), 0);
        for (slots, experts) in [(1, 10), (4, 10), (9, 10)] {
            let misses = cyclic_misses(slots, experts, 4);
            assert!(misses <= 4 * (experts - slots + 1), "{slots}: {misses}");
        }
    }

    #[test]
    fn often_used_experts_stay() {
        let mut cache = ExpertCache::new(3, 100);
        let mut misses_of_hot = 0;
        for round in 0..200 {
            for expert in [7, 42, 43 + round % 50] {
                cache.count_use(expert);
                if cache.slot_of(expert).is_none() {
                    misses_of_hot += usize::from(expert == 7 || expert == 42);
                    cache.admit(expert, |_| false, |_| false).expect("a slot");
                }
            }
        }
        assert_eq!(misses_of_hot, 2, "each misses only the first time");
    }

    #[test]
    fn experts_that_must_stay_are_not_evicted() {
        let mut cache = ExpertCache::new(2, 5);
        cache.admit(0, |_| false, |_| false).expect("free");
        cache.admit(1, |_| false, |_| false).expect("free");
        assert_eq!(cache.admit(2, |_| true, |_| false), None);
        // The cache evicts an expert that `last` names after all others.
        let slot = cache.admit(2, |_| false, |held| held == 1);
        assert_eq!((slot, cache.slot_of(0)), (Some(0), None));
        cache.remove(2);
        assert_eq!(cache.admit(3, |_| true, |_| true), Some(0), "a free slot");
        cache.check_integrity();
    }

    proptest! {
        #[test]
        fn the_maps_between_experts_and_slots_agree(
            slots in 1usize..6, uses in prop::collection::vec((0usize..12, any::<bool>()), 0..100),
        ) {
            let mut cache = ExpertCache::new(slots, 12);
            for (expert, drop) in uses {
                if drop {
                    cache.remove(expert);
                } else {
                    cache.count_use(expert);
                    if cache.slot_of(expert).is_none() {
                        prop_assert!(cache.admit(expert, |_| false, |_| false).is_some());
                    }
                    prop_assert!(cache.slot_of(expert).is_some());
                }
                cache.check_integrity();
            }
        }
    }
}
