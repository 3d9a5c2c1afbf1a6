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
/// Length of a turn relative to the time that the model took to return to the device, so that a small
/// share of the time goes to swapping.
const TURN_FACTOR: u32 = 8;

/// Number of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TenantId(pub u64);

/// A model with memory of the device.
struct Holder {
    id: TenantId,
    tenant: Arc<dyn Tenant>,
    bytes: u64,
    since: Instant,
    turn: Duration,
    must_yield: bool,
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
    last_id: u64,
}

impl Turns {
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

    pub fn is_holder(&self, id: TenantId) -> bool {
        self.holders.iter().any(|holder| holder.id == id)
    }

    pub fn must_yield(&self, id: TenantId) -> bool {
        let mut holders = self.holders.iter();
        holders.any(|holder| holder.id == id && holder.must_yield)
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

    /// Adds a holder, or changes the bytes of one.
    pub fn resize(&mut self, id: TenantId, tenant: &Arc<dyn Tenant>, bytes: u64) {
        match self.holders.iter_mut().find(|holder| holder.id == id) {
            Some(holder) => holder.bytes = bytes,
            None => self.hold(id, Arc::clone(tenant), bytes, Instant::now()),
        }
    }

    fn hold(&mut self, id: TenantId, tenant: Arc<dyn Tenant>, bytes: u64, since: Instant) {
        self.holders.push(Holder {
            id,
            tenant,
            bytes,
            since,
            turn: TURN_MIN,
            must_yield: false,
        });
    }

    /// Begins the turn of a holder, which took `returned` to return to the device.
    pub fn begin_turn(&mut self, id: TenantId, returned: Duration, now: Instant) {
        if let Some(holder) = self.holders.iter_mut().find(|holder| holder.id == id) {
            holder.since = now;
            holder.turn = TURN_MIN.max(returned * TURN_FACTOR);
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
        let mut concerned = Vec::new();
        while let Some(next) = self.queue.front()
            && self.held() + next.bytes <= total
        {
            let Waiter { id, tenant, bytes } = self.queue.pop_front().expect("there is a first");
            concerned.push(Arc::clone(&tenant));
            self.hold(id, tenant, bytes, now);
        }
        match self.queue.front() {
            Some(next) => {
                let needed = (self.held() + next.bytes).saturating_sub(total);
                concerned.extend(self.ask_to_yield(needed, now));
            }
            None => self.holders.iter_mut().for_each(|h| h.must_yield = false),
        }
        concerned
    }

    /// Asks as many holders to yield as hold `needed` bytes, if there are enough of them. Returns
    /// the models that were not asked before.
    fn ask_to_yield(&mut self, needed: u64, now: Instant) -> Vec<Arc<dyn Tenant>> {
        let asked = self.holders.iter().filter(|holder| holder.must_yield);
        let mut freed: u64 = asked.map(|holder| holder.bytes).sum();
        let mut others: Vec<(bool, Instant, usize)> = Vec::new();
        for (at, holder) in self.holders.iter().enumerate() {
            let is_idle = holder.tenant.is_idle();
            let is_over = now.saturating_duration_since(holder.since) >= holder.turn;
            if !holder.must_yield && (is_idle || is_over) {
                let since = match is_idle {
                    true => holder.tenant.last_used(),
                    false => holder.since,
                };
                others.push((!is_idle, since, at));
            }
        }
        others.sort_unstable();
        let mut chosen = Vec::new();
        for (_, _, at) in others {
            if freed >= needed {
                break;
            }
            freed += self.holders[at].bytes;
            chosen.push(at);
        }
        if freed < needed {
            return Vec::new();
        }
        let ask = |at: usize| {
            self.holders[at].must_yield = true;
            Arc::clone(&self.holders[at].tenant)
        };
        chosen.into_iter().map(ask).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicBool, Ordering},
        },
        time::{Duration, Instant},
    };

    use super::{TURN_FACTOR, TURN_MIN, Tenant, TenantId, Turns};

    struct FakeTenant {
        name: String,
        is_idle: AtomicBool,
        used: Instant,
    }

    impl Tenant for FakeTenant {
        fn name(&self) -> &str {
            &self.name
        }
        fn is_idle(&self) -> bool {
            self.is_idle.load(Ordering::Relaxed)
        }
        fn last_used(&self) -> Instant {
            self.used
        }
        fn wake(&self) {}
    }

