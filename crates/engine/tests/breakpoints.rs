//! A session that pauses at a hook and resumes gives the bits of an uninterrupted run: at every hook
//! of every family, in prompts and in generated tokens.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::collections::BTreeMap;

use common::{
    FAMILIES, How, bits, card, family, golden, golden_note, ids, load, open, request,
    request_edited, run,
    stops::{asked, interrupted, run_until_idle, run_with_pauses, sites, stopping},
    tensors, with_kv,
};
use djinn_engine::{Engine, EngineError, Request, RunUntil, SessionId, Settings, Tier};
use djinn_model::Site;
use djinn_types::KvDtype;
use djinn_weights::MemorySettings;

#[test]
fn pausing_at_any_hook_changes_no_bit() {
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
            let (found, stops) = run_with_pauses(&mut engine, request, &[]);
            // The prompt, and the two generated tokens that run through the model.
            let expect = [(0, 9), (9, 1), (10, 1)];
            let stops: Vec<_> = stops.iter().map(|at| (at.position, at.rows)).collect();
            assert_eq!(stops, expect, "{name} {site}");
            assert!(found == alone, "{name}: stopped at {site}");
        }
    }
}

#[test]
fn reduced_captures_do_not_depend_on_pauses() {
    for name in ["gpt2", "mixtral"] {
        let folder = family(name);
        let tokens = ids(&golden(&folder)["input_ids"]);
        let captures = [
            "blocks.*.hook_resid_post|lens3",
            "blocks.*.hook_mlp_out|mean",
            "blocks.*.hook_resid_pre|norm",
            "blocks.0.attn.hook_z[1]@all|top2",
        ];
        let asked = request(&folder, &tokens[..9], &captures, 4);
        let alone = run(&folder, vec![asked.clone()], How::default()).remove(0);
        let among = run(&folder, vec![asked.clone(); 3], How::default()).remove(2);
        assert!(bits(&alone) == bits(&among), "{name}");
        for site in sites(&folder) {
            let stopping = stopping(&folder, &asked, &[&format!("{site}@4..11")]);
            let how = How {
                rows: 5,
                ..How::default()
            };
            let (found, stops) = interrupted(&folder, stopping, how);
            assert!(!stops.is_empty() && found == bits(&alone), "{name} {site}");
        }
    }
}

