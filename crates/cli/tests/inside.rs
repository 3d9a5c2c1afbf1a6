//! `djinn lens`, `patch`, `steer` and `debug` run as users run them.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::{fs, path::Path};

use common::{PATCH, djinn, golden, json_output, ok, refused, stderr, stdout};

/// Writes a debugger script and returns its path.
fn script(folder: &Path, lines: &[&str]) -> String {
    let path = folder.join("script.txt");
    fs::write(&path, lines.join("\n")).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn the_last_row_of_the_lens_is_the_generated_token() {
    let run = json_output(&[
        "run",
        "--prompt",
        "Once upon a time there",
        "--max-tokens",
        "1",
        "--json",
    ]);
    let folder = tempfile::tempdir().unwrap();
    let svg = folder.path().join("lens.svg");
    let args = [
        "lens",
        "--prompt",
        "Once upon a time there",
        "--json",
        "--top",
        "3",
        "--svg",
    ];
    let lens = json_output(&[&args[..], &[svg.to_str().unwrap()]].concat());
    let last = &lens["lens"]["blocks.7.hook_resid_post"];
    let positions = lens["input_ids"].as_array().unwrap().len();
    assert_eq!(last.as_array().unwrap().len(), positions);
    let top = &last[positions - 1];
    assert_eq!(top[0]["token"], run["output_ids"][0]);
    assert_eq!(top.as_array().unwrap().len(), 3);
    let drawn = fs::read_to_string(svg).unwrap();
    assert!(drawn.starts_with("<svg") && drawn.matches("<rect").count() == 1 + 8 * positions);
}

#[test]
fn patching_by_branches_equals_patching_in_separate_runs() {
    let found = json_output(&[&PATCH[..], &["--compare", "--json"]].concat());
    assert_eq!(found["compared"]["equal"], true);
    let effect = found["effect"].as_array().unwrap();
    let last = effect.last().unwrap().as_array().unwrap();
    // After the last block, only the last position has an effect, and it has the full effect.
    let (end, before) = last.split_last().unwrap();
    assert!((end.as_f64().unwrap() - 1.0).abs() < 1e-6, "{end}");
    assert!(
        before.iter().all(|x| x.as_f64().unwrap() == 0.0),
        "{before:?}"
    );
    let long = "Tom had a very red car. The car was";
    refused(
        &[
            "patch",
            "--clean",
            long,
            "--corrupt",
            "Tom had a car",
            "--answer",
            "a",
            "--instead",
            "b",
        ],
        &["--clean has", "need the same number of tokens"],
    );
}

#[test]
fn steering_vectors_are_made_shown_converted_and_applied() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let prompts = path("prompts.txt");
    fs::write(&prompts, "She was sad\n\nHe was sad\n").unwrap();
    let made = path("v.safetensors");
    let make = [
        "steer",
        "make",
        "--positive",
        "She was happy",
        "--negative",
        &prompts,
    ];
    ok(&[&make[..], &["--layer", "2,4", "--out", &made]].concat());
    let gguf = path("v.gguf");
    ok(&["steer", "show", &made, "--out", &gguf]);
    let [one, other] = [&made, &gguf].map(|file| json_output(&["steer", "show", file, "--json"]));
    assert_eq!(one, other);
    assert_eq!(one["norms"].as_object().unwrap().len(), 2);
    let run = |steer: &str| {
        let args = [
            "run",
            "--prompt",
            "One day",
            "--max-tokens",
            "20",
            "--json",
            "--steer",
            steer,
        ];
        json_output(&args)["output_ids"].clone()
    };
    assert_eq!(run(&made), run(&gguf));
    assert_ne!(run(&format!("{made}:3")), run(&format!("{gguf}:0")));
    // Steering equals adding the vectors with edits.
    let edit = |block: usize| {
        let hook = format!("blocks.{block}.hook_resid_post");
        format!("{hook}:add={made}#{hook}*-1")
    };
    let by_hand = json_output(&[
        "run",
        "--prompt",
        "One day",
        "--max-tokens",
        "20",
        "--json",
        "--edit",
        &edit(2),
        "--edit",
        &edit(4),
    ]);
    assert_eq!(by_hand["output_ids"], run(&format!("{made}:-1")));
    refused(&["steer", "show", &prompts], &["prompts.txt"]);
    refused(
        &[&make[..], &["--out", &path("v.txt")]].concat(),
        &[".safetensors", ".gguf"],
    );
    refused(
        &[&make[..], &["--layer", "9", "--out", &made]].concat(),
        &["blocks 0 to 7"],
    );
    let llama = golden("llama3");
    let args = [
        "run",
        "--model",
        llama.to_str().unwrap(),
        "--tokens",
        "1,2",
        "--steer",
        &made,
    ];
    refused(&args, &["256 numbers", "64"]);
}

