//! A session that stops at a hook and goes on gives the bits it gives uninterrupted: at every
//! hook, of every family, in prompts and among generated tokens, whatever happens meanwhile.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::{collections::BTreeMap, path::Path};

use common::{
    Bits, FAMILIES, How, bits, card, family, golden, golden_note, ids, load, open, request,
    request_edited, run, tensors,
};
use djinn_engine::{
    BreakSpec, EditSpec, Engine, EngineError, Memory, Paused, Request, SessionId, Settings, Tier,
    Until,
};
use djinn_model::Site;

/// The same with breakpoints.
fn stopping(folder: &Path, request: &Request, breaks: &[&str]) -> Request {
    let program = open(folder).program;
    let breaks: Vec<BreakSpec> = breaks.iter().map(|b| b.parse().unwrap()).collect();
    let probe = request.probe.clone().with_breaks(&program, &breaks);
    Request {
        probe: probe.unwrap(),
        ..request.clone()
    }
}

/// Runs until nobody can, and says who stopped where.
fn settle(engine: &mut Engine) -> Vec<(SessionId, Paused)> {
    let mut stopped = Vec::new();
    while !engine.is_idle() {
        for output in engine.step().unwrap() {
            assert_eq!(output.failure, None);
            stopped.extend(output.paused.map(|at| (output.session, at)));
        }
        engine.check_integrity();
    }
    stopped
}

/// Runs a request, going on whenever it stops; says where it did.
fn interrupted(folder: &Path, request: Request, how: How) -> (Bits, Vec<Paused>) {
    let mut engine = load(open(folder), std::slice::from_ref(&request), how);
    go_through(&mut engine, request, &[])
}

/// The same in an engine at hand, changed at every stop.
fn go_through(engine: &mut Engine, request: Request, edits: &[EditSpec]) -> (Bits, Vec<Paused>) {
    let id = engine.open(request).unwrap();
    let mut stops = Vec::new();
    loop {
        let stopped = settle(engine);
        if stopped.is_empty() {
            break;
        }
        stops.extend(stopped.into_iter().map(|(_, at)| at));
        engine.go_on_from(id, edits, Until::Breakpoint).unwrap();
    }
    (bits(&engine.close(id).unwrap()), stops)
}

/// A prompt, every hook of it, and some tokens.
fn asked(folder: &Path, length: usize, generate: usize) -> Request {
    let tokens = ids(&golden(folder)["input_ids"]);
    request(folder, &tokens[..length], &["*"], generate)
}

/// Hooks at which a pass can stop.
fn sites(folder: &Path) -> Vec<Site> {
    let stops = open(folder).program.stops();
    stops.into_iter().map(|stop| stop.site).collect()
}

#[test]
fn stopped_anywhere_nothing_changes() {
    for name in FAMILIES {
        let folder = family(name);
        let request = asked(&folder, 9, 3);
        let alone = run(&folder, vec![request.clone()], How::default()).remove(0);
        let alone = bits(&alone);
        let mut engine = load(
            open(&folder),
            std::slice::from_ref(&request),
            How::default(),
        );
        for site in sites(&folder) {
            let request = stopping(&folder, &request, &[&site.to_string()]);
            let (found, stops) = go_through(&mut engine, request, &[]);
            // The prompt, and two generated tokens that are run.
            let expect = [(0, 9), (9, 1), (10, 1)];
            let stops: Vec<_> = stops.iter().map(|at| (at.position, at.rows)).collect();
            assert_eq!(stops, expect, "{name} {site}");
            assert!(found == alone, "{name}: stopped at {site}");
        }
    }
}