#[test]
fn stepping_from_hook_to_hook_changes_no_bit() {
    for name in FAMILIES {
        let folder = family(name);
        let request = asked(&folder, 7, 2);
        let alone = run(&folder, vec![request.clone()], How::default()).remove(0);
        for (rows, until) in [
            (7, RunUntil::Hook),
            (3, RunUntil::Hook),
            (7, RunUntil::Block),
        ] {
            let how = How {
                rows,
                ..How::default()
            };
            let first = stopping(&folder, &request, &["hook_embed"]);
            let mut engine = load(open(&folder), std::slice::from_ref(&first), how);
            let id = engine.open(first).unwrap();
            let (mut seen, mut shown) = (Vec::new(), BTreeMap::new());
            loop {
                let stopped = run_until_idle(&mut engine);
                let Some((_, at)) = stopped.first() else {
                    break;
                };
                let activation = engine
                    .any_session(id)
                    .and_then(|session| session.activation())
                    .unwrap();
                let shown: &mut Vec<f32> = shown.entry(at.site.to_string()).or_default();
                shown.extend(activation.data);
                seen.push(at.site);
                engine
                    .any_session(id)
                    .and_then(|mut session| session.resume_with(&[], until))
                    .unwrap();
            }
            let stops = sites(&folder);
            let wanted = stops.iter().filter(|site| match until {
                RunUntil::Block => matches!(site, Site::ResidPost(_) | Site::Logits | Site::Embed),
                _ => true,
            });
            let passes = 7usize.div_ceil(rows) + 1;
            assert_eq!(seen.len(), wanted.count() * passes, "{name} {seen:?}");
            let transcript = engine.close(id).unwrap();
            // The activations shown at the pauses are the captured ones.
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
fn pausing_in_a_batch_with_streamed_weights_changes_no_bit() {
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
                let mut memory = MemorySettings {
                    tier,
                    ..MemorySettings::default()
                };
                if tier.is_some() {
                    memory.budget = 0;
                    let least = djinn_engine::Blueprint::draw(
                        &open(&folder),
                        &*backend,
                        settings(&all),
                        memory,
                    );
                    let Err(EngineError::Plan(djinn_weights::PlanError::Budget { least, .. })) =
                        least
                    else {
                        panic!("{name}: a budget of 0 was accepted");
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
                // The others run while the first is paused, and it joins them in the middle.
                let mut steps = 0;
                while !engine.is_idle()
                    || engine
                        .view(ids[0])
                        .and_then(|session| session.paused())
                        .is_some()
                {
                    if engine
                        .view(ids[0])
                        .and_then(|session| session.paused())
                        .is_some()
                        && steps % 3 == 2
                    {
                        engine
                            .any_session(ids[0])
                            .and_then(|mut session| session.resume())
                            .unwrap();
                    }
                    steps += 1;
                    engine.step().unwrap();
                    engine.check_integrity();
                }
                let mut all = ids.into_iter().map(|id| bits(&engine.close(id).unwrap()));
                assert!(
                    all.next().unwrap() == bits(&alone),
                    "{name} {site} {tier:?}"
                );
                for (found, expect) in all.zip(&others_alone) {
                    assert!(
                        found == bits(expect),
                        "{name} {site} {tier:?}: another session"
                    );
                }
            }
        }
    }
}

#[test]
fn an_edit_at_a_pause_equals_the_edit_of_a_request() {
    for name in FAMILIES {
        let folder = family(name);
        let tokens = ids(&golden(&folder)["input_ids"])[..12].to_vec();
        let plain = request(&folder, &tokens, &["logits"], 3);
        let mut engine = load(open(&folder), std::slice::from_ref(&plain), How::default());
        for site in sites(&folder) {
            let edit = format!("{site}:scale=0.5");
            let edited = request_edited(&folder, &tokens, &["logits"], 3, &[&edit]);
            let (in_request, _) = run_with_pauses(&mut engine, edited, &[]);
            let stops = stopping(&folder, &plain, &[&site.to_string()]);
            let edits = [edit.parse().unwrap()];
            let (found, _) = run_with_pauses(&mut engine, stops, &edits);
            assert!(found == in_request, "{name} {site}");
        }
    }
}

/// An edit at a pause gives the logits that transformers computes with the same edit.
#[test]
fn an_edit_at_a_pause_matches_transformers() {
    for name in FAMILIES {
        let folder = family(name);
        let note: serde_json::Value =
            serde_json::from_str(&golden_note(&folder, "steered")).unwrap();
        let hook = note["hook"].as_str().unwrap();
        assert_eq!(note["op"], "scale");
        let golden = golden(&folder);
        let plain = request(&folder, &ids(&golden["input_ids"]), &["logits"], 1);
        let stops = stopping(&folder, &plain, &[hook]);
        let how = with_kv(KvDtype::F32);
        let mut engine = load(open(&folder), std::slice::from_ref(&plain), how);
        let edits = [format!("{hook}:scale={}", note["factor"]).parse().unwrap()];
        let id = engine.open(stops).unwrap();
        assert_eq!(run_until_idle(&mut engine).len(), 1);
        engine
            .any_session(id)
            .and_then(|mut session| session.resume_with(&edits, RunUntil::Breakpoint))
            .unwrap();
        run_until_idle(&mut engine);
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
fn breakpoint_conditions_select_passes() {
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
    // The limit lies between the two largest norms of generated rows.
    let mut generated: Vec<(f32, usize)> = norms[8..].iter().copied().zip(8..).collect();
    generated.sort_by(|a, b| b.0.total_cmp(&a.0));
    let limit = (generated[0].0 + generated[1].0) / 2.0;
    assert_eq!(
        stops(&format!("{hook}@generated,norm>{limit}")),
        [generated[0].1]
    );
}

#[test]
fn rows_before_a_breakpoint_continue() {
    let folder = family("qwen3");
    let plain = asked(&folder, 12, 3);
    let alone = run(&folder, vec![plain.clone()], How::default()).remove(0);
    let site = "blocks.1.attn.hook_q";
    let five = format!("{site}@5");
    let (later, earlier) = ("blocks.1.hook_resid_post@2", "blocks.0.hook_resid_post@2");
    for (text, expect) in [
        (vec![&*five], vec![(5, 7)]),
        (vec!["blocks.1.attn.hook_q@-1"], vec![(11, 1)]),
        // Rows that may pause at a later hook wait for the others.
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

/// A session that runs until a hook may reach a breakpoint of some of its rows first. It is always
/// paused at one hook only.
#[test]
fn a_session_pauses_at_one_hook_at_a_time() {
    let folder = family("llama3");
    let plain = asked(&folder, 9, 3);
    let alone = run(&folder, vec![plain.clone()], How::default()).remove(0);
    let sites = sites(&folder);
    for until in [
        RunUntil::Hook,
        RunUntil::Block,
        RunUntil::Site(Site::ResidPost(2)),
    ] {
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
            let stopped = run_until_idle(&mut engine);
            let [(_, at)] = &stopped[..] else { break };
            let place = (
                at.position + at.rows,
                sites.iter().position(|s| *s == at.site),
            );
            // Every pause is after the last one.
            assert!(last < Some(place), "{until:?}: {at:?}");
            last = Some(place);
            engine
                .any_session(id)
                .and_then(|mut session| session.resume_with(&[], until))
                .unwrap();
        }
        let found = bits(&engine.close(id).unwrap());
        assert!(found == bits(&alone), "{until:?}");
    }
}

/// Appended tokens run together with the last generated token, in a phase of their own. Breakpoints
/// apply to them.
#[test]
fn appended_tokens_reach_breakpoints() {
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
            djinn_engine::Blueprint::draw(&model, &*backend, settings, MemorySettings::default())
                .unwrap();
        let mut engine = Engine::load(model, &*backend, blueprint, &mut |_| {}).unwrap();
        let id = engine.open(first).unwrap();
        let mut stops = 0;
        for turn in 0..2 {
            while !run_until_idle(&mut engine).is_empty() {
                stops += 1;
                engine
                    .any_session(id)
                    .and_then(|mut session| session.resume())
                    .unwrap();
            }
            if turn == 0 {
                engine
                    .any_session(id)
                    .and_then(|mut session| session.append(&said, 3, &[]))
                    .unwrap();
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

/// Cached pages of other sessions must not skip a breakpoint.
#[test]
fn the_prefix_cache_does_not_skip_breakpoints() {
    let folder = family("llama3");
    let plain = request(&folder, &ids(&golden(&folder)["input_ids"])[..40], &[], 2);
    let stops = stopping(&folder, &plain, &["blocks.1.hook_resid_post@5"]);
    let mut engine = load(
        open(&folder),
        &[plain.clone(), stops.clone()],
        How::default(),
    );
    let other = engine.open(plain.clone()).unwrap();
    run_until_idle(&mut engine);
    let id = engine.open(stops).unwrap();
    let stopped = run_until_idle(&mut engine);
    assert_eq!(stopped.len(), 1);
    assert_eq!((stopped[0].1.position, stopped[0].1.rows), (5, 35));
    engine
        .any_session(id)
        .and_then(|mut session| session.resume())
        .unwrap();
    run_until_idle(&mut engine);
    let [one, two] = [other, id].map(|id| engine.close(id).unwrap().generated);
    assert_eq!(one, two);
}