#[test]
fn steer_measure_reports_the_effect_of_an_edit() {
    let measure = |factor: &str| {
        let edit = format!("blocks.4.hook_resid_post:scale={factor}");
        json_output(&[
            "steer",
            "measure",
            "--prompt",
            "One day Tom went",
            "--edit",
            &edit,
            "--json",
        ])
    };
    let (unchanged, changed) = (measure("1.0"), measure("0.9"));
    assert_eq!(
        (
            &unchanged["share_of_logit_norm"],
            &unchanged["tokens_changed"]
        ),
        (&0.0.into(), &0.into())
    );
    let share = changed["share_of_logit_norm"].as_f64().unwrap();
    assert!(0.001 < share && share < 0.2, "{share}");
}

#[test]
fn the_debugger_pauses_edits_branches_and_undoes() {
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().join("here.safetensors");
    let save = format!("save {}", saved.display());
    let lines = [
        "# a comment",
        "break blocks.3.hook_resid_post,step=0",
        "run",
        "print",
        "step",
        "next",
        "undo",
        "undo",
        &save,
        "edit zero",
        "branch",
        "continue",
        "undo",
        "delete all",
        "print lens",
        "print attention 0 1",
        "sessions",
        "continue",
        "print tokens",
        "quit",
        "never reached",
    ];
    let script = script(folder.path(), &lines);
    let args = [
        "debug",
        "--prompt",
        "The cat sat on the",
        "--max-tokens",
        "5",
        "--script",
        &script,
    ];
    let output = stdout(&ok(&args));
    for part in [
        "stopped at blocks.3.hook_resid_post [6, 256], positions 0 to 5",
        "stopped at blocks.4.hook_resid_pre",
        "stopped at blocks.4.hook_resid_post",
        "1 change to apply",
        "no breakpoints",
        "block  <|endoftext|>",
    ] {
        assert!(output.contains(part), "'{part}' is not in: {output}");
    }
    assert!(!output.contains("never reached"), "{output}");
    // After undo, the session generates the same text as `djinn run`.
    let run = json_output(&[
        "run",
        "--prompt",
        "The cat sat on the",
        "--max-tokens",
        "5",
        "--temperature",
        "0",
        "--json",
    ]);
    let expect = format!("The cat sat on the{}", run["text"].as_str().unwrap());
    assert!(
        output
            .trim_end()
            .lines()
            .any(|line| line.ends_with(&expect)),
        "{expect}: {output}"
    );
    assert!(saved.exists());
}

#[test]
fn invalid_debugger_commands_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (lines, part) in [
        (&["fly"][..], "line 1: 'fly' is not a command"),
        (&["break blocks.99.hook_q"], "0 to 7"),
        (&["break blocks.0.attn.hook_pattern"], "hook_z"),
        (&["edit zero"], "run first"),
        (
            &["break blocks.0.hook_resid_post", "run", "edit add=[1,2]"],
            "line 3",
        ),
        (&["undo"], "nothing to undo"),
        (&["switch 77"], "no session 77"),
        (&["print"], "not paused"),
    ] {
        let script = script(folder.path(), lines);
        let output = djinn(&["debug", "--prompt", "The cat", "--script", &script]);
        let stderr_text = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{lines:?}: {stderr_text}");
        assert!(
            stderr_text.lines().last().unwrap().contains(part),
            "{lines:?}: {stderr_text}"
        );
    }
    refused(
        &["debug", "--script", "/nowhere/at/all"],
        &["/nowhere/at/all"],
    );
    refused(&["debug", "--break", "x,age>3"], &["is not a condition"]);
}
