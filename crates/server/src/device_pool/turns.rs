//! Turns of models on the device: reservations, the queue of models that wait, and the choice of the
//! models that must yield.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use super::tenant::Tenant;

/// Shortest turn of a model while others wait.
const TURN_MIN: Duration = Duration::from_secs(1);
/// Length of a turn relative to the time that the model took to arrive on the device, so that a small
/// share of the time goes to swapping.
const TURN_FACTOR: u32 = 8;

/// Number of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TenantId(pub u64);

/// Stage of a model that holds memory.
#[derive(Clone, Copy, Debug)]
enum Stage {
    /// The model loads, or returns to the device, since this time. It is not asked to yield.
    Arriving { since: Instant },
    /// The model can run passes. While it is busy, it keeps the memory for the length of its turn.
    Turn { since: Instant, length: Duration },
    /// The model was asked to yield and could not. The pool asks it again after
    /// [`Turns::can_yield`].
    Stuck { since: Instant },
}

/// A model with memory of the device.
struct Holder {
    id: TenantId,
    tenant: Arc<dyn Tenant>,
    bytes: u64,
    stage: Stage,
    must_yield: bool,
}

impl Holder {
    /// Returns the rank of the holder among the holders that can be asked to yield: the lowest one is
    /// asked first. `None` if the holder cannot be asked now.
    fn rank(&self, now: Instant) -> Option<(bool, bool, Instant)> {
        let Stage::Turn { since, length } = self.stage else {
            return None;
        };
        let is_idle = self.tenant.is_idle();
        let is_over = now.saturating_duration_since(since) >= length;
        let since = match is_idle {
            true => self.tenant.last_used(),
            false => since,
        };
        // A model that was asked may be about to leave.
        (self.must_yield || is_idle || is_over).then_some((!self.must_yield, !is_idle, since))
    }
}

/// A model that waits for memory.
struct Waiter {
    id: TenantId,
    tenant: Arc<dyn Tenant>,
    bytes: u64,
}

/// Reservations, and the queue for them.
#[derive(Default)]
pub(super) struct Turns {
    holders: Vec<Holder>,
    queue: VecDeque<Waiter>,
    /// Model for which holders were asked to yield.
    asked_for: Option<TenantId>,
    last_id: u64,
}

impl Turns {
    /// Returns a number that no other reservation has.
    pub fn new_id(&mut self) -> TenantId {
        self.last_id += 1;
        TenantId(self.last_id)
    }

    /// Bytes that models hold.
    pub fn held(&self) -> u64 {
        self.holders.iter().map(|holder| holder.bytes).sum()
    }

    /// Name and bytes of each holder.
    pub fn holders(&self) -> impl Iterator<Item = (&str, u64)> {
        let holders = self.holders.iter();
        holders.map(|holder| (holder.tenant.name(), holder.bytes))
    }

    /// Whether the model holds memory.
    pub fn is_holder(&self, id: TenantId) -> bool {
        self.holders.iter().any(|holder| holder.id == id)
    }

    /// Whether the model holds memory that it must give to another one.
    pub fn must_yield(&self, id: TenantId) -> bool {
        let mut holders = self.holders.iter();
        holders.any(|holder| holder.id == id && holder.must_yield)
    }

