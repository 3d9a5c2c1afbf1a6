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

    /// Lets a model that was granted memory arrive.
    fn arrive(&mut self, model: usize) {
        self.turns.begin_turn(id(model), self.now);
        self.settle();
    }

    /// Requests free memory, and lets the model arrive.
    fn load(&mut self, model: usize, bytes: u64) {
        self.request(model, bytes);
        assert!(self.turns.is_holder(id(model)), "the memory is free");
        self.arrive(model);
    }

    fn settle(&mut self) {
        self.turns.settle(100, self.now);
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.settle();
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
        bench.load(model, 30);
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
        bench.load(model, 30);
    }
    bench.set_busy(0);
    bench.request(3, 60);
    assert_eq!(bench.asked(), [1, 2]);
    let mut bench = Bench::new(3);
    bench.load(0, 50);
    bench.load(1, 50);
    bench.set_busy(0);
    bench.request(2, 80);
    assert!(bench.asked().is_empty(), "the idle one alone is too small");
    bench.pass(TURN_MIN);
    assert_eq!(bench.asked(), [0, 1]);
}

#[test]
fn a_busy_model_keeps_the_device_for_its_turn() {
    let mut bench = Bench::new(2);
    let swap = Duration::from_secs(1);
    bench.request(0, 80);
    bench.set_busy(0);
    bench.pass(swap);
    bench.arrive(0);
    bench.request(1, 80);
    bench.pass(swap * TURN_FACTOR - Duration::from_millis(1));
    assert!(bench.asked().is_empty());
    bench.pass(Duration::from_millis(1));
    assert_eq!(bench.asked(), [0]);
}

#[test]
fn a_model_that_arrives_for_longer_than_a_turn_is_not_asked_before_its_turn() {
    let swap = 10 * TURN_MIN;
    let mut bench = Bench::new(2);
    bench.set_busy(0);
    bench.set_busy(1);
    bench.request(0, 80);
    bench.request(1, 80);
    for (model, other) in [(0, 1), (1, 0), (0, 1)] {
        assert_eq!(bench.holders(), [model]);
        bench.pass(swap);
        assert!(bench.asked().is_empty(), "{model} still arrives");
        bench.arrive(model);
        assert!(bench.asked().is_empty(), "{model} runs passes");
        bench.pass(swap * TURN_FACTOR);
        assert_eq!(bench.asked(), [model]);
        bench.yields(model);
        bench.request(model, 80);
        assert_eq!(bench.holders(), [other]);
    }
}

#[test]
fn a_load_is_not_asked_to_yield_although_its_model_has_no_requests_yet() {
    let mut bench = Bench::new(2);
    bench.request(0, 80);
    bench.request(1, 80);
    bench.pass(100 * TURN_MIN);
    assert!(bench.asked().is_empty());
    bench.arrive(0);
    assert_eq!(bench.asked(), [0], "it is idle");
}

#[test]
fn other_models_yield_in_place_of_one_that_cannot() {
    let mut bench = Bench::new(4);
    for model in 0..3 {
        bench.load(model, 30);
    }
    bench.request(3, 30);
    assert_eq!(bench.asked(), [0]);
    bench.turns.cannot_yield(id(0));
    bench.settle();
    assert_eq!(bench.asked(), [1]);
    bench.turns.cannot_yield(id(1));
    bench.turns.cannot_yield(id(2));
    bench.pass(100 * TURN_MIN);
    assert!(bench.asked().is_empty());
    bench.turns.can_yield(id(2));
    bench.settle();
    assert_eq!(bench.asked(), [2]);
    bench.yields(2);
    assert_eq!(bench.holders(), [0, 1, 3]);
}

#[test]
fn a_model_whose_sessions_have_ended_yields_although_it_is_busy() {
    let mut bench = Bench::new(2);
    bench.request(0, 80);
    bench.pass(TURN_MIN);
    bench.arrive(0);
    bench.request(1, 80);
    assert_eq!(bench.asked(), [0]);
    bench.turns.cannot_yield(id(0));
    bench.set_busy(0);
    bench.turns.can_yield(id(0));
    bench.settle();
    assert_eq!(bench.asked(), [0]);
}

#[test]
fn the_queue_is_served_in_order_of_arrival() {
    let mut bench = Bench::new(3);
    bench.load(0, 80);
    bench.request(1, 90);
    bench.request(2, 10);
    assert_eq!(bench.holders(), [0], "a small model does not overtake");
    bench.yields(0);
    assert_eq!(bench.holders(), [1, 2]);
    bench.arrive(1);
    bench.request(0, 80);
    assert_eq!(bench.asked(), [1], "the first one waits again, as the last");
}

#[test]
fn nobody_yields_for_a_model_that_gave_up() {
    let mut bench = Bench::new(2);
    bench.load(0, 80);
    bench.request(1, 80);
    assert_eq!(bench.asked(), [0]);
    bench.yields(1);
    assert!(bench.asked().is_empty());
}

#[test]
fn only_as_many_models_yield_as_the_next_one_in_the_queue_needs() {
    let mut bench = Bench::new(5);
    for model in 0..3 {
        bench.load(model, 30);
    }
    bench.request(3, 90);
    bench.request(4, 30);
    assert_eq!(bench.asked(), [0, 1, 2]);
    bench.yields(3);
    assert_eq!(bench.asked(), [0], "the next one needs less");
}
