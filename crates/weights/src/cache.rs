//! Which of a pool are in memory: the ones used most, and of equals the ones needed
//! soonest.

/// A few slots for many items that are used in a cyclic order, some each time round.
#[derive(Clone, Debug)]
pub struct Cache {
    /// What each slot holds.
    slots: Vec<Option<usize>>,
    /// Where each item is.
    places: Vec<Option<usize>>,
    /// How often each item was used; halved now and then, so that habits can change.
    uses: Vec<u32>,
    since_halving: usize,
}

/// Uses an item collects, on average, before all counts are halved.
const MEMORY: usize = 16;

impl Cache {
    /// Empty slots for items `0..items`, which are used in order of their numbers.
    pub fn new(slots: usize, items: usize) -> Self {
        Cache {
            slots: vec![None; slots],
            places: vec![None; items],
            uses: vec![0; items],
            since_halving: 0,
        }
    }

    /// The slot an item is in.
    pub fn place(&self, item: usize) -> Option<usize> {
        self.places[item]
    }

    /// Notes that an item is used.
    pub fn touch(&mut self, item: usize) {
        self.uses[item] = self.uses[item].saturating_add(1);
        self.since_halving += 1;
        if self.since_halving >= MEMORY * self.uses.len() {
            self.since_halving = 0;
            self.uses.iter_mut().for_each(|uses| *uses /= 2);
        }
    }

    /// Gives an item a slot, taking it from another unless one is free; `None` if all
    /// slots hold items that must stay. `last` says of an item that it is to go only
    /// if nothing else can.
    pub fn admit(
        &mut self,
        item: usize,
        must_stay: impl Fn(usize) -> bool,
        last: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        debug_assert!(self.places[item].is_none(), "item {item} is already there");
        let free = self.slots.iter().position(Option::is_none);
        let slot = free.or_else(|| {
            let held = self.slots.iter().enumerate();
            let candidates = held.filter_map(|(slot, held)| Some((slot, (*held)?)));
            candidates
                .filter(|&(_, held)| !must_stay(held))
                .min_by_key(|&(_, held)| {
                    let until_next = self.distance(item, held);
                    (last(held), self.uses[held], std::cmp::Reverse(until_next))
                })
                .map(|(slot, _)| slot)
        })?;
        if let Some(before) = self.slots[slot].replace(item) {
            self.places[before] = None;
        }
        self.places[item] = Some(slot);
        Some(slot)
    }

    /// Forgets what a slot holds: it did not arrive.
    pub fn drop_item(&mut self, item: usize) {
        if let Some(slot) = self.places[item].take() {
            self.slots[slot] = None;
        }
    }

    /// How far round from one item to another.
    fn distance(&self, from: usize, to: usize) -> usize {
        let count = self.places.len();
        (to + count - from) % count
    }

    /// Panics unless slots and places agree.
    pub fn check_integrity(&self) {
        for (slot, held) in self.slots.iter().enumerate() {
            assert!(held.is_none_or(|item| self.places[item] == Some(slot)));
        }
        let placed = self.places.iter().flatten().count();
        assert_eq!(placed, self.slots.iter().flatten().count());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Cache;

    /// Misses of the last rounds when every item is used each time round.
    fn cyclic_misses(slots: usize, items: usize, rounds: usize) -> usize {
        let mut cache = Cache::new(slots, items);
        let mut misses = 0;
        for round in 0..2 * rounds {
            for item in 0..items {
                cache.touch(item);
                if cache.place(item).is_none() {
                    cache.admit(item, |_| false, |_| false).expect("a slot");
                    misses += usize::from(round >= rounds);
                }
            }
        }
        misses
    }

    #[test]
    fn a_cycle_keeps_all_it_can() {
        // The best there is: all slots but the one things pass through.
        assert_eq!(cyclic_misses(10, 10, 4), 0);
        for (slots, items) in [(1, 10), (4, 10), (9, 10)] {
            let misses = cyclic_misses(slots, items, 4);
            assert!(misses <= 4 * (items - slots + 1), "{slots}: {misses}");
        }
    }

    #[test]
    fn what_is_used_often_stays() {
        let mut cache = Cache::new(3, 100);
        let mut misses_of_hot = 0;
        for round in 0..200 {
            for item in [7, 42, 43 + round % 50] {
                cache.touch(item);
                if cache.place(item).is_none() {
                    misses_of_hot += usize::from(item == 7 || item == 42);
                    cache.admit(item, |_| false, |_| false).expect("a slot");
                }
            }
        }
        assert_eq!(misses_of_hot, 2, "only the first time");
    }

    #[test]
    fn what_must_stay_stays() {
        let mut cache = Cache::new(2, 5);
        cache.admit(0, |_| false, |_| false).expect("free");
        cache.admit(1, |_| false, |_| false).expect("free");
        assert_eq!(cache.admit(2, |_| true, |_| false), None);
        // One that should go last goes last.
        let slot = cache.admit(2, |_| false, |held| held == 1);
        assert_eq!((slot, cache.place(0)), (Some(0), None));
        cache.drop_item(2);
        assert_eq!(cache.admit(3, |_| true, |_| true), Some(0), "a free slot");
        cache.check_integrity();
    }

    proptest! {
        #[test]
        fn slots_and_places_agree(
            slots in 1usize..6, uses in prop::collection::vec((0usize..12, any::<bool>()), 0..100),
        ) {
            let mut cache = Cache::new(slots, 12);
            for (item, drop) in uses {
                if drop {
                    cache.drop_item(item);
                } else {
                    cache.touch(item);
                    if cache.place(item).is_none() {
                        prop_assert!(cache.admit(item, |_| false, |_| false).is_some());
                    }
                    prop_assert!(cache.place(item).is_some());
                }
                cache.check_integrity();
            }
        }
    }
}
