//! `djinn selftest`

use std::collections::BTreeMap;

use djinn_device::{
    Backend,
    cpu::{CpuBackend, Isa},
    selftest::{Case, LIMITS, SLAB_BYTES, selftest as run},
};
use djinn_terminal::{Failure, say, say_json};
use djinn_types::text::table;
use serde_json::json;

use crate::{args::SelftestArgs, progress::Spinner};

/// Checks every operation of a device against the portable code of the processor.
pub fn selftest(args: &SelftestArgs) -> Result<(), Failure> {
    let reference = CpuBackend {
        threads: Some(1),
        isa: Some(Isa::Scalar),
    };
    let reference = reference.open(SLAB_BYTES, LIMITS)?;
    let chosen = args.device.choose()?;
    let device = chosen.backend.open(SLAB_BYTES, LIMITS)?;
    if let Some(note) = chosen.note() {
        eprintln!("{note}");
    }
    let seed = args.seed.unwrap_or_else(super::run::fresh_seed);
    let mut cases = Vec::new();
    let spinner = Spinner::new("first cases");
    run(&*reference, &*device, seed, &mut |case| {
        cases.push(case);
        let case = &cases[cases.len() - 1];
        spinner.show(format!("{} cases, the last one {}", cases.len(), case.op));
    })?;
    drop(spinner);
    let failed: Vec<&Case> = cases.iter().filter(|case| !case.passed()).collect();
    if args.json {
        let rows: Vec<_> = cases
            .iter()
            .map(|case| {
                json!({
                    "op": case.op, "case": case.what, "passed": case.passed(),
                    "error": case.error.is_finite().then_some(case.error), "limit": case.limit,
                })
            })
            .collect();
        let device = device.info();
        say_json(&json!({
            "device": device.name, "device_detail": device.detail, "seed": seed,
            "passed": failed.is_empty(), "cases": rows,
        }))?;
    } else {
        say(&summary(&cases))?;
        for case in &failed {
            let error = case.error;
            say(&format!(
                "FAIL {} {}: off by {error:.1e}\n",
                case.op, case.what
            ))?;
        }
    }
    let info = device.info();
    match failed.len() {
        0 => {
            eprintln!(
                "{} ({}): all {} cases passed, seed {seed}",
                info.name,
                info.detail,
                cases.len()
            );
            Ok(())
        }
        count => Err(Failure::Message(format!(
            "{}: {count} of {} cases failed, seed {seed}",
            info.name,
            cases.len()
        ))),
    }
}

/// Table with a line for every operation.
fn summary(cases: &[Case]) -> String {
    let mut by_op: BTreeMap<&str, (usize, usize, f64)> = BTreeMap::new();
    for case in cases {
        let (count, failed, worst) = by_op.entry(case.op).or_default();
        *count += 1;
        *failed += usize::from(!case.passed());
        *worst = worst.max(case.error);
    }
    let rows: Vec<Vec<String>> = by_op
        .into_iter()
        .map(|(op, (count, failed, worst))| {
            let verdict = if failed == 0 { "pass" } else { "FAIL" };
            vec![
                op.to_owned(),
                count.to_string(),
                format!("{worst:.1e}"),
                verdict.to_owned(),
            ]
        })
        .collect();
    table(&["operation", "cases", "largest error", "verdict"], &rows)
}
