//! Edits change the selected positions as specified and no others, for every chunk size.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::{collections::BTreeMap, path::Path};

use common::{
    How, bits, family, golden, ids, open, request, request_edited, run, stops::run_until_idle,
    tensors,
};
use djinn_engine::{
    Blueprint, EditSpec, Engine, EngineError, ProbeLimits, Request, RestoreScope, Settings,
    StateFolder, Tensor, Transcript, write_tensors,
};
use djinn_weights::MemorySettings;

const HOOK: &str = "blocks.1.hook_resid_post";
const WIDTH: usize = 64;

/// Returns the activations at the hook after these edits, by position. Checks that chunks of seven
/// rows give the same bits.
fn edited(folder: &Path, tokens: &[u32], edits: &[&str], generate: usize) -> Vec<Vec<f32>> {
    let ask = || vec![request_edited(folder, tokens, &[HOOK], generate, edits)];
    let whole = run(folder, ask(), How::default()).remove(0);
    let chunked = How {
        rows: 7,
        ..How::default()
    };
    let chunked = run(folder, ask(), chunked).remove(0);
    assert!(bits(&whole) == bits(&chunked), "{edits:?}");
    let captured = tensors(&whole).remove(HOOK).unwrap();
    captured
        .data
        .chunks_exact(WIDTH)
        .map(<[f32]>::to_vec)
        .collect()
}

struct Fixture {
    folder: std::path::PathBuf,
    tokens: Vec<u32>,
    /// Activations without edits, by position.
    plain: Vec<Vec<f32>>,
    /// Path of a file with a vector `u` and a matrix `three` of three rows.
    file: String,
    operands: BTreeMap<String, Tensor>,
    _temporary: tempfile::TempDir,
}

fn fixture() -> Fixture {
    let folder = family("llama3");
    let tokens: Vec<u32> = ids(&golden(&folder)["input_ids"])[..20].to_vec();
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path().join("operands.safetensors");
    let wave = |rows: usize| Tensor {
        shape: vec![rows, WIDTH],
        data: (0..rows * WIDTH).map(|i| ((i * i) as f32).sin()).collect(),
    };
    let operands = BTreeMap::from([("u".to_owned(), wave(1)), ("three".to_owned(), wave(3))]);
    write_tensors(&path, &operands, &BTreeMap::new()).unwrap();
    Fixture {
        plain: edited(&folder, &tokens, &[], 0),
        file: path.to_str().unwrap().to_owned(),
        folder,
        tokens,
        operands,
        _temporary: temporary,
    }
}

/// Checks one edit of the prompt against a function of position and row.
fn check(f: &Fixture, edit: &str, expect: impl Fn(usize, &[f32]) -> Vec<f32>) {
    let edit = format!("{HOOK}:{edit}");
    let found = edited(&f.folder, &f.tokens, &[&edit], 0);
    for (p, (found, plain)) in found.iter().zip(&f.plain).enumerate() {
        for (x, y) in found.iter().zip(expect(p, plain)) {
            assert!(
                (x - y).abs() <= 1e-5 * (1.0 + y.abs()),
                "{edit} at {p}: {x}, not {y}"
            );
        }
    }
}

#[test]
fn every_edit_changes_the_selected_positions() {
    let f = fixture();
    let u = &f.operands["u"].data;
    let three = &f.operands["three"].data;
    let file = &f.file;
    let times = |row: &[f32], factor: f32| row.iter().map(|x| x * factor).collect::<Vec<_>>();
    check(&f, "scale=0.5", |_, row| times(row, 0.5));
    check(&f, "zero@3,-1", |p, row| {
        times(row, if p == 3 || p == 19 { 0.0 } else { 1.0 })
    });
    let plus = |row: &[f32], v: &[f32], factor: f32| -> Vec<f32> {
        row.iter().zip(v).map(|(x, v)| x + factor * v).collect()
    };
    check(&f, &format!("add={file}#u*-2@5..9"), |p, row| {
        plus(row, u, if (5..9).contains(&p) { -2.0 } else { 0.0 })
    });
    // Rows of the operand go to the selected positions in order, across chunks.
    check(
        &f,
        &format!("replace={file}#three@12,2,6"),
        |p, row| match [2, 6, 12].iter().position(|&q| q == p) {
            Some(i) => three[i * WIDTH..(i + 1) * WIDTH].to_vec(),
            None => row.to_vec(),
        },
    );
    check(&f, &format!("project-out={file}#u"), |_, row| {
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f32>();
        plus(row, u, -dot(row, u) / dot(u, u))
    });
    check(&f, &format!("add-matched={file}#u*0.5@4"), |p, row| {
        let length = |a: &[f32]| a.iter().map(|x| x * x).sum::<f32>().sqrt();
        let share = 0.5 * length(row) / length(u);
        plus(row, u, if p == 4 { share } else { 0.0 })
    });
    check(&f, "clamp=-0.1..0.2", |_, row| {
        row.iter().map(|x| x.clamp(-0.1, 0.2)).collect()
    });
}

