//! Deadlines, leases and quotas.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::time::Duration;

use common::durable::{engine, numbered_request};
use djinn_engine::{Engine, EngineError, Finish, Request, SessionId};

#[test]
fn deadlines_leases_and_quotas_end_or_reject_sessions() {
    let mut engine = engine(3);
    engine.set_quota(djinn_engine::Quota {
        sessions: 2,
        ..Default::default()
    });
    // Hours, so that a slow machine does not reach a deadline while it steps.
    let now = std::time::Instant::now();
    let owned = |number: u64| Request {
        owner: "a".into(),
        ..numbered_request(number)
    };
    let late = engine
        .open(Request {
            deadline: Some(now + Duration::from_secs(5000)),
            ..owned(0)
        })
        .unwrap();
    let leased = engine
        .open(Request {
            lease: Some(Duration::from_secs(5000)),
            ..owned(1)
        })
        .unwrap();
    let error = engine.open(owned(2)).unwrap_err();
    let is_expected = matches!(
        error,
        EngineError::Quota {
            asked: 3,
            limit: 2,
            ..
        }
    );
    assert!(is_expected, "{error}");
    assert!(
        engine
            .any_session(late)
            .and_then(|mut session| session.fork(None))
            .is_err()
    );
    engine.open(numbered_request(1)).unwrap();
    while !engine.is_idle() {
        engine.step().unwrap();
    }
    let ends = |engine: &mut Engine, seconds: u64| -> Vec<(SessionId, Option<Finish>)> {
        let outputs = engine.maintain(now + Duration::from_secs(seconds));
        outputs
            .iter()
            .map(|output| (output.session, output.finish))
            .collect()
    };
    assert_eq!(ends(&mut engine, 4000), []);
    engine
        .any_session(leased)
        .map(|mut session| session.renew())
        .unwrap();
    assert_eq!(ends(&mut engine, 5000), [(late, Some(Finish::Deadline))]);
    assert_eq!(ends(&mut engine, 60_000), [(leased, Some(Finish::Lease))]);
    assert!(
        engine
            .any_session(late)
            .and_then(|mut session| session.append(&[1], 1, &[]))
            .is_err()
    );
    engine.check_integrity();
    assert_eq!(engine.close(late).unwrap().finish, Some(Finish::Deadline));
    engine.open(owned(2)).unwrap();
}