    /// Turns of models in 100 bytes, with a clock of their own.
    struct Bench {
        turns: Turns,
        tenants: Vec<Arc<FakeTenant>>,
        now: Instant,
    }

    impl Bench {
        /// Models that were used one after the other.
        fn new(models: usize) -> Self {
            let now = Instant::now();
            let tenant = |number: usize| {
                Arc::new(FakeTenant {
                    name: number.to_string(),
                    is_idle: AtomicBool::new(true),
                    used: now + Duration::from_millis(number as u64),
                })
            };
            Bench {
                turns: Turns::default(),
                tenants: (0..models).map(tenant).collect(),
                now,
            }
        }

        fn request(&mut self, model: usize, bytes: u64) {
            let tenant: Arc<dyn Tenant> = self.tenants[model].clone();
            self.turns.request(id(model), &tenant, bytes);
            self.settle();
        }

        fn settle(&mut self) {
            self.turns.settle(100, self.now);
        }

        fn yields(&mut self, model: usize) {
            self.turns.remove(id(model));
            self.settle();
        }

        fn set_busy(&self, model: usize) {
            self.tenants[model].is_idle.store(false, Ordering::Relaxed);
        }

        fn holders(&self) -> Vec<usize> {
            let all = 0..self.tenants.len();
            all.filter(|&n| self.turns.is_holder(id(n))).collect()
        }

        fn asked(&self) -> Vec<usize> {
            let all = 0..self.tenants.len();
            all.filter(|&n| self.turns.must_yield(id(n))).collect()
        }
    }

    fn id(model: usize) -> TenantId {
        TenantId(model as u64)
    }

    #[test]
    fn the_least_recently_used_idle_model_yields_first() {
        let mut bench = Bench::new(4);
        for model in [2, 0, 1] {
            bench.request(model, 30);
        }
        assert!(bench.asked().is_empty(), "no model waits");
        bench.request(3, 30);
        assert_eq!(bench.asked(), [0]);
        bench.yields(0);
        assert_eq!(bench.holders(), [1, 2, 3]);
        assert!(bench.asked().is_empty());
    }

    #[test]
    fn as_many_models_yield_as_are_needed_and_idle_ones_before_busy_ones() {
        let mut bench = Bench::new(4);
        for model in 0..3 {
            bench.request(model, 30);
        }
        bench.set_busy(0);
        bench.request(3, 60);
        assert_eq!(bench.asked(), [1, 2]);
        let mut bench = Bench::new(3);
        bench.request(0, 50);
        bench.request(1, 50);
        bench.set_busy(0);
        bench.request(2, 80);
        assert!(bench.asked().is_empty(), "the idle one alone is too small");
        bench.now += TURN_MIN;
        bench.settle();
        assert_eq!(bench.asked(), [0, 1]);
    }

    #[test]
    fn a_busy_model_keeps_the_device_for_its_turn() {
        let mut bench = Bench::new(2);
        bench.request(0, 80);
        bench.set_busy(0);
        let swap = Duration::from_secs(1);
        bench.turns.begin_turn(id(0), swap, bench.now);
        bench.request(1, 80);
        bench.now += swap * TURN_FACTOR - Duration::from_millis(1);
        bench.settle();
        assert!(bench.asked().is_empty());
        bench.now += Duration::from_millis(1);
        bench.settle();
        assert_eq!(bench.asked(), [0]);
    }

    #[test]
    fn the_queue_is_served_in_order_of_arrival() {
        let mut bench = Bench::new(3);
        bench.request(0, 80);
        bench.request(1, 90);
        bench.request(2, 10);
        assert_eq!(bench.holders(), [0], "a small model does not overtake");
        bench.yields(0);
        assert_eq!(bench.holders(), [1, 2]);
        bench.request(0, 80);
        assert_eq!(bench.asked(), [1], "the first one waits again, as the last");
    }

    #[test]
    fn nobody_yields_for_a_model_that_gave_up() {
        let mut bench = Bench::new(2);
        bench.request(0, 80);
        bench.request(1, 80);
        assert_eq!(bench.asked(), [0]);
        bench.yields(1);
        assert!(bench.asked().is_empty());
    }
}
