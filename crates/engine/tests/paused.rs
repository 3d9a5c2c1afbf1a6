//! Paused sessions: branches, eviction of their pages, restarts and invalid requests do not change a
//! bit of their results.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::{collections::BTreeMap, path::Path};

use common::{
    How, family, golden, ids, load, open, request, request_edited, run,
    stops::{run_until_idle, sites, stopping},
    tensors,
};
use djinn_engine::{
    BreakSpec, Engine, EngineError, Request, RunUntil, SessionId, SessionStatus, Settings,
};
use djinn_model::Site;
use djinn_weights::MemorySettings;

#[test]
fn branches_share_the_computation_before_the_pause() {
    let folder = family("llama3");
    let tokens = ids(&golden(&folder)["input_ids"])[..20].to_vec();
    let plain = request(&folder, &tokens, &[], 4);
    let factors = [0.0, 0.5, 1.0, 2.0];
    let site = "blocks.0.hook_resid_post";
    let edit = |factor: f32| format!("{site}:scale={factor}@-1");
    let in_request: Vec<_> = factors
        .iter()
        .map(|&factor| {
            let edited = request_edited(&folder, &tokens, &[], 4, &[&edit(factor)]);
            run(&folder, vec![edited], How::default())
                .remove(0)
                .generated
        })
        .collect();
    let first = stopping(&folder, &plain, &[&format!("{site},step=0")]);
    let all = vec![first.clone(); 1 + 4 * factors.len()];
    let mut engine = load(open(&folder), &all, How::default());
    let id = engine.open(first).unwrap();
    assert_eq!(run_until_idle(&mut engine).len(), 1);
    let passes = engine.passes();
    let branches = engine
        .any_session(id)
        .and_then(|mut session| session.branch(factors.len()))
        .unwrap();
    for (&branch, &factor) in branches.iter().zip(&factors) {
        let edits = [edit(factor).parse().unwrap()];
        engine
            .any_session(branch)
            .and_then(|mut session| session.resume_with(&edits, RunUntil::Breakpoint))
            .unwrap();
    }
    assert_eq!(run_until_idle(&mut engine), []);
    // All four branches ran the rest of the prompt together.
    assert_eq!(engine.passes() - passes, 4);
    for (branch, in_request) in branches.into_iter().zip(in_request) {
        assert_eq!(
            engine.close(branch).unwrap().generated,
            in_request,
            "{branch:?}"
        );
    }
    // The original session is still paused, and resumes unchanged.
    engine
        .any_session(id)
        .and_then(|mut session| session.resume())
        .unwrap();
    run_until_idle(&mut engine);
    let alone = run(&folder, vec![plain], How::default()).remove(0);
    assert_eq!(engine.close(id).unwrap().generated, alone.generated);
}