    /// Whether a model waits for memory.
    pub fn has_waiters(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Adds a model to the end of the queue, unless it holds memory or waits already.
    pub fn request(&mut self, id: TenantId, tenant: &Arc<dyn Tenant>, bytes: u64) {
        let waits = self.queue.iter().any(|waiter| waiter.id == id);
        if !waits && !self.is_holder(id) {
            self.queue.push_back(Waiter {
                id,
                tenant: Arc::clone(tenant),
                bytes,
            });
        }
    }

    /// Changes the bytes of a holder, or adds one that arrives.
    pub fn resize(&mut self, id: TenantId, tenant: &Arc<dyn Tenant>, bytes: u64, now: Instant) {
        match self.holder(id) {
            Some(holder) => holder.bytes = bytes,
            None => self.hold(id, Arc::clone(tenant), bytes, now),
        }
    }

    fn hold(&mut self, id: TenantId, tenant: Arc<dyn Tenant>, bytes: u64, now: Instant) {
        self.holders.push(Holder {
            id,
            tenant,
            bytes,
            stage: Stage::Arriving { since: now },
            must_yield: false,
        });
    }

    fn holder(&mut self, id: TenantId) -> Option<&mut Holder> {
        self.holders.iter_mut().find(|holder| holder.id == id)
    }

    /// Begins the turn of a holder that has arrived. A model that took long to arrive gets a long turn.
    pub fn begin_turn(&mut self, id: TenantId, now: Instant) {
        if let Some(holder) = self.holder(id)
            && let Stage::Arriving { since } = holder.stage
        {
            let arrival = now.saturating_duration_since(since);
            holder.stage = Stage::Turn {
                since: now,
                length: TURN_MIN.max(arrival * TURN_FACTOR),
            };
        }
    }

    /// Notes that a holder cannot yield. Others are asked instead of it, if they have enough memory.
    pub fn cannot_yield(&mut self, id: TenantId) {
        if let Some(holder) = self.holder(id)
            && let Stage::Turn { since, .. } = holder.stage
        {
            holder.stage = Stage::Stuck { since };
            holder.must_yield = false;
        }
    }

    /// Notes that a holder that could not yield can yield now. Its turn is over.
    pub fn can_yield(&mut self, id: TenantId) {
        if let Some(holder) = self.holder(id)
            && let Stage::Stuck { since } = holder.stage
        {
            let length = Duration::ZERO;
            holder.stage = Stage::Turn { since, length };
        }
    }

    /// Ends a reservation, or a wait for one.
    pub fn remove(&mut self, id: TenantId) {
        self.holders.retain(|holder| holder.id != id);
        self.queue.retain(|waiter| waiter.id != id);
    }

    /// Gives free memory to the first ones in the queue, and asks holders to yield for the next one.
    /// Returns the models for which something changed.
    pub fn settle(&mut self, total: u64, now: Instant) -> Vec<Arc<dyn Tenant>> {
        let mut changed = Vec::new();
        while let Some(next) = self.queue.front()
            && self.held() + next.bytes <= total
        {
            let Waiter { id, tenant, bytes } = self.queue.pop_front().expect("there is a first");
            changed.push(Arc::clone(&tenant));
            self.hold(id, tenant, bytes, now);
        }
        let next = self.queue.front();
        let (next, needed) = match next {
            Some(next) => (
                Some(next.id),
                (self.held() + next.bytes).saturating_sub(total),
            ),
            None => (None, 0),
        };
        if std::mem::replace(&mut self.asked_for, next) != next {
            // No model has to yield for one that waits no more.
            self.holders.iter_mut().for_each(|h| h.must_yield = false);
        }
        changed.extend(self.ask_to_yield(needed, now));
        changed
    }

    /// Asks as many holders to yield as hold `needed` bytes, if there are enough of them, and no others.
    /// Returns the models that were not asked before.
    fn ask_to_yield(&mut self, needed: u64, now: Instant) -> Vec<Arc<dyn Tenant>> {
        let holders = self.holders.iter().enumerate();
        let mut candidates: Vec<_> = holders
            .filter_map(|(at, holder)| Some((holder.rank(now)?, at)))
            .collect();
        candidates.sort_unstable();
        let (mut freed, mut chosen) = (0, vec![false; self.holders.len()]);
        for (_, at) in candidates {
            if freed >= needed {
                break;
            }
            freed += self.holders[at].bytes;
            chosen[at] = true;
        }
        let is_enough = freed >= needed;
        let mut changed = Vec::new();
        for (holder, chosen) in self.holders.iter_mut().zip(chosen) {
            let must_yield = chosen && is_enough;
            if must_yield && !holder.must_yield {
                changed.push(Arc::clone(&holder.tenant));
            }
            holder.must_yield = must_yield;
        }
        changed
    }
}

#[cfg(test)]
mod tests;
