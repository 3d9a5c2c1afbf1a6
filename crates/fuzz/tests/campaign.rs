//! Runs every target on its seeds, then on mutated seeds for about a minute in total.

#![allow(missing_docs, clippy::unwrap_used)]

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use djinn_fuzz::{FuzzTarget, Mutator, TARGETS, check, is_slow, seeds, watch_panics};
use peak_alloc::PeakAlloc;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Seconds of all targets together; `DJINN_FUZZ_SECONDS` replaces the value.
const SECONDS: f64 = 60.0;
/// Seed of the mutator; `DJINN_FUZZ_SEED` replaces the value.
const SEED: u64 = 1;

fn variable<T: std::str::FromStr>(name: &str, default: T) -> T {
    let value = std::env::var(name).ok();
    value.map_or(default, |text| text.parse().ok().unwrap())
}

/// File that holds the input of the current run, which a stack overflow leaves behind. The file lies
/// in memory where the system offers that, because it is written for every input.
fn kept(target: &str) -> PathBuf {
    let in_memory = Path::new("/dev/shm");
    let folder = match in_memory.is_dir() {
        true => in_memory.to_owned(),
        false => std::env::temp_dir(),
    };
    folder.join(format!("djinn-fuzz-{}-{target}", std::process::id()))
}

/// Runs a target on an input; fails with the path of the input if a property is violated.
fn run(target: &FuzzTarget, name: &str, input: &[u8]) -> Duration {
    let path = kept(target.name);
    fs::write(&path, input).unwrap();
    match check(target, input, &MEMORY) {
        Ok(cost) => cost.time,
        Err(violation) => {
            // The hook of panics prints nothing.
            eprintln!(
                "{} violates a property with the input {name}, saved as {}: {violation}",
                target.name,
                path.display()
            );
            panic!("a property is violated");
        }
    }
}

/// Runs mutated seeds of a target; returns a line of the table.
fn mutate(target: &FuzzTarget, time: Duration) -> String {
    let fast = own_seeds(target).into_iter();
    let fast = fast.filter(|(name, _)| !is_slow(name));
    let own: Vec<Vec<u8>> = fast.map(|(_, seed)| seed).collect();
    let mut mutator = Mutator::new(
        variable("DJINN_FUZZ_SEED", SEED),
        &own,
        target.tokens,
        target.longest,
    );
    let (start, mut runs, mut slowest) = (Instant::now(), 0, Duration::ZERO);
    while start.elapsed() < time {
        let input = mutator.next_input();
        slowest = slowest.max(run(target, &format!("number {runs}"), &input));
        runs += 1;
    }
    fs::remove_file(kept(target.name)).unwrap();
    format!(
        "{:12} {runs:>8} inputs, slowest {:.3} s",
        target.name,
        slowest.as_secs_f64()
    )
}

fn own_seeds(target: &FuzzTarget) -> Vec<(String, Vec<u8>)> {
    let found = seeds(target.name).unwrap();
    assert!(!found.is_empty(), "{} has no seeds", target.name);
    found
}

/// Runs the targets that `DJINN_FUZZ_TARGETS` names, or all of them.
fn selected() -> impl Iterator<Item = &'static FuzzTarget> {
    let names = std::env::var("DJINN_FUZZ_TARGETS").unwrap_or_default();
    let is_selected =
        move |target: &&FuzzTarget| names.is_empty() || names.split(',').any(|n| n == target.name);
    TARGETS.iter().filter(is_selected)
}

/// One test for both steps: the allocator counts the memory of the whole process, so that no other
/// test may run at the same time.
#[test]
fn targets_keep_their_properties() {
    watch_panics();
    let count = selected().count();
    for target in selected() {
        for (name, seed) in own_seeds(target) {
            run(target, &name, &seed);
        }
    }
    let time = Duration::from_secs_f64(variable("DJINN_FUZZ_SECONDS", SECONDS) / count as f64);
    for target in selected() {
        println!("{}", mutate(target, time));
    }
}