#[test]
fn from_hook_to_hook_nothing_changes() {
    for name in FAMILIES {
        let folder = family(name);
        let request = asked(&folder, 7, 2);
        let alone = run(&folder, vec![request.clone()], How::default()).remove(0);
        for (rows, until) in [(7, Until::Hook), (3, Until::Hook), (7, Until::Block)] {
            let how = How {
                rows,
                ..How::default()
            };
            let first = stopping(&folder, &request, &["hook_embed"]);
            let mut engine = load(open(&folder), std::slice::from_ref(&first), how);
            let id = engine.open(first).unwrap();
            let (mut seen, mut shown) = (Vec::new(), BTreeMap::new());
            loop {
                let stopped = settle(&mut engine);
                let Some((_, at)) = stopped.first() else {
                    break;
                };
                let activation = engine.activation(id).unwrap();
                let shown: &mut Vec<f32> = shown.entry(at.site.to_string()).or_default();
                shown.extend(activation.data);
                seen.push(at.site);
                engine.go_on_from(id, &[], until).unwrap();
            }
            let stops = sites(&folder);
            let wanted = stops.iter().filter(|site| match until {
                Until::Block => matches!(site, Site::ResidPost(_) | Site::Logits | Site::Embed),
                _ => true,
            });
            let passes = 7usize.div_ceil(rows) + 1;
            assert!(
                seen.len() >= wanted.count() * passes - 2 * passes,
                "{name} {seen:?}"
            );
            let transcript = engine.close(id).unwrap();
            // What was shown is what is captured.
            let captured = tensors(&transcript);
            for (name, shown) in shown {
                assert!(shown == captured[&name].data, "{name}");
            }
            let found = bits(&transcript);
            assert!(found == bits(&alone), "{name}: {until:?} in {rows} rows");
        }
    }
}

#[test]
fn among_others_and_with_weights_that_stream_nothing_changes() {
    for name in ["llama3", "mixtral", "gptj"] {
        let folder = family(name);
        let stops = asked(&folder, 9, 4);
        let alone = run(&folder, vec![stops.clone()], How::default()).remove(0);
        let others: Vec<Request> = (1..6).map(|n| asked(&folder, 3 + n, 2 * n)).collect();
        let others_alone = run(&folder, others.clone(), How::default());
        let settings = |all: &[Request]| Settings::for_requests(&open(&folder), all, 64).unwrap();
        let tiers: &[Option<Tier>] = match card() {
            Some(_) => &[None],
            None => &[None, Some(Tier::Host), Some(Tier::Files)],
        };
        for &tier in tiers {
            for site in [
                "blocks.0.hook_resid_post",
                "blocks.1.attn.hook_q",
                "blocks.1.hook_mlp_out",
            ] {
                let first = stopping(&folder, &stops, &[site]);
                let mut all = others.clone();
                all.insert(0, first.clone());
                let backend = How::default().backend();
                let mut memory = Memory {
                    tier,
                    ..Memory::default()
                };
                if tier.is_some() {
                    memory.budget = 0;
                    let least = djinn_engine::Blueprint::draw(
                        &open(&folder),
                        &backend,
                        settings(&all),
                        memory,
                    );
                    let Err(EngineError::Plan(djinn_memory::PlanError::Budget { least, .. })) =
                        least
                    else {
                        panic!("{name} runs in no memory");
                    };
                    memory.budget = least;
                }
                let how = How {
                    memory,
                    rows: 64,
                    ..How::default()
                };
                let mut engine = load(open(&folder), &all, how);
                let ids: Vec<SessionId> = all
                    .into_iter()
                    .map(|request| engine.open(request).unwrap())
                    .collect();
                // The others go on while the first stands, and are joined in the middle.
                let mut stood = 0;
                while !engine.is_idle() || engine.paused(ids[0]).is_some() {
                    if engine.paused(ids[0]).is_some() && stood % 3 == 2 {
                        engine.resume(ids[0]).unwrap();
                    }
                    stood += 1;
                    engine.step().unwrap();
                    engine.check_integrity();
                }
                let mut all = ids.into_iter().map(|id| bits(&engine.close(id).unwrap()));
                assert!(
                    all.next().unwrap() == bits(&alone),
                    "{name} {site} {tier:?}"
                );
                for (found, expect) in all.zip(&others_alone) {
                    assert!(found == bits(expect), "{name} {site} {tier:?}: another");
                }
            }
        }
    }
}

