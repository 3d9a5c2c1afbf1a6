//! Tests of the plan over random pieces and budgets.

#![allow(clippy::unwrap_used, missing_docs)]

use djinn_weights::{
    Bound, ExpertPool, Keep, Overrides, PassWork, Plan, PlanError, PlanInput, Rates, Region, Ring,
};
use proptest::prelude::*;

const RATES: Rates = Rates {
    link: 10.0,
    compute: 100.0,
    shared: false,
};

fn fit() -> Overrides {
    Overrides::default()
}

fn work(experts_used: f64) -> PassWork {
    PassWork {
        other_bytes: 50.0,
        paged_bytes: 0.0,
        experts_used,
        prefetch: true,
    }
}

fn whole(input: &PlanInput) -> u64 {
    let pool = input.experts.count as u64 * input.experts.bytes;
    input.fixed + pool + input.pieces.iter().sum::<u64>()
}

/// Returns the smallest budget, which the error names.
fn least(input: &PlanInput) -> u64 {
    let nothing = PlanInput {
        budget: 0,
        ..input.clone()
    };
    match Plan::new(&nothing, fit()) {
        Err(PlanError::Budget { least, .. }) => least,
        Ok(_) => 0,
        Err(other) => panic!("{other}"),
    }
}

fn any_input() -> impl Strategy<Value = PlanInput> {
    let pool = (0usize..20, 1u64..200).prop_map(|(count, bytes)| ExpertPool { count, bytes });
    (
        0u64..500,
        prop::collection::vec(1u64..100, 0..60),
        pool,
        0u64..400,
    )
        .prop_map(|(fixed, pieces, pool, in_flight)| PlanInput {
            budget: 0,
            fixed,
            pieces,
            experts: pool,
            in_flight,
            waiting: 5,
        })
}

fn any_keep() -> impl Strategy<Value = Keep> {
    prop_oneof![
        Just(Keep::Fit),
        Just(Keep::Nothing),
        (0u64..3000).prop_map(Keep::AtMost),
    ]
}

/// Checks every invariant of a plan.
fn check(input: &PlanInput, plan: &Plan) -> Result<(), TestCaseError> {
    prop_assert!(
        input.fixed + plan.bytes() <= input.budget,
        "within the budget"
    );
    // Resident pieces, ring and pool lie side by side.
    let mut end = 0;
    let mut streamed = Vec::new();
    for (number, (place, &bytes)) in plan.placements.iter().zip(&input.pieces).enumerate() {
        prop_assert_eq!(place.bytes, bytes);
        match place.region {
            Region::Resident => {
                prop_assert_eq!(place.offset, end);
                end += bytes;
            }
            Region::Ring(visit) => {
                prop_assert_eq!(visit, streamed.len(), "in order of use");
                prop_assert_eq!(plan.ring.slots[visit].piece, number);
                prop_assert_eq!(plan.ring.slots[visit].placement, *place);
                prop_assert!(place.offset >= plan.ring_offset);
                prop_assert!(place.end() <= plan.ring_offset + plan.ring.bytes);
                streamed.push((number, bytes));
            }
            region => panic!("a piece is in {region:?}"),
        }
    }
    prop_assert_eq!(plan.placements.len(), input.pieces.len());
    prop_assert_eq!(plan.resident_bytes, end);
    prop_assert_eq!(plan.ring_offset, end);
    prop_assert_eq!(plan.pool_offset, end + plan.ring.bytes);
    let all: u64 = input.pieces.iter().sum();
    prop_assert_eq!(
        plan.ring.streamed_bytes(),
        all - end,
        "all other pieces stream"
    );
    prop_assert_eq!(
        Some(plan.ring.clone()),
        Ring::lay(plan.ring_offset, plan.ring_limit, &streamed)
    );
    prop_assert!(plan.pool_slots <= input.experts.count);
    prop_assert!(plan.pool_slots >= input.experts.count.min(1));
    if plan.resident_bytes > 0 && !streamed.is_empty() {
        prop_assert!(
            plan.pool_slots >= input.experts.count.min(2),
            "one expert can arrive while another is in use"
        );
    }
    Ok(())
}

