//! Turns of a session, and operations that its status does not allow.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::paging::{alone, load, result_of};
use common::{family, open, request, stories};
use djinn_engine::{Engine, EngineError, Request, Sampling, SessionStatus, Settings};

/// A conversation continues from its KV pages: each turn generates the tokens that a fresh session
/// generates after the whole text so far.
#[test]
fn a_conversation_continues_from_its_pages() {
    for (folder, first) in [(stories(), 11), (family("llama3"), 7), (family("gpt2"), 5)] {
        let report = |request: Request| Request {
            sampling: Sampling {
                logprobs: Some(2),
                ..Sampling::default()
            },
            keep: true,
            ..request
        };
        let prompt: Vec<u32> = (0..20).map(|i| first + 3 * i).collect();
        let ask = report(request(&folder, &prompt, &[], 6));
        let long = report(request(&folder, &[1; 90], &[], 6));
        let settings = Settings::for_requests(&open(&folder), &[long.clone(), long], 7).unwrap();
        let pages = settings.pages / 2;
        let settings = Settings {
            pages,
            host_pages: 2 * pages,
            ..settings
        };
        let mut engine = load(&folder, settings);
        let id = engine.open(ask.clone()).unwrap();
        let other = engine.open(ask).unwrap();
        let mut said = prompt.clone();
        let mut logprobs = 0;
        for answer in [vec![9, 2, 5], vec![], vec![4; 17]] {
            let mut found = Vec::new();
            while !engine.is_idle() {
                for output in engine.step().unwrap() {
                    let is_ours = output.session == id;
                    found.extend(output.token.filter(|_| is_ours));
                }
                engine.check_integrity();
            }
            let fresh = request(&folder, &said, &[], 6);
            let alone = &alone(&folder, &[report(fresh)])[0];
            // On a GPU, prompt tokens and generated tokens use different kernels.
            if common::card().is_none() {
                assert_eq!(found, alone.generated, "{folder:?}");
            }
            assert_eq!(found.len(), 6);
            logprobs += alone.logprobs.len();
            said.extend(found);
            said.extend(&answer);
            for id in [id, other] {
                engine
                    .any_session(id)
                    .and_then(|mut session| session.append(&answer, 6, &[]))
                    .unwrap();
            }
        }
        let both = [id, other].map(|id| engine.close(id).unwrap());
        assert!(result_of(&both[0]) == result_of(&both[1]), "{folder:?}");
        assert_eq!(
            (both[0].logprobs.len(), both[0].generated.len()),
            (logprobs, 18)
        );
        assert_eq!(both[0].prompt, prompt);
        engine.check_integrity();
    }
}

#[test]
fn operations_in_the_wrong_status_are_rejected() {
    let folder = stories();
    let ask = request(&folder, &[1, 2, 3], &[], 3);
    let settings = Settings::for_requests(&open(&folder), std::slice::from_ref(&ask), 64).unwrap();
    let mut engine = load(&folder, settings);
    let id = engine.open(ask.clone()).unwrap();
    let resume = |engine: &mut Engine| {
        let session = engine.any_session(id);
        session.and_then(|mut session| session.resume())
    };
    let wait = |engine: &mut Engine| {
        let session = engine.any_session(id);
        session.and_then(|mut session| session.wait(None))
    };
    let wrong_status = |result: Result<(), EngineError>| match result {
        Err(EngineError::WrongStatus { status, .. }) => status,
        other => panic!("{other:?}"),
    };
    let status = wrong_status(resume(&mut engine));
    assert_eq!(status, SessionStatus::Ready);
    wait(&mut engine).unwrap();
    assert!(engine.is_idle() && engine.step().unwrap().is_empty());
    wait(&mut engine).unwrap();
    let appended = engine
        .any_session(id)
        .and_then(|mut session| session.append(&[1], 1, &[]));
    assert!(matches!(appended, Err(EngineError::NotKept(_))));
    resume(&mut engine).unwrap();
    while !engine.is_idle() {
        engine.step().unwrap();
    }
    let status = wrong_status(resume(&mut engine));
    assert_eq!(status, SessionStatus::Done);
    assert_eq!(engine.close(id).unwrap().generated.len(), 3);
    let closed = wait(&mut engine);
    assert!(matches!(closed, Err(EngineError::NoSession(_))));
}

#[test]
fn a_request_larger_than_the_device_is_rejected_at_once() {
    let folder = stories();
    let long = request(&folder, &[1; 40], &[], 3);
    let settings = Settings::for_requests(&open(&folder), std::slice::from_ref(&long), 64);
    let settings = Settings {
        pages: 2,
        host_pages: 9,
        ..settings.unwrap()
    };
    let mut engine = load(&folder, settings);
    let rejected = engine.open(long);
    assert!(matches!(rejected, Err(EngineError::OutOfPages(_))));
    engine.check_integrity();
    assert!(engine.is_idle());
}