#[test]
fn an_edit_at_a_stop_is_the_edit_in_flight() {
    for name in FAMILIES {
        let folder = family(name);
        let tokens = ids(&golden(&folder)["input_ids"])[..12].to_vec();
        let plain = request(&folder, &tokens, &["logits"], 3);
        let mut engine = load(open(&folder), std::slice::from_ref(&plain), How::default());
        for site in sites(&folder) {
            let edit = format!("{site}:scale=0.5");
            let edited = request_edited(&folder, &tokens, &["logits"], 3, &[&edit]);
            let (flown, _) = go_through(&mut engine, edited, &[]);
            let stops = stopping(&folder, &plain, &[&site.to_string()]);
            let edits = [edit.parse().unwrap()];
            let (found, _) = go_through(&mut engine, stops, &edits);
            assert!(found == flown, "{name} {site}");
        }
    }
}

/// The same against what transformers computes.
#[test]
fn an_edit_at_a_stop_agrees_with_others() {
    for name in FAMILIES {
        let folder = family(name);
        let note: serde_json::Value =
            serde_json::from_str(&golden_note(&folder, "steered")).unwrap();
        let hook = note["hook"].as_str().unwrap();
        assert_eq!(note["op"], "scale");
        let golden = golden(&folder);
        let plain = request(&folder, &ids(&golden["input_ids"]), &["logits"], 1);
        let stops = stopping(&folder, &plain, &[hook]);
        let mut engine = load(open(&folder), std::slice::from_ref(&plain), How::default());
        let edits = [format!("{hook}:scale={}", note["factor"]).parse().unwrap()];
        let id = engine.open(stops).unwrap();
        assert_eq!(settle(&mut engine).len(), 1);
        engine.go_on_from(id, &edits, Until::Breakpoint).unwrap();
        settle(&mut engine);
        let found = tensors(&engine.close(id).unwrap());
        let expect = &golden["steered.logits"].data;
        assert_eq!(found["logits"].data.len(), expect.len(), "{name}");
        for (found, expect) in found["logits"].data.iter().zip(expect) {
            let off = (found - expect).abs();
            assert!(
                off <= 2e-3 + 1e-3 * expect.abs(),
                "{name}: {found} and {expect}"
            );
        }
    }
}

#[test]
fn branches_share_what_lies_before() {
    let folder = family("llama3");
    let tokens = ids(&golden(&folder)["input_ids"])[..20].to_vec();
    let plain = request(&folder, &tokens, &[], 4);
    let factors = [0.0, 0.5, 1.0, 2.0];
    let site = "blocks.0.hook_resid_post";
    let edit = |factor: f32| format!("{site}:scale={factor}@-1");
    let flown: Vec<_> = factors
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
    assert_eq!(settle(&mut engine).len(), 1);
    let passes = engine.passes();
    let branches = engine.branch(id, factors.len()).unwrap();
    for (&branch, &factor) in branches.iter().zip(&factors) {
        let edits = [edit(factor).parse().unwrap()];
        engine
            .go_on_from(branch, &edits, Until::Breakpoint)
            .unwrap();
    }
    assert_eq!(settle(&mut engine), []);
    // All four went through the rest of the prompt together.
    assert_eq!(engine.passes() - passes, 4);
    for (branch, flown) in branches.into_iter().zip(flown) {
        assert_eq!(engine.close(branch).unwrap().generated, flown, "{branch:?}");
    }
    // The one they came from still stands, and goes on as if nothing had been.
    engine.resume(id).unwrap();
    settle(&mut engine);
    let alone = run(&folder, vec![plain], How::default()).remove(0);
    assert_eq!(engine.close(id).unwrap().generated, alone.generated);
}