#[test]
fn edits_apply_to_parts_and_heads() {
    let f = fixture();
    let of = |text: &str| edited(&f.folder, &f.tokens, &[text], 0);
    let zeroed = of(&format!("{HOOK}[3..5,60]:zero@7"));
    let added = of(&format!("{HOOK}[3..5,60]:add=[1,2,3]@7"));
    for (p, plain) in f.plain.iter().enumerate() {
        let (mut zero, mut plus) = (plain.clone(), plain.clone());
        for (i, at) in [3, 4, 60].into_iter().enumerate() {
            if p == 7 {
                zero[at] = 0.0;
                plus[at] += (i + 1) as f32;
            }
        }
        assert_eq!((&zeroed[p], &added[p]), (&zero, &plus), "position {p}");
    }
    // Zeroing the output of a head equals zeroing its pattern.
    let head = |text: &str| {
        let ask = request_edited(&f.folder, &f.tokens, &["logits"], 0, &[text]);
        let transcript = run(&f.folder, vec![ask], How::default()).remove(0);
        bits(&transcript)
    };
    let by_z = head("blocks.1.attn.hook_z[2]:zero");
    assert!(by_z == head("blocks.1.attn.hook_pattern[2]:zero"));
    assert!(by_z != head("blocks.1.attn.hook_z[1]:zero"));
}

#[test]
fn edits_of_generated_positions_leave_the_prompt() {
    let f = fixture();
    let edit = format!("{HOOK}:zero@generated");
    let found = edited(&f.folder, &f.tokens, &[&edit], 4);
    assert_eq!(found.len(), 20 + 3, "the last token does not run");
    assert_eq!(found[..20], f.plain[..]);
    assert!(found[20..].iter().flatten().all(|&x| x == 0.0));
}

#[test]
fn edits_apply_in_order() {
    let f = fixture();
    let (zero, add) = (format!("{HOOK}:zero"), format!("{HOOK}:add={}#u", f.file));
    let found = edited(&f.folder, &f.tokens, &[&zero, &add], 0);
    assert!(found.iter().all(|row| row == &f.operands["u"].data));
    let found = edited(&f.folder, &f.tokens, &[&add, &zero], 0);
    assert!(found.iter().flatten().all(|&x| x == 0.0));
}

#[test]
fn replacing_activations_by_captured_ones_changes_no_bit() {
    let f = fixture();
    let hooks = [
        "hook_embed",
        "blocks.2.attn.hook_k",
        "blocks.0.mlp.hook_post",
        "logits",
    ];
    let plain = || request(&f.folder, &f.tokens, &["*"], 0);
    let transcript = run(&f.folder, vec![plain()], How::default()).remove(0);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("all.safetensors");
    write_tensors(&path, &tensors(&transcript), &BTreeMap::new()).unwrap();
    let edits = hooks.map(|hook| format!("{hook}:replace={}", path.display()));
    let edits: Vec<&str> = edits.iter().map(String::as_str).collect();
    let asked = request_edited(&f.folder, &f.tokens, &["*"], 0, &edits);
    let found = run(&f.folder, vec![asked], How::default()).remove(0);
    assert!(bits(&found) == bits(&transcript));
}

