//! Owners that compete for one engine: passes, slots and memory for probes.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{How, open, request, stories};
use djinn_engine::{
    Blueprint, Engine, EngineError, LimitKind, Positions, Probe, ProbeLimits, Quota, QuotaKind,
    Request, Settings,
};
use djinn_weights::MemorySettings;

/// Loads an engine with one session in a pass and room for `open` sessions.
fn engine(open_max: usize) -> Engine {
    let (model, backend) = (open(&stories()), How::default().backend());
    let settings = Settings::for_sessions(&model.program, 1, 64, 32).unwrap();
    let settings = Settings {
        pages: 4 * open_max,
        open: open_max,
        probe_limits: ProbeLimits::anything(&model.program, 64),
        ..settings
    };
    let memory = MemorySettings::default();
    let blueprint = Blueprint::draw(&model, &*backend, settings, memory).unwrap();
    Engine::load(model, &*backend, blueprint, &mut |_| {}).unwrap()
}

fn asked(owner: &str, captures: &[&str], generate: usize) -> Request {
    Request {
        owner: owner.to_owned(),
        keep: true,
        ..request(&stories(), &[1, 2, 3, 4], captures, generate)
    }
}

#[test]
fn an_owner_with_one_session_gets_half_of_the_passes() {
    let mut engine = engine(40);
    for _ in 0..30 {
        engine.open(asked("many", &[], 50)).unwrap();
    }
    for _ in 0..100 {
        engine.step().unwrap();
    }
    let single = engine.open(asked("single", &[], 50)).unwrap();
    let mut tokens = 0;
    for _ in 0..96 {
        let outputs = engine.step().unwrap();
        tokens += outputs.iter().filter(|o| o.session == single).count();
    }
    assert!(tokens >= 43, "{tokens} of 96");
}

#[test]
fn owners_leave_room_for_newcomers() {
    let mut engine = engine(8);
    engine.set_fair_slots(true);
    let checker = engine.request_checker();
    let mut opened = 0;
    let refused = loop {
        let checked = checker.check(asked("", &[], 2)).unwrap().with_owner("a");
        if let Err(error) = engine.check_room(&checked) {
            break error;
        }
        engine.open_checked(checked).unwrap();
        opened += 1;
    };
    let is_fair = |error: &EngineError, kind: QuotaKind| matches!(error, EngineError::FairShare { kind: found, .. } if *found == kind);
    assert!(is_fair(&refused, QuotaKind::Sessions), "{refused}");
    assert_eq!(opened, 4);
    // A newcomer finds room; a quota of an owner's own replaces the rule.
    engine.open(asked("b", &[], 2)).unwrap();
    let error = engine.open(asked("a", &[], 2)).unwrap_err();
    assert!(matches!(error, EngineError::FairShare { .. }), "{error}");
    let quota = Quota {
        sessions: 100,
        pages: 100,
        ..Quota::default()
    };
    engine.set_quota_of("a", Some(quota));
    engine.open(asked("a", &[], 2)).unwrap();
    engine.set_fair_slots(false);
    engine.set_quota_of("a", None);
    engine.open(asked("a", &[], 2)).unwrap();
}

#[test]
fn captures_and_checkpoints_count_until_they_are_taken() {
    let mut engine = engine(8);
    let hook = ["blocks.1.hook_resid_post"];
    let width = engine.model().program.dims.d_model as u64;
    let checked = engine
        .request_checker()
        .check(asked("a", &hook, 3))
        .unwrap();
    // Four tokens of the prompt, and two generated ones that run again.
    let bytes = 4 * 6 * width;
    assert_eq!(
        (checked.captured_bytes(), checked.probe_bytes()),
        (bytes, bytes)
    );
    engine.set_quota_of(
        "a",
        Some(Quota {
            probe_bytes: bytes,
            ..Quota::default()
        }),
    );
    let id = engine.open_checked(checked).unwrap();
    assert_eq!(
        (engine.probe_bytes(Some("a")), engine.probe_bytes(Some("b"))),
        (bytes, 0)
    );
    let error = engine.open(asked("a", &hook, 1)).unwrap_err();
    let kind = QuotaKind::ProbeBytes;
    assert!(matches!(error, EngineError::Quota { kind: found, .. } if found == kind));
    let fork = engine.any_session(id).unwrap().fork(None).unwrap_err();
    assert!(matches!(fork, EngineError::Quota { .. }), "{fork}");
    engine.open(asked("b", &hook, 3)).unwrap();
    while !engine.is_idle() {
        engine.step().unwrap();
    }
    // The captures of the turn are still there: another turn would exceed the quota.
    assert_eq!(engine.probe_bytes(Some("a")), bytes);
    let mut session = engine.any_session(id).unwrap();
    let error = session.append(&[7], 2, &[]).unwrap_err();
    assert!(matches!(error, EngineError::Quota { .. }), "{error}");
    assert!(!session.take_captured().is_empty());
    session.append(&[7], 2, &[]).unwrap();
    engine.close(id);
    assert_eq!(engine.probe_bytes(Some("a")), 0);
}

#[test]
fn a_budget_limits_the_probes_of_all_owners() {
    let mut engine = engine(8);
    let program = open(&stories()).program;
    let breaks = ["blocks.1.hook_resid_post@0".parse().unwrap()];
    let probe = Probe::new(&program, &[] as &[&str], Positions::All, &[]).unwrap();
    let pausing = |owner: &str| Request {
        probe: probe.clone().with_breaks(&program, &breaks).unwrap(),
        ..asked(owner, &[], 1)
    };
    let checked = engine.request_checker().check(pausing("a")).unwrap();
    let bytes = 4 * 4 * program.dims.d_model as u64;
    assert_eq!(checked.probe_bytes(), bytes);
    engine.set_probe_budget(bytes);
    let id = engine.open_checked(checked).unwrap();
    let error = engine.open(pausing("b")).unwrap_err();
    let kind = LimitKind::ProbeBytes;
    assert!(
        matches!(error, EngineError::Limit { kind: found, .. } if found == kind),
        "{error}"
    );
    engine.open(asked("b", &[], 1)).unwrap();
    while !engine.is_idle() {
        engine.step().unwrap();
    }
    // The session is paused; a branch would hold another checkpoint.
    let error = engine.any_session(id).unwrap().branch(1).unwrap_err();
    assert!(
        matches!(error, EngineError::Limit { kind: found, .. } if found == kind),
        "{error}"
    );
    engine.close(id);
    assert_eq!(engine.probe_bytes(None), 0);
    engine.open(pausing("b")).unwrap();
}

#[test]
fn owners_do_not_share_prefixes() {
    let mut engine = engine(8);
    let prompt: Vec<u32> = (1..40).collect();
    let asked = |owner: &str| Request {
        tokens: prompt.clone(),
        ..asked(owner, &[], 2)
    };
    let mut reused = Vec::new();
    for owner in ["ada", "bert", "ada"] {
        engine.open(asked(owner)).unwrap();
        while !engine.is_idle() {
            engine.step().unwrap();
        }
        reused.push(engine.prefix_tokens_reused());
    }
    assert_eq!(reused[..2], [0, 0], "another owner's pages are not used");
    assert!(reused[2] > 0, "the owner's own pages are");
}