#[test]
fn breakpoints_have_conditions() {
    let folder = family("llama3");
    let tokens = ids(&golden(&folder)["input_ids"])[..8].to_vec();
    let plain = request(&folder, &tokens, &["blocks.1.hook_resid_post"], 5);
    let alone = run(&folder, vec![plain.clone()], How::default()).remove(0);
    let captured = &tensors(&alone)["blocks.1.hook_resid_post"];
    let norms: Vec<f32> = captured
        .data
        .chunks_exact(captured.shape[1])
        .map(|row| row.iter().map(|x| x * x).sum::<f32>().sqrt())
        .collect();
    let stops = |text: &str| -> Vec<usize> {
        let request = stopping(&folder, &plain, &[text]);
        let (found, stops) = interrupted(&folder, request, How::default());
        assert!(found == bits(&alone), "{text}");
        stops.into_iter().map(|at| at.position).collect()
    };
    let hook = "blocks.1.hook_resid_post";
    assert_eq!(stops(&format!("{hook},step=0")), [0]);
    assert_eq!(stops(&format!("{hook},step=2")), [9]);
    assert_eq!(stops(&format!("{hook}@generated")), [8, 9, 10, 11]);
    assert_eq!(stops(&format!("{hook}@9..11")), [9, 10]);
    let token = alone.generated[1];
    let expect: Vec<usize> = (0..4)
        .filter(|&i| alone.generated[i] == token)
        .map(|i| 8 + i)
        .collect();
    assert_eq!(stops(&format!("{hook}@generated,token={token}")), expect);
    // Longer than all generated rows but the longest.
    let mut generated: Vec<(f32, usize)> = norms[8..].iter().copied().zip(8..).collect();
    generated.sort_by(|a, b| b.0.total_cmp(&a.0));
    let limit = (generated[0].0 + generated[1].0) / 2.0;
    assert_eq!(
        stops(&format!("{hook}@generated,norm>{limit}")),
        [generated[0].1]
    );
}

#[test]
fn bad_input_is_refused_and_harms_nobody() {
    let folder = family("gptj");
    let tokens = ids(&golden(&folder)["input_ids"])[..6].to_vec();
    let plain = request(&folder, &tokens, &[], 3);
    let program = open(&folder).program;
    let refused = |text: &str, reason: &str| {
        let spec: BreakSpec = text.parse().unwrap();
        let error = plain
            .probe
            .clone()
            .with_breaks(&program, &[spec])
            .unwrap_err();
        assert!(error.to_string().contains(reason), "{text}: {error}");
    };
    refused("blocks.0.hook_resid_mid", "run in parallel");
    refused("blocks.9.hook_resid_post", "blocks, 0 to");
    refused("blocks.0.attn.hook_pattern", "hook_z");
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
    // Not paused yet.
    let error = engine.go_on_from(id, &[], Until::Breakpoint).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("session {} is ready, not paused", id.0)
    );
    assert!(engine.activation(id).is_err());
    settle(&mut engine);
    // Somebody else's, and nobody's.
    let error = engine.as_owner("bert").resume(id).unwrap_err();
    assert!(matches!(error, EngineError::NoSession(_)), "{error}");
    assert!(engine.branch(SessionId(99), 1).is_err());
    for (text, reason) in [
        ("blocks.1.hook_resid_post:zero", "stands at"),
        ("blocks.0.hook_nothing:zero", "unknown hook"),
        ("blocks.0.hook_resid_post:zero@77", "is selected"),
    ] {
        let error = engine
            .go_on_from(id, &edit(text), Until::Breakpoint)
            .unwrap_err();
        assert!(error.to_string().contains(reason), "{text}: {error}");
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
        .go_on_from(id, &edit(&file), Until::Breakpoint)
        .unwrap_err();
    assert!(error.to_string().contains("has shape"), "{error}");
    write("nan", vec![f32::NAN; program.dims.d_model]);
    let error = engine
        .go_on_from(id, &edit(&file), Until::Breakpoint)
        .unwrap_err();
    assert!(error.to_string().contains("not finite"), "{error}");
    // After all that it goes on as it would have.
    engine.resume(id).unwrap();
    while !settle(&mut engine).is_empty() {
        engine.resume(id).unwrap();
    }
    let alone = run(&folder, vec![plain], How::default()).remove(0);
    assert_eq!(engine.close(id).unwrap().generated, alone.generated);
}