#[test]
fn captured_parts_and_reductions_match_full_captures() {
    let f = fixture();
    let (hook, z) = (HOOK, "blocks.1.attn.hook_z");
    let read = |captures: &[&str], rows: usize| {
        let ask = request(&f.folder, &f.tokens, captures, 3);
        let how = How {
            rows,
            ..How::default()
        };
        tensors(&run(&f.folder, vec![ask], how).remove(0))
    };
    let whole = read(&["*"], 64);
    let of = |text: &str, hook: &str| {
        let found = read(&[text], 64).remove(hook).unwrap();
        // The result does not depend on how the rows are divided into passes.
        assert!(read(&[text], 7)[hook].data == found.data, "{text}");
        found
    };
    let part = of(&format!("{hook}[1,5..8]@2,-1"), hook);
    let rows: Vec<f32> = [2, 19]
        .iter()
        .flat_map(|p| [1, 5, 6, 7].map(|i| f.plain[*p][i]))
        .collect();
    assert_eq!((part.shape, part.data), (vec![2, 4], rows));
    let heads = of(&format!("{z}[1]"), z);
    let (d_head, all) = (whole[z].shape[2], &whole[z]);
    assert_eq!(heads.shape, [22, 1, d_head]);
    let second: Vec<f32> = all
        .data
        .chunks_exact(all.shape[1] * d_head)
        .flat_map(|row| row[d_head..2 * d_head].to_vec())
        .collect();
    assert_eq!(heads.data, second);
    let norms = of(&format!("{hook}@prompt|norm"), hook);
    assert_eq!(norms.shape, [20]);
    let mean = of(&format!("{hook}@prompt|mean"), hook);
    assert_eq!(mean.shape, [WIDTH]);
    for (p, row) in f.plain.iter().enumerate() {
        let length = row
            .iter()
            .map(|x| f64::from(*x).powi(2))
            .sum::<f64>()
            .sqrt();
        assert!((f64::from(norms.data[p]) - length).abs() < 1e-5);
    }
    for i in 0..WIDTH {
        let sum: f64 = f.plain.iter().map(|row| f64::from(row[i])).sum();
        assert!((f64::from(mean.data[i]) - sum / 20.0).abs() < 1e-6);
    }
    // Indices within the captured part, then values; the largest first.
    let top = of(&format!("{hook}[4..12]@prompt|top3"), hook);
    assert_eq!(top.shape, [20, 2, 3]);
    for (row, found) in f.plain.iter().zip(top.data.chunks_exact(6)) {
        let mut order: Vec<usize> = (0..8).collect();
        order.sort_by(|&a, &b| row[4 + b].total_cmp(&row[4 + a]));
        let expect = order[..3].iter().map(|&at| at as f32);
        let expect: Vec<f32> = expect
            .chain(order[..3].iter().map(|&at| row[4 + at]))
            .collect();
        assert_eq!(found, expect);
    }
    let likeliest = of("logits@-1|likeliest2", "logits");
    assert_eq!(likeliest.shape, [1, 2, 2]);
    assert!(likeliest.data[2] >= likeliest.data[3] && likeliest.data[2] < 1.0);
    let pattern = of(
        "blocks.0.attn.hook_pattern[0,2]@-1",
        "blocks.0.attn.hook_pattern",
    );
    assert_eq!(pattern.shape, [2, 1, 20]);
}

/// Runs three turns, of which the second has edits. With `state`, restarts before every turn.
fn three_turns(engine: &mut Engine, second: &[EditSpec], state: Option<&Path>) -> Transcript {
    let f = fixture();
    let ask = Request {
        keep: true,
        ..request(&f.folder, &f.tokens[..9], &["logits"], 3)
    };
    let id = engine.open(ask).unwrap();
    let turns: [(&[u32], &[EditSpec]); 2] = [(&[5, 6, 7], second), (&[9], &[])];
    for (said, edits) in turns {
        run_until_idle(engine);
        if let Some(folder) = state {
            *engine = empty(&f.folder);
            let state = StateFolder::open(folder).unwrap();
            engine.attach_state(state, RestoreScope::All).unwrap();
        }
        engine
            .any_session(id)
            .and_then(|mut session| session.append(said, 3, edits))
            .unwrap();
    }
    run_until_idle(engine);
    engine.close(id).unwrap()
}

/// Loads an engine with room for one session of many turns.
fn empty(folder: &Path) -> Engine {
    let model = open(folder);
    let one = Settings::for_sessions(&model.program, 1, 40, 64).unwrap();
    let settings = Settings {
        logit_rows: 64,
        probe_limits: ProbeLimits::anything(&model.program, 40),
        ..one
    };
    let backend = How::default().backend();
    let blueprint =
        Blueprint::draw(&model, &*backend, settings, MemorySettings::default()).unwrap();
    Engine::load(model, &*backend, blueprint, &mut |_| {}).unwrap()
}