#[test]
fn invalid_requests_are_rejected_without_effect() {
    let folder = family("gptj");
    let tokens = ids(&golden(&folder)["input_ids"])[..6].to_vec();
    let plain = request(&folder, &tokens, &[], 3);
    let program = open(&folder).program;
    let break_error = |text: &str| {
        let spec: BreakSpec = text.parse().unwrap();
        let probe = plain.probe.clone().with_breaks(&program, &[spec]);
        probe.unwrap_err()
    };
    // A hook that this family lacks, one beyond the last block, and one without a pause.
    for text in ["blocks.0.hook_resid_mid", "blocks.9.hook_resid_post"] {
        assert!(matches!(break_error(text), EngineError::Hook(_)), "{text}");
    }
    let error = break_error("blocks.0.attn.hook_pattern");
    assert!(matches!(error, EngineError::NoStop(_)), "{error}");
    let site = "blocks.0.hook_resid_post";
    let request = Request {
        owner: "anna".to_owned(),
        ..stopping(&folder, &plain, &[site])
    };
    let mut engine = load(
        open(&folder),
        std::slice::from_ref(&request),
        How::default(),
    );
    let id = engine.open(request).unwrap();
    let edit = |text: &str| vec![text.parse().unwrap()];
    // The session is not paused yet.
    let error = engine
        .any_session(id)
        .and_then(|mut session| session.resume_with(&[], RunUntil::Breakpoint))
        .unwrap_err();
    let is_expected = matches!(
        error,
        EngineError::WrongStatus {
            status: SessionStatus::Ready,
            ..
        }
    );
    assert!(is_expected, "{error}");
    assert!(
        engine
            .any_session(id)
            .and_then(|session| session.activation())
            .is_err()
    );
    run_until_idle(&mut engine);
    // A session of another owner, and one that does not exist.
    let error = engine
        .session("bert", id)
        .and_then(|mut session| session.resume())
        .unwrap_err();
    assert!(matches!(error, EngineError::NoSession(_)), "{error}");
    assert!(
        engine
            .any_session(SessionId::from_bits(99))
            .and_then(|mut session| session.branch(1))
            .is_err()
    );
    // Another hook, an unknown hook, and a position that the activation does not cover.
    for (text, is_unknown) in [
        ("blocks.1.hook_resid_post:zero", false),
        ("blocks.0.hook_nothing:zero", true),
        ("blocks.0.hook_resid_post:zero@77", false),
    ] {
        let error = engine
            .any_session(id)
            .and_then(|mut session| session.resume_with(&edit(text), RunUntil::Breakpoint))
            .unwrap_err();
        let is_expected = match is_unknown {
            true => matches!(error, EngineError::Hook(_)),
            false => matches!(error, EngineError::Edit { .. }),
        };
        assert!(is_expected, "{text}: {error}");
    }
    let folder_of = tempfile::tempdir().unwrap();
    let path = folder_of.path().join("bad.safetensors");
    let write = |name: &str, data: Vec<f32>| {
        let tensor = djinn_engine::Tensor {
            shape: vec![data.len()],
            data,
        };
        let all = BTreeMap::from([(name.to_owned(), tensor)]);
        djinn_engine::write_tensors(&path, &all, &BTreeMap::new()).unwrap();
    };
    let file = format!("{site}:replace={}", path.display());
    write("short", vec![0.0; 5]);
    let error = engine
        .any_session(id)
        .and_then(|mut session| session.resume_with(&edit(&file), RunUntil::Breakpoint))
        .unwrap_err();
    assert!(matches!(error, EngineError::Edit { .. }), "{error}");
    write("nan", vec![f32::NAN; program.dims.d_model]);
    let error = engine
        .any_session(id)
        .and_then(|mut session| session.resume_with(&edit(&file), RunUntil::Breakpoint))
        .unwrap_err();
    assert!(matches!(error, EngineError::File { .. }), "{error}");
    // After these errors the session resumes unchanged.
    engine
        .any_session(id)
        .and_then(|mut session| session.resume())
        .unwrap();
    while !run_until_idle(&mut engine).is_empty() {
        engine
            .any_session(id)
            .and_then(|mut session| session.resume())
            .unwrap();
    }
    let alone = run(&folder, vec![plain], How::default()).remove(0);
    assert_eq!(engine.close(id).unwrap().generated, alone.generated);
}

/// Loads an engine whose device holds two of these sessions, host memory two more, and the disk the
/// rest.
fn small(folder: &Path, requests: &[Request], disk: &Path) -> Engine {
    let (model, backend) = (open(folder), How::default().backend());
    let all = Settings::for_requests(&model, requests, 64).unwrap();
    let most = all.context.div_ceil(all.page_tokens);
    let settings = Settings {
        sessions: 4,
        rows: 64,
        logit_rows: 64,
        pages: 2 * most,
        host_pages: 2 * most,
        disk_pages: all.pages,
        ..all
    };
    let mut blueprint =
        djinn_engine::Blueprint::draw(&model, &*backend, settings, MemorySettings::default())
            .unwrap();
    blueprint.spill_to(disk);
    Engine::load(model, &*backend, blueprint, &mut |_| {}).unwrap()
}

