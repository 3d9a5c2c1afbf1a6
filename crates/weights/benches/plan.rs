//! Benchmark of making a plan: `cargo bench -p djinn-weights`.

use std::hint::black_box;
use std::time::Instant;

use djinn_weights::{Overrides, Plan, PlanInput};

const RUNS: usize = 200;

fn main() {
    for count in [100, 1_000, 10_000] {
        let pieces: Vec<u64> = (0..count).map(|i| 1000 + i * 7919 % 500).collect();
        let input = PlanInput {
            budget: pieces.iter().sum::<u64>() / 3,
            pieces,
            in_flight: 4000,
            ..PlanInput::default()
        };
        let mut times: Vec<f64> = (0..RUNS)
            .map(|_| {
                let clock = Instant::now();
                let plan = Plan::new(black_box(&input), Overrides::default());
                assert!(black_box(plan).is_ok_and(|plan| plan.streams()));
                clock.elapsed().as_secs_f64() * 1e3
            })
            .collect();
        times.sort_by(f64::total_cmp);
        let (median, worst) = (times[RUNS / 2], times[RUNS - 1]);
        println!("{count:>6} pieces: {median:.3} ms (median of {RUNS}; worst {worst:.3} ms)");
    }
}