/// An engine whose device holds two sessions of these, its host two more, and a disk the rest.
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
        djinn_engine::Blueprint::draw(&model, &backend, settings, Memory::default()).unwrap();
    blueprint.spill_to(disk);
    Engine::load(model, &backend, blueprint, &mut |_| {}).unwrap()
}

#[test]
fn away_on_host_and_disk_while_twenty_others_run_nothing_changes() {
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
                // Some in the prompt, some at a generated token.
                let when = if i % 2 == 0 { "step=0" } else { "step=2" };
                stopping(&folder, &plain, &[&format!("{site},{when}")])
            })
            .collect();
        let others: Vec<Request> = (0..20).map(|n| asked_plain(&folder, 5 + n, 3)).collect();
        let mut everybody = stops.clone();
        everybody.extend(others.clone());
        let disk = tempfile::tempdir().unwrap();
        let mut engine = small(&folder, &everybody, disk.path());
        let open_all = |engine: &mut Engine, requests: Vec<Request>| -> Vec<SessionId> {
            let open = |request| engine.open(request).unwrap();
            requests.into_iter().map(open).collect()
        };
        let stopped = open_all(&mut engine, stops);
        assert_eq!(settle(&mut engine).len(), stopped.len(), "{name}");
        for &id in &stopped {
            engine.wait(id, None).unwrap();
        }
        let others_ids = open_all(&mut engine, others.clone());
        settle(&mut engine);
        let away: usize = engine.list(None).iter().map(|info| info.away).sum();
        assert!(away > 0, "{name}: nobody had to go");
        for &id in &stopped {
            assert!(engine.paused(id).is_some());
            engine.resume(id).unwrap();
        }
        assert_eq!(settle(&mut engine), [], "{name}");
        for id in stopped {
            let found = engine.close(id).unwrap();
            assert_eq!(found.generated, alone.generated, "{name}");
        }
        let expect = run(&folder, others, How::default());
        for (id, expect) in others_ids.into_iter().zip(expect) {
            assert_eq!(engine.close(id).unwrap().generated, expect.generated);
        }
        let paged = engine.paged().unwrap();
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
fn after_a_restart_nothing_changes() {
    let folder = family("llama3");
    let keep = |engine: &mut Engine, state: &Path| {
        let state = djinn_engine::SessionState::open(state).unwrap();
        let restored = engine.keep_state(state, djinn_engine::Wanted::All).unwrap();
        assert!(restored.refused.is_empty(), "{restored:?}");
    };
    let site = "blocks.1.hook_resid_post";
    let edit = |step: usize| format!("{site}:scale=0.{step}");
    let plain = asked_plain(&folder, 21, 6);
    // What is expected: both edits in flight, at the prompt and at one generated token.
    let edits = [format!("{}@prompt", edit(4)), format!("{}@22", edit(7))];
    let edits: Vec<&str> = edits.iter().map(String::as_str).collect();
    let flown = request_edited(&folder, &plain.tokens, &[], 6, &edits);
    let flown = run(&folder, vec![flown], How::default())
        .remove(0)
        .generated;
    let spec = [format!("{site},step=0"), format!("{site},step=2")];
    let first = stopping(&folder, &plain, &[&spec[0], &spec[1]]);
    // Prompts in two parts, the second of which stops too.
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
                let stopped = settle(&mut engine);
                if stopped.is_empty() {
                    break;
                }
                let shown = engine.activation(id).unwrap();
                if crashes & 1 != 0 {
                    drop(engine);
                    engine = fresh();
                    // It stands where it stood, and what is there can be had again.
                    assert_eq!(engine.paused(id).as_ref(), Some(&stopped[0].1));
                    let error = engine.activation(id).unwrap_err();
                    assert!(matches!(error, EngineError::NotThere(_)), "{error}");
                    if crashes & 2 != 0 {
                        engine.recall(id).unwrap();
                        assert_eq!(settle(&mut engine), stopped);
                        let again = engine.activation(id).unwrap();
                        assert!(again.data == shown.data);
                    }
                }
                let factor = if stopped[0].1.position < 21 { 4 } else { 7 };
                let edits = [edit(factor).parse().unwrap()];
                engine.go_on_from(id, &edits, Until::Breakpoint).unwrap();
                stops += 1;
                if crashes & 4 != 0 {
                    // On its way again, and not yet at the next one.
                    drop(engine);
                    engine = fresh();
                    assert_eq!(engine.paused(id), None);
                }
            }
            assert_eq!(stops, 1 + 21usize.div_ceil(rows), "{crashes}");
            let found = engine.close(id).unwrap();
            assert_eq!(found.generated, flown, "{rows} rows, {crashes}");
        }
    }
}