#[test]
fn evicting_paused_sessions_changes_no_bit() {
    for name in ["llama3", "falcon7b", "mixtral"] {
        let folder = family(name);
        let plain = request(&folder, &ids(&golden(&folder)["input_ids"])[..37], &[], 6);
        let alone = run(&folder, vec![plain.clone()], How::default()).remove(0);
        let all = sites(&folder);
        let stops: Vec<Request> = all
            .iter()
            .step_by(all.len() / 6)
            .enumerate()
            .map(|(i, site)| {
                // Half of the sessions pause in the prompt, half at a generated token. A busy disk
                // may cut the prompt in two, so only its first position matches.
                let when = if i % 2 == 0 { "@0" } else { ",step=2" };
                stopping(&folder, &plain, &[&format!("{site}{when}")])
            })
            .collect();
        let others: Vec<Request> = (0..20).map(|n| asked_plain(&folder, 5 + n, 3)).collect();
        let mut all_requests = stops.clone();
        all_requests.extend(others.clone());
        let disk = tempfile::tempdir().unwrap();
        let mut engine = small(&folder, &all_requests, disk.path());
        let open_all = |engine: &mut Engine, requests: Vec<Request>| -> Vec<SessionId> {
            let open = |request| engine.open(request).unwrap();
            requests.into_iter().map(open).collect()
        };
        let stopped = open_all(&mut engine, stops);
        assert_eq!(run_until_idle(&mut engine).len(), stopped.len(), "{name}");
        for &id in &stopped {
            engine
                .any_session(id)
                .and_then(|mut session| session.wait(None))
                .unwrap();
        }
        let others_ids = open_all(&mut engine, others.clone());
        run_until_idle(&mut engine);
        let away: usize = engine.list(None).iter().map(|info| info.away).sum();
        assert!(away > 0, "{name}: no page was evicted");
        for &id in &stopped {
            assert!(
                engine
                    .view(id)
                    .and_then(|session| session.paused())
                    .is_some()
            );
            engine
                .any_session(id)
                .and_then(|mut session| session.resume())
                .unwrap();
        }
        assert_eq!(run_until_idle(&mut engine), [], "{name}");
        for id in stopped {
            let found = engine.close(id).unwrap();
            assert_eq!(found.generated, alone.generated, "{name}");
        }
        let expect = run(&folder, others, How::default());
        for (id, expect) in others_ids.into_iter().zip(expect) {
            assert_eq!(engine.close(id).unwrap().generated, expect.generated);
        }
        let paged = engine.paging_stats().unwrap();
        assert!(
            paged.spilled.bytes > 0 && paged.fetched.bytes > 0,
            "{name} {paged:?}"
        );
    }
}

fn asked_plain(folder: &Path, length: usize, generate: usize) -> Request {
    let tokens = ids(&golden(folder)["input_ids"]);
    request(folder, &tokens[..length], &[], generate)
}

#[test]
fn restarts_change_no_bit() {
    let folder = family("llama3");
    let keep = |engine: &mut Engine, state: &Path| {
        let state = djinn_engine::StateFolder::open(state).unwrap();
        let restored = engine
            .attach_state(state, djinn_engine::RestoreScope::All)
            .unwrap();
        assert!(restored.refused.is_empty(), "{restored:?}");
    };
    let site = "blocks.1.hook_resid_post";
    let edit = |step: usize| format!("{site}:scale=0.{step}");
    let plain = asked_plain(&folder, 21, 6);
    // Expected result: both edits in the request, at the prompt and at one generated token.
    let edits = [format!("{}@prompt", edit(4)), format!("{}@22", edit(7))];
    let edits: Vec<&str> = edits.iter().map(String::as_str).collect();
    let in_request = request_edited(&folder, &plain.tokens, &[], 6, &edits);
    let in_request = run(&folder, vec![in_request], How::default())
        .remove(0)
        .generated;
    let spec = [format!("{site},step=0"), format!("{site},step=2")];
    let first = stopping(&folder, &plain, &[&spec[0], &spec[1]]);
    // With 13 rows the prompt runs in two parts, and both pause.
    for rows in [64, 13] {
        let how = How {
            rows,
            ..How::default()
        };
        for crashes in 0..8u32 {
            let state = tempfile::tempdir().unwrap();
            let fresh = || {
                let mut engine = load(open(&folder), std::slice::from_ref(&first), how);
                keep(&mut engine, state.path());
                engine
            };
            let mut engine = fresh();
            let id = engine.open(first.clone()).unwrap();
            let mut stops = 0;
            loop {
                let stopped = run_until_idle(&mut engine);
                if stopped.is_empty() {
                    break;
                }
                let shown = engine
                    .any_session(id)
                    .and_then(|session| session.activation())
                    .unwrap();
                if crashes & 1 != 0 {
                    drop(engine);
                    engine = fresh();
                    // The session is paused at the same hook, and can compute its activation again.
                    assert_eq!(
                        engine
                            .view(id)
                            .and_then(|session| session.paused())
                            .as_ref(),
                        Some(&stopped[0].1)
                    );
                    let error = engine
                        .any_session(id)
                        .and_then(|session| session.activation())
                        .unwrap_err();
                    assert!(matches!(error, EngineError::NotRecalled(_)), "{error}");
                    if crashes & 2 != 0 {
                        engine
                            .any_session(id)
                            .and_then(|mut session| session.recall())
                            .unwrap();
                        assert_eq!(run_until_idle(&mut engine), stopped);
                        let again = engine
                            .any_session(id)
                            .and_then(|session| session.activation())
                            .unwrap();
                        assert!(again.data == shown.data);
                    }
                }
                let factor = if stopped[0].1.position < 21 { 4 } else { 7 };
                let edits = [edit(factor).parse().unwrap()];
                engine
                    .any_session(id)
                    .and_then(|mut session| session.resume_with(&edits, RunUntil::Breakpoint))
                    .unwrap();
                stops += 1;
                if crashes & 4 != 0 {
                    // The session runs again and has not reached the next hook.
                    drop(engine);
                    engine = fresh();
                    assert_eq!(engine.view(id).and_then(|session| session.paused()), None);
                }
            }
            assert_eq!(stops, 1 + 21usize.div_ceil(rows), "{crashes}");
            let found = engine.close(id).unwrap();
            assert_eq!(found.generated, in_request, "{rows} rows, {crashes}");
        }
    }
}