#[test]
fn an_edit_of_a_turn_ends_with_the_turn() {
    let folder = fixture().folder;
    let rows = |transcript: &Transcript| {
        let logits = tensors(transcript).remove("logits").unwrap();
        let rows: Vec<Vec<f32>> = logits
            .data
            .chunks_exact(logits.shape[1])
            .map(<[f32]>::to_vec)
            .collect();
        rows
    };
    let scale: EditSpec = format!("{HOOK}:scale=0.5").parse().unwrap();
    let plain = three_turns(&mut empty(&folder), &[], None);
    let edited = three_turns(&mut empty(&folder), std::slice::from_ref(&scale), None);
    let (before, after) = (rows(&plain), rows(&edited));
    // Nine tokens and two of three generated ones ran before the edit; the third runs with it.
    assert!(before[..11] == after[..11]);
    assert!(before[11] != after[11]);
    // The edit equals an edit of the same positions.
    let said: EditSpec = format!("{HOOK}:scale=0.5@11..17").parse().unwrap();
    let session = three_turns(&mut empty(&folder), &[said], None);
    assert!(bits(&session) == bits(&edited));
    // The result is the same with a restart before every turn, where captures are computed again.
    let state = tempfile::tempdir().unwrap();
    let mut engine = empty(&folder);
    let kept = StateFolder::open(state.path()).unwrap();
    engine.attach_state(kept, RestoreScope::All).unwrap();
    let restarted = three_turns(&mut engine, &[scale], Some(state.path()));
    assert!(bits(&restarted) == bits(&edited));
    // An edit that selects no position of its turn is rejected, and the session stays usable.
    let mut engine = empty(&folder);
    let ask = Request {
        keep: true,
        ..request(&folder, &fixture().tokens[..9], &[], 3)
    };
    let id = engine.open(ask).unwrap();
    run_until_idle(&mut engine);
    let early: EditSpec = format!("{HOOK}:zero@0..5").parse().unwrap();
    let refused = engine
        .any_session(id)
        .and_then(|mut session| session.append(&[5], 1, &[early]))
        .unwrap_err();
    assert!(matches!(refused, EngineError::Edit { .. }), "{refused}");
    engine
        .any_session(id)
        .and_then(|mut session| session.append(&[5], 1, &[]))
        .unwrap();
}

/// Opens a kept session of nine tokens and runs its first turn.
fn kept(generate: usize, edits: &[&str]) -> (Engine, djinn_engine::SessionId, Vec<u32>) {
    let f = fixture();
    let mut engine = empty(&f.folder);
    let tokens = &f.tokens[..9];
    let ask = Request {
        keep: true,
        ..request_edited(&f.folder, tokens, &[], generate, edits)
    };
    let id = engine.open(ask).unwrap();
    run_until_idle(&mut engine);
    (engine, id, f.tokens.clone())
}

fn rows_of(rows: usize) -> EditSpec {
    let width = open(&fixture().folder).program.dims.d_model;
    EditSpec {
        hook: HOOK.to_owned(),
        part: djinn_engine::Part::default(),
        change: djinn_engine::Change::Replace(djinn_engine::Operand::Tensor(std::sync::Arc::new(
            Tensor {
                shape: vec![rows, width],
                data: vec![0.25; rows * width],
            },
        ))),
        positions: djinn_engine::Positions::All,
    }
}

#[test]
fn edits_apply_to_turns_that_generate_nothing() {
    // The whole prompt ran, so the turn is one token.
    let (mut engine, id, _) = kept(0, &[]);
    let scale: EditSpec = format!("{HOOK}:scale=0.5").parse().unwrap();
    engine
        .any_session(id)
        .and_then(|mut session| session.append(&[5], 0, &[scale]))
        .unwrap();
    run_until_idle(&mut engine);
    // The last generated token runs with the three appended ones: four rows.
    let (mut engine, id, _) = kept(3, &[]);
    assert!(
        engine
            .any_session(id)
            .and_then(|mut session| session.append(&[5, 6, 7], 0, &[rows_of(3)]))
            .is_err()
    );
    engine
        .any_session(id)
        .and_then(|mut session| session.append(&[5, 6, 7], 0, &[rows_of(4)]))
        .unwrap();
    run_until_idle(&mut engine);
    assert_eq!(
        engine
            .view(id)
            .map(|session| session.tokens())
            .unwrap()
            .len(),
        15
    );
}