#[test]
fn what_lies_before_a_stop_goes_on() {
    let folder = family("qwen3");
    let plain = asked(&folder, 12, 3);
    let alone = run(&folder, vec![plain.clone()], How::default()).remove(0);
    let site = "blocks.1.attn.hook_q";
    let five = format!("{site}@5");
    let (later, earlier) = ("blocks.1.hook_resid_post@2", "blocks.0.hook_resid_post@2");
    for (text, expect) in [
        (vec![&*five], vec![(5, 7)]),
        (vec!["blocks.1.attn.hook_q@-1"], vec![(11, 1)]),
        // Whoever may stop further on waits for the others.
        (vec![&*five, later], vec![(0, 12), (2, 10)]),
        (vec![&*five, earlier], vec![(2, 10), (5, 7)]),
    ] {
        for rows in [12, 7] {
            let how = How {
                rows,
                ..How::default()
            };
            let (found, stops) = interrupted(&folder, stopping(&folder, &plain, &text), how);
            let stops: Vec<_> = stops.iter().map(|at| (at.position, at.rows)).collect();
            if rows == 12 {
                assert_eq!(stops, expect, "{text:?}");
            }
            assert!(found == bits(&alone), "{text:?} in {rows}");
        }
    }
}

/// A session that is on its way to a hook may come to a breakpoint of some of its rows first.
#[test]
fn it_stands_at_one_hook() {
    let folder = family("llama3");
    let plain = asked(&folder, 9, 3);
    let alone = run(&folder, vec![plain.clone()], How::default()).remove(0);
    let sites = sites(&folder);
    for until in [Until::Hook, Until::Block, Until::Site(Site::ResidPost(2))] {
        let breaks = [
            "blocks.0.attn.hook_v@4",
            "blocks.1.attn.hook_z@6",
            "logits@7",
        ];
        let first = stopping(
            &folder,
            &plain,
            &[&["hook_embed,step=0"], &breaks[..]].concat(),
        );
        let mut engine = load(open(&folder), std::slice::from_ref(&first), How::default());
        let id = engine.open(first).unwrap();
        let mut last = None;
        loop {
            let stopped = settle(&mut engine);
            let [(_, at)] = &stopped[..] else { break };
            let place = (
                at.position + at.rows,
                sites.iter().position(|s| *s == at.site),
            );
            // On and on, and at one place at a time.
            assert!(last < Some(place), "{until:?}: {at:?}");
            last = Some(place);
            engine.go_on_from(id, &[], until).unwrap();
        }
        let found = bits(&engine.close(id).unwrap());
        assert!(found == bits(&alone), "{until:?}");
    }
}