#[test]
fn branching_back_equals_a_pause_at_the_earlier_hook() {
    for name in ["llama3", "gptj", "mixtral"] {
        let folder = family(name);
        let tokens = ids(&golden(&folder)["input_ids"])[..20].to_vec();
        let dims = open(&folder).program.dims;
        let all = request(&folder, &tokens, &["blocks.*.hook_resid_post"], 3);
        let alone = run(&folder, vec![all], How::default()).remove(0);
        let residuals = tensors(&alone);
        let plain = request(&folder, &tokens, &[], 3);
        let last = format!("{},step=0", Site::ResidPost(dims.blocks - 1));
        let base = stopping(&folder, &plain, &[&last]);
        let mut engine = load(open(&folder), &vec![base.clone(); 8], How::default());
        let id = engine.open(base).unwrap();
        assert_eq!(run_until_idle(&mut engine).len(), 1);
        for (block, position) in [(0, 0), (0, 19), (1, 7), (2, 13)] {
            let site = Site::ResidPost(block);
            let rest = &residuals[&site.to_string()].data;
            let rest = &rest[position * dims.d_model..20 * dims.d_model];
            let edit = format!("{site}:scale=0.3@{position}");
            let in_request = request_edited(&folder, &tokens, &[], 3, &[&edit]);
            let in_request = run(&folder, vec![in_request], How::default())
                .remove(0)
                .generated;
            let pair = [
                (vec![], alone.generated.clone()),
                (vec![edit.parse().unwrap()], in_request),
            ];
            for (edits, expect) in pair {
                let branch = engine
                    .any_session(id)
                    .and_then(|mut session| session.branch_back(site, position, rest))
                    .unwrap();
                engine
                    .any_session(branch)
                    .and_then(|mut session| session.set_breakpoints(&[]))
                    .unwrap();
                engine
                    .any_session(branch)
                    .and_then(|mut session| session.resume_with(&edits, RunUntil::Breakpoint))
                    .unwrap();
                run_until_idle(&mut engine);
                let found = engine.close(branch).unwrap().generated;
                assert_eq!(found, expect, "{name} block {block} position {position}");
            }
        }
        let site = Site::ResidPost(0);
        let refused = |engine: &mut Engine, site, position, count: usize| {
            let rest = vec![0.0; count];
            engine
                .any_session(id)
                .and_then(|mut session| session.branch_back(site, position, &rest))
                .unwrap_err()
        };
        let whole = 20 * dims.d_model;
        // A position that has not run, too few numbers, a hook where later operations read more
        // than the residual, and a hook after the pause.
        for (site, position, count) in [
            (site, 20, whole),
            (site, 0, whole - 1),
            (Site::Z(0), 0, whole),
            (Site::Logits, 0, whole),
        ] {
            let error = refused(&mut engine, site, position, count);
            assert!(matches!(error, EngineError::Edit { .. }), "{site}: {error}");
        }
        assert!(
            engine
                .view(id)
                .and_then(|session| session.paused())
                .is_some()
        );
    }
}
