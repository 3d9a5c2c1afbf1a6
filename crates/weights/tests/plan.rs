//! The plan over random segments and budgets.

#![allow(clippy::unwrap_used, missing_docs)]

use djinn_weights::{
    Bound, Keep, Needs, Overrides, Place, Plan, PlanError, Pool, Rates, Ring, Work,
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

fn work(pool_used: f64) -> Work {
    Work {
        other_bytes: 50.0,
        pool_used,
        prefetch: true,
    }
}

fn whole(needs: &Needs) -> u64 {
    let pool = needs.pool.count as u64 * needs.pool.bytes;
    needs.fixed + pool + needs.segments.iter().sum::<u64>()
}

/// The least budget, as the error names it.
fn least(needs: &Needs) -> u64 {
    let nothing = Needs {
        budget: 0,
        ..needs.clone()
    };
    match Plan::new(&nothing, fit()) {
        Err(PlanError::Budget { least, .. }) => least,
        Ok(_) => 0,
        Err(other) => panic!("{other}"),
    }
}

fn any_needs() -> impl Strategy<Value = Needs> {
    let pool = (0usize..20, 1u64..200).prop_map(|(count, bytes)| Pool { count, bytes });
    (
        0u64..500,
        prop::collection::vec(1u64..100, 0..60),
        pool,
        0u64..400,
    )
        .prop_map(|(fixed, segments, pool, in_flight)| Needs {
            budget: 0,
            fixed,
            segments,
            pool,
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

/// Every invariant of a plan that was made.
fn check(needs: &Needs, plan: &Plan) -> Result<(), TestCaseError> {
    prop_assert!(
        needs.fixed + plan.bytes() <= needs.budget,
        "within the budget"
    );
    // Places of what stays and the ring lie side by side.
    let mut end = 0;
    let mut streamed = Vec::new();
    for (number, (place, &bytes)) in plan.places.iter().zip(&needs.segments).enumerate() {
        match *place {
            Place::Resident(offset) => {
                prop_assert_eq!(offset, end);
                end += bytes;
            }
            Place::Streamed(slot) => {
                prop_assert_eq!(slot, streamed.len(), "in order of use");
                prop_assert_eq!(plan.ring.slots[slot].segment, number);
                prop_assert_eq!(plan.ring.slots[slot].bytes, bytes);
                prop_assert!(plan.ring.slots[slot].end() <= plan.ring.bytes);
                streamed.push((number, bytes));
            }
        }
    }
    prop_assert_eq!(plan.places.len(), needs.segments.len());
    prop_assert_eq!(plan.resident_bytes, end);
    prop_assert_eq!(plan.ring_offset, end);
    prop_assert_eq!(plan.pool_offset, end + plan.ring.bytes);
    let all: u64 = needs.segments.iter().sum();
    prop_assert_eq!(
        plan.ring.streamed_bytes(),
        all - end,
        "all but what stays streams"
    );
    prop_assert_eq!(
        Some(plan.ring.clone()),
        Ring::lay(plan.ring_limit, &streamed)
    );
    prop_assert!(plan.pool_slots <= needs.pool.count);
    prop_assert!(plan.pool_slots >= needs.pool.count.min(1));
    if plan.resident_bytes > 0 && !streamed.is_empty() {
        prop_assert!(
            plan.pool_slots >= needs.pool.count.min(2),
            "one arrives beside another"
        );
    }
    Ok(())
}

proptest! {
    #[test]
    fn plans_hold_what_they_promise(
        needs in any_needs(), extra in 0u64..6000, keep in any_keep(),
        ring in prop::option::of(100u64..400),
    ) {
        let overrides = Overrides { ring, keep };
        let budget = least(&needs) + extra;
        let needs = Needs { budget, ..needs };
        match Plan::new(&needs, overrides) {
            Ok(plan) => {
                check(&needs, &plan)?;
                prop_assert_eq!(&plan, &Plan::new(&needs, overrides).unwrap(), "always the same");
                let everything = budget >= whole(&needs);
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
                prop_assert!(Plan::new(&needs, overrides).is_ok(), "what is named works");
            }
        }
    }

    #[test]
    fn the_least_works_and_less_does_not(needs in any_needs()) {
        let least = least(&needs);
        let with = |budget| Plan::new(&Needs { budget, ..needs.clone() }, fit());
        prop_assert!(with(least).is_ok());
        if least > 0 {
            let expect = PlanError::Budget { budget: least - 1, least, fixed: needs.fixed };
            prop_assert_eq!(with(least - 1), Err(expect));
        }
    }

    #[test]
    fn more_memory_never_predicts_a_slower_token(
        needs in any_needs(), steps in prop::collection::vec(0u64..200, 1..60),
        link in 1.0f64..100.0, compute in 1.0f64..100.0, share in 0.0f64..1.0,
        shared in any::<bool>(), prefetch in any::<bool>(),
    ) {
        let rates = Rates { link, compute, shared };
        let work = Work { prefetch, ..work(share * needs.pool.count as f64) };
        let mut budget = least(&needs);
        let mut before = f64::INFINITY;
        for step in steps {
            let plan = Plan::new(&Needs { budget, ..needs.clone() }, fit()).unwrap();
            let now = plan.predict(&work, &rates).pass_s;
            prop_assert!(now <= before * (1.0 + 1e-12), "{} after {} at {}", now, before, budget);
            before = now;
            budget += step;
        }
    }

    #[test]
    fn what_streams_is_evenly_spread(count in 8usize..200, share in 1u64..9) {
        let needs = Needs {
            budget: 10 * count as u64 * share / 10 + 70,
            segments: vec![10; count],
            waiting: 5,
            ..Needs::default()
        };
        let plan = Plan::new(&needs, fit()).unwrap();
        let streamed = plan.ring.slots.len();
        // No stretch holds many more than its share.
        for (i, slot) in plan.ring.slots.iter().enumerate() {
            let expect = (slot.segment as f64 + 0.5) * streamed as f64 / count as f64;
            prop_assert!((i as f64 + 0.5 - expect).abs() <= 3.0, "{} at {}", i, expect);
        }
    }
}

#[test]
fn what_binds() {
    let needs = Needs {
        budget: 1400,
        fixed: 100,
        segments: vec![100; 20],
        waiting: 5,
        ..Needs::default()
    };
    let plan = Plan::new(&needs, fit()).unwrap();
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
    let serial = Work {
        prefetch: false,
        ..work(0.0)
    };
    assert_eq!(plan.predict(&serial, &fast).pass_s, 1.4 + 20.5);
}

#[test]
fn refusals_name_what_would_do() {
    let needs = Needs {
        budget: 1_000_000,
        fixed: 600_000,
        segments: vec![500_000; 3],
        waiting: 5,
        ..Needs::default()
    };
    let check = |needs: &Needs, overrides: Overrides, expect: &str| {
        let error = Plan::new(needs, overrides).unwrap_err();
        assert_eq!(error.to_string(), expect);
    };
    check(
        &needs,
        fit(),
        "1.0 MB of memory cannot work: the least is 1.1 MB (600.0 kB at all times, 500.0 kB \
         to stream through)",
    );
    let all = Overrides {
        keep: Keep::All,
        ..fit()
    };
    check(
        &needs,
        all,
        "not everything stays in 1.0 MB: that takes 2.1 MB",
    );
    let small = Overrides {
        ring: Some(100),
        ..fit()
    };
    let needs = Needs {
        budget: 1_500_000,
        ..needs
    };
    let large = Overrides {
        ring: Some(1_000_000),
        ..fit()
    };
    check(
        &needs,
        large,
        "a ring of 1.0 MB does not fit: there is room for one of 900.0 kB",
    );
    check(
        &needs,
        small,
        "a ring of 100 B cannot work: the largest piece is 500.0 kB",
    );
}

#[test]
fn absurd_sizes_are_refused_and_do_not_wrap() {
    let needs = Needs {
        budget: 1 << 40,
        fixed: u64::MAX - 5,
        segments: vec![u64::MAX / 2; 3],
        pool: Pool {
            count: usize::MAX,
            bytes: u64::MAX,
        },
        in_flight: u64::MAX,
        waiting: 5,
    };
    assert!(matches!(
        Plan::new(&needs, fit()),
        Err(PlanError::Budget { .. })
    ));
    let ring = Overrides {
        ring: Some(u64::MAX),
        keep: Keep::Nothing,
    };
    let needs = Needs {
        budget: u64::MAX,
        segments: vec![10; 3],
        waiting: 5,
        ..Needs::default()
    };
    assert_eq!(Plan::new(&needs, ring).unwrap().ring.bytes, 30);
}
