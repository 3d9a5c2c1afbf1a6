//! Passes on a device whose events are late: the loop that runs while the device computes.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::time::Instant;

use common::{How, bits, open, request, run, stories};
use djinn_device::testing::LateBackend;
use djinn_engine::{Blueprint, Engine, EngineError, Request, SessionStatus, Settings};
use djinn_weights::MemorySettings;

/// Largest number of queries for which an event is not past.
const POLLS: u32 = 20;

fn late_engine(requests: &[Request]) -> Engine {
    let model = open(&stories());
    let settings = Settings::for_requests(&model, requests, 64).unwrap();
    let settings = Settings {
        host_pages: settings.pages,
        ..settings
    };
    let backend = LateBackend::new(1, POLLS);
    let memory = MemorySettings::default();
    let blueprint = Blueprint::draw(&model, &backend, settings, memory).unwrap();
    Engine::load(model, &backend, blueprint, &mut |_| {}).unwrap()
}

#[test]
fn the_callback_runs_while_the_device_computes_and_changes_no_bit() {
    let requests: Vec<Request> = [5, 6]
        .into_iter()
        .map(|token| request(&stories(), &[token; 20], &["blocks.1.hook_resid_post"], 6))
        .collect();
    let expect: Vec<_> = run(&stories(), requests.clone(), How::default())
        .iter()
        .map(bits)
        .collect();
    let mut engine = late_engine(&requests);
    let ids: Vec<_> = requests
        .into_iter()
        .map(|request| engine.open(request).unwrap())
        .collect();
    let mut passes_with_calls = 0;
    while !engine.is_idle() {
        let mut calls = 0;
        engine.step_with(&mut |_| calls += 1).unwrap();
        assert!(calls <= POLLS);
        passes_with_calls += u32::from(calls > 0);
        engine.check_integrity();
    }
    assert!(passes_with_calls > 3);
    let found: Vec<_> = ids
        .into_iter()
        .map(|id| bits(&engine.close(id).unwrap()))
        .collect();
    assert_eq!(found, expect);
}

#[test]
fn a_session_can_wait_while_another_computes() {
    let ask = |token: u32, owner: &str| Request {
        keep: true,
        owner: owner.to_owned(),
        ..request(&stories(), &[token; 20], &[], 6)
    };
    let requests = [ask(5, "ada"), ask(6, "bert")];
    let mut engine = late_engine(&requests);
    let [first, second] = requests.map(|request| engine.open(request).unwrap());
    engine.step().unwrap();
    engine.session("bert", second).unwrap().wait(None).unwrap();
    let now = Instant::now();
    let mut asked = 0;
    engine
        .step_with(&mut |during| {
            asked += 1;
            // A member of the pass has to be asked again after the pass.
            assert!(during.wait("ada", first, None).is_none());
            let other = during.wait("ada", second, Some(now)).unwrap();
            assert!(matches!(other, Err(EngineError::NoSession(_))));
            during.wait("bert", second, Some(now)).unwrap().unwrap();
        })
        .unwrap();
    assert!(asked > 0);
    engine.check_integrity();
    let status = |engine: &Engine, id| engine.view(id).unwrap().status();
    assert_eq!(status(&engine, first), SessionStatus::Ready);
    assert_eq!(status(&engine, second), SessionStatus::Waiting);
    engine.session("bert", second).unwrap().resume().unwrap();
    while !engine.is_idle() {
        engine.step().unwrap();
    }
    for id in [first, second] {
        let view = engine.view(id).unwrap();
        assert_eq!(
            (view.status(), view.generated()),
            (SessionStatus::Waiting, 6)
        );
    }
}