/// What a session is told after a generated token runs with it, in a phase of its own.
#[test]
fn what_is_said_stops_too() {
    let folder = family("qwen2");
    let tokens = ids(&golden(&folder)["input_ids"]);
    let said = tokens[20..27].to_vec();
    let kept = Request {
        keep: true,
        ..request(&folder, &tokens[..9], &["*"], 3)
    };
    let converse = |breaks: &[&str]| {
        let first = stopping(&folder, &kept, breaks);
        let model = open(&folder);
        let mut layout = vec![kept.clone()];
        layout[0].tokens.extend(&tokens[..30]);
        let settings = Settings {
            open: 2,
            ..Settings::for_requests(&model, &layout, 64).unwrap()
        };
        let backend = How::default().backend();
        let blueprint =
            djinn_engine::Blueprint::draw(&model, &backend, settings, Memory::default()).unwrap();
        let mut engine = Engine::load(model, &backend, blueprint, &mut |_| {}).unwrap();
        let id = engine.open(first).unwrap();
        let mut stops = 0;
        for turn in 0..2 {
            while !settle(&mut engine).is_empty() {
                stops += 1;
                engine.resume(id).unwrap();
            }
            if turn == 0 {
                engine.say(id, &said, 3).unwrap();
            }
        }
        (bits(&engine.close(id).unwrap()), stops)
    };
    let (alone, none) = converse(&[]);
    assert_eq!(none, 0);
    let token = format!("blocks.0.hook_resid_post,token={}", said[2]);
    for breaks in [
        vec![token.as_str(), "blocks.1.hook_resid_post"],
        vec!["blocks.1.attn.hook_q@13"],
        vec!["ln_final.hook_normalized@14", "blocks.0.hook_mlp_out@15"],
    ] {
        let (found, stops) = converse(&breaks);
        assert!(stops > 0 && found == alone, "{breaks:?}: {stops}");
    }
}

/// Others' pages are no way around a breakpoint.
#[test]
fn whoever_would_stop_computes_for_itself() {
    let folder = family("llama3");
    let plain = request(&folder, &ids(&golden(&folder)["input_ids"])[..40], &[], 2);
    let stops = stopping(&folder, &plain, &["blocks.1.hook_resid_post@5"]);
    let mut engine = load(
        open(&folder),
        &[plain.clone(), stops.clone()],
        How::default(),
    );
    let other = engine.open(plain.clone()).unwrap();
    settle(&mut engine);
    let id = engine.open(stops).unwrap();
    let stopped = settle(&mut engine);
    assert_eq!(stopped.len(), 1);
    assert_eq!((stopped[0].1.position, stopped[0].1.rows), (5, 35));
    engine.resume(id).unwrap();
    settle(&mut engine);
    let [one, two] = [other, id].map(|id| engine.close(id).unwrap().generated);
    assert_eq!(one, two);
}

#[test]
fn whoever_goes_back_goes_on_as_if_it_had_stopped_there() {
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
        assert_eq!(settle(&mut engine).len(), 1);
        for (block, position) in [(0, 0), (0, 19), (1, 7), (2, 13)] {
            let site = Site::ResidPost(block);
            let rest = &residuals[&site.to_string()].data;
            let rest = &rest[position * dims.d_model..20 * dims.d_model];
            let edit = format!("{site}:scale=0.3@{position}");
            let flown = request_edited(&folder, &tokens, &[], 3, &[&edit]);
            let flown = run(&folder, vec![flown], How::default())
                .remove(0)
                .generated;
            let pair = [
                (vec![], alone.generated.clone()),
                (vec![edit.parse().unwrap()], flown),
            ];
            for (edits, expect) in pair {
                let branch = engine.branch_back(id, site, position, rest).unwrap();
                engine.set_breaks(branch, &[]).unwrap();
                engine
                    .go_on_from(branch, &edits, Until::Breakpoint)
                    .unwrap();
                settle(&mut engine);
                let found = engine.close(branch).unwrap().generated;
                assert_eq!(found, expect, "{name} block {block} position {position}");
            }
        }
        let site = Site::ResidPost(0);
        let refused = |engine: &mut Engine, site, position, count: usize| {
            let rest = vec![0.0; count];
            engine
                .branch_back(id, site, position, &rest)
                .unwrap_err()
                .to_string()
        };
        let whole = 20 * dims.d_model;
        assert!(refused(&mut engine, site, 20, whole).contains("positions 0 to 19"));
        assert!(refused(&mut engine, site, 0, whole - 1).contains("for 20 rows"));
        assert!(refused(&mut engine, Site::Z(0), 0, whole).contains("more than the residual"));
        assert!(refused(&mut engine, Site::Logits, 0, whole).contains("stands at"));
        assert!(engine.paused(id).is_some());
    }
}