proptest! {
    #[test]
    fn plans_keep_all_invariants(
        input in any_input(), extra in 0u64..6000, keep in any_keep(),
        ring in prop::option::of(100u64..400),
    ) {
        let overrides = Overrides { ring, keep };
        let budget = least(&input) + extra;
        let input = PlanInput { budget, ..input };
        match Plan::new(&input, overrides) {
            Ok(plan) => {
                check(&input, &plan)?;
                prop_assert_eq!(&plan, &Plan::new(&input, overrides).unwrap(), "always the same");
                let everything = budget >= whole(&input);
                if keep == Keep::Fit {
                    prop_assert_eq!(plan.streams(), !everything);
                }
                if let Keep::AtMost(most) = keep {
                    prop_assert!(plan.resident_bytes <= most);
                }
            }
            Err(error) => {
                let PlanError::RingTooLarge { ring: asked, most } = error else {
                    panic!("{error}");
                };
                prop_assert!(ring == Some(asked) && most < asked, "{}", error);
                let overrides = Overrides { ring: Some(most), keep };
                prop_assert!(Plan::new(&input, overrides).is_ok(), "the ring that the error names works");
            }
        }
    }

    #[test]
    fn the_smallest_budget_works_and_a_smaller_one_does_not(input in any_input()) {
        let least = least(&input);
        let with = |budget| Plan::new(&PlanInput { budget, ..input.clone() }, fit());
        prop_assert!(with(least).is_ok());
        if least > 0 {
            let expect = PlanError::Budget { budget: least - 1, least, fixed: input.fixed };
            prop_assert_eq!(with(least - 1), Err(expect));
        }
    }

    #[test]
    fn more_memory_never_predicts_a_slower_token(
        input in any_input(), steps in prop::collection::vec(0u64..200, 1..60),
        link in 1.0f64..100.0, compute in 1.0f64..100.0, share in 0.0f64..1.0,
        shared in any::<bool>(), prefetch in any::<bool>(),
    ) {
        let rates = Rates { link, compute, shared };
        let work = PassWork { prefetch, ..work(share * input.experts.count as f64) };
        let mut budget = least(&input);
        let mut before = f64::INFINITY;
        for step in steps {
            let plan = Plan::new(&PlanInput { budget, ..input.clone() }, fit()).unwrap();
            let now = plan.predict(&work, &rates).pass_s;
            prop_assert!(now <= before * (1.0 + 1e-12), "{} after {} at {}", now, before, budget);
            before = now;
            budget += step;
        }
    }

    #[test]
    fn streamed_pieces_are_evenly_spread(count in 8usize..200, share in 1u64..9) {
        let input = PlanInput {
            budget: 10 * count as u64 * share / 10 + 70,
            pieces: vec![10; count],
            waiting: 5,
            ..PlanInput::default()
        };
        let plan = Plan::new(&input, fit()).unwrap();
        let streamed = plan.ring.slots.len();
        // No part of the pass has many more streamed pieces than its share.
        for (i, slot) in plan.ring.slots.iter().enumerate() {
            let expect = (slot.piece as f64 + 0.5) * streamed as f64 / count as f64;
            prop_assert!((i as f64 + 0.5 - expect).abs() <= 3.0, "{} at {}", i, expect);
        }
    }
}

#[test]
fn predictions_name_the_bound() {
    let input = PlanInput {
        budget: 1400,
        fixed: 100,
        pieces: vec![100; 20],
        waiting: 5,
        ..PlanInput::default()
    };
    let plan = Plan::new(&input, fit()).unwrap();
    assert_eq!((plan.resident_bytes, plan.ring.bytes), (600, 700));
    let found = plan.predict(&work(0.0), &RATES);
    assert_eq!((found.link_bytes, found.link_s), (1400.0, 140.0));
    assert_eq!((found.pass_s, found.bound), (140.0, Bound::Link));
    let fast = Rates {
        link: 1000.0,
        ..RATES
    };
    let found = plan.predict(&work(0.0), &fast);
    assert_eq!((found.compute_s, found.bound), (20.5, Bound::Compute));
    let serial = PassWork {
        prefetch: false,
        ..work(0.0)
    };
    assert_eq!(plan.predict(&serial, &fast).pass_s, 1.4 + 20.5);
}

#[test]
fn errors_name_the_limit() {
    let input = PlanInput {
        budget: 1_000_000,
        fixed: 600_000,
        pieces: vec![500_000; 3],
        waiting: 5,
        ..PlanInput::default()
    };
    let check = |input: &PlanInput, overrides: Overrides, expect: PlanError| {
        assert_eq!(Plan::new(input, overrides), Err(expect));
    };
    let budget = input.budget;
    let (fixed, least, whole) = (600_000, 1_100_000, 2_100_000);
    let error = PlanError::Budget {
        budget,
        least,
        fixed,
    };
    check(&input, fit(), error);
    let all = Overrides {
        keep: Keep::All,
        ..fit()
    };
    check(&input, all, PlanError::NotAll { budget, whole });
    let with_ring = |ring| Overrides {
        ring: Some(ring),
        ..fit()
    };
    let input = PlanInput {
        budget: 1_500_000,
        ..input
    };
    let (ring, most) = (1_000_000, 900_000);
    check(
        &input,
        with_ring(ring),
        PlanError::RingTooLarge { ring, most },
    );
    let (ring, least) = (100, 500_000);
    check(
        &input,
        with_ring(ring),
        PlanError::RingTooSmall { ring, least },
    );
}

#[test]
fn absurd_sizes_are_refused_and_do_not_wrap() {
    let input = PlanInput {
        budget: 1 << 40,
        fixed: u64::MAX - 5,
        pieces: vec![u64::MAX / 2; 3],
        experts: ExpertPool {
            count: usize::MAX,
            bytes: u64::MAX,
        },
        in_flight: u64::MAX,
        waiting: 5,
    };
    assert!(matches!(
        Plan::new(&input, fit()),
        Err(PlanError::Budget { .. })
    ));
    let ring = Overrides {
        ring: Some(u64::MAX),
        keep: Keep::Nothing,
    };
    let input = PlanInput {
        budget: u64::MAX,
        pieces: vec![10; 3],
        waiting: 5,
        ..PlanInput::default()
    };
    assert_eq!(Plan::new(&input, ring).unwrap().ring.bytes, 30);
}