#[test]
fn an_edit_with_a_row_per_position_does_not_reach_later_turns() {
    let f = fixture();
    let mut engine = empty(&f.folder);
    let model = open(&f.folder);
    let none: [&str; 0] = [];
    let probe = djinn_engine::Probe::new(
        &model.program,
        &none,
        djinn_engine::Positions::All,
        &[rows_of(11)],
    );
    let ask = Request {
        keep: true,
        probe: probe.unwrap(),
        ..request(&f.folder, &f.tokens[..9], &[], 3)
    };
    let id = engine.open(ask).unwrap();
    run_until_idle(&mut engine);
    engine
        .any_session(id)
        .and_then(|mut session| session.append(&[5, 6], 3, &[]))
        .unwrap();
    run_until_idle(&mut engine);
    assert_eq!(
        engine
            .view(id)
            .map(|session| session.tokens())
            .unwrap()
            .len(),
        17
    );
}

#[test]
fn a_session_without_pending_tokens_does_not_run() {
    let (mut engine, id, _) = kept(0, &[]);
    let refused = engine
        .any_session(id)
        .and_then(|mut session| session.append(&[], 4, &[]))
        .unwrap_err();
    assert!(matches!(refused, EngineError::NothingToRun(_)), "{refused}");
    engine
        .any_session(id)
        .and_then(|mut session| session.resume())
        .unwrap();
    run_until_idle(&mut engine);
    // A session whose turn is over keeps waiting, however often it is resumed.
    let (mut engine, id, _) = kept(3, &[]);
    for _ in 0..2 {
        engine
            .any_session(id)
            .and_then(|mut session| session.resume())
            .unwrap();
        run_until_idle(&mut engine);
    }
    assert_eq!(
        engine
            .view(id)
            .map(|session| session.tokens())
            .unwrap()
            .len(),
        12
    );
    engine
        .any_session(id)
        .and_then(|mut session| session.append(&[], 2, &[]))
        .unwrap();
    run_until_idle(&mut engine);
    assert_eq!(
        engine
            .view(id)
            .map(|session| session.tokens())
            .unwrap()
            .len(),
        14
    );
    let (mut plain, other, _) = kept(5, &[]);
    run_until_idle(&mut plain);
    assert_eq!(
        plain.view(other).map(|session| session.tokens()).unwrap(),
        engine.view(id).map(|session| session.tokens()).unwrap()
    );
}

#[test]
fn a_session_continues_in_another_engine() {
    let (mut engine, id, _) = kept(3, &[&format!("{HOOK}:scale=0.5")]);
    let bytes = engine
        .any_session(id)
        .and_then(|session| session.export())
        .unwrap()
        .to_bytes();
    engine
        .any_session(id)
        .and_then(|mut session| session.append(&[5], 3, &[]))
        .unwrap();
    run_until_idle(&mut engine);
    let mut other = empty(&fixture().folder);
    let file = || djinn_engine::SavedFile::from_bytes(&bytes).unwrap();
    let copy = other.import(file(), "ada").unwrap();
    assert!(
        other
            .session("bert", copy)
            .and_then(|mut session| session.append(&[5], 3, &[]))
            .is_err()
    );
    other
        .session("ada", copy)
        .and_then(|mut session| session.append(&[5], 3, &[]))
        .unwrap();
    run_until_idle(&mut other);
    assert_eq!(
        other.view(copy).map(|session| session.tokens()).unwrap(),
        engine.view(id).map(|session| session.tokens()).unwrap()
    );
    // A manipulated session is rejected without effect.
    let text = String::from_utf8(bytes.clone()).unwrap();
    for (from, to) in [
        ("\"identity\":\"", "\"identity\":\"x"),
        ("[0,9]", "[0,99]"),
        ("\"all\"", "{\"ranges\":[[-9223372036854775808,9]]}"),
    ] {
        let broken = text.replacen(from, to, 1);
        assert_ne!(broken, text, "{from}");
        let file = djinn_engine::SavedFile::from_bytes(broken.as_bytes()).unwrap();
        other.close(copy);
        assert!(other.import(file, "ada").is_err(), "{to}");
    }
}
