//! Every command sizes itself to the memory there is, run as users run them.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::fs;

use common::{json_output, ok, output_of, refused, server::Server, stderr, stdout};
use serde_json::Value;

/// A model of 269 MB with the dimensions of SmolLM2-135M.
const SMOLLM: &str = "shape:smollm2-135m";
/// Less than a quarter of its weights.
const SMALL: &str = "60MB";

fn number(value: &Value, pointer: &str) -> u64 {
    let found = value.pointer(pointer).and_then(Value::as_u64);
    found.unwrap_or_else(|| panic!("no number at {pointer} of {value}"))
}

/// Word of a text that follows `before`, up to a blank or punctuation.
fn word_after<'a>(text: &'a str, before: &str) -> &'a str {
    let at = text
        .find(before)
        .unwrap_or_else(|| panic!("'{before}' is not in: {text}"));
    let rest = &text[at + before.len()..];
    let end = rest.find([' ', ',', ';', '\n']).unwrap_or(rest.len());
    &rest[..end]
}

/// Error of a command that is refused.
fn refusal(args: &[&str]) -> String {
    let output = common::djinn(args);
    assert_eq!(output.status.code(), Some(2), "{args:?}");
    stderr(&output)
}

#[test]
fn every_command_runs_a_model_in_less_than_a_quarter_of_its_weights() {
    let model = ["--model", SMOLLM, "--memory", SMALL, "--device", "cpu"];
    let run = |args: &[&str]| stdout(&ok(&[args, &model[..]].concat()));
    let text = run(&["run", "--tokens", "1,2,3", "--max-tokens", "2", "--json"]);
    let generated: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        generated["output_ids"].as_array().unwrap().len(),
        2,
        "{text}"
    );
    let traced = run(&[
        "trace",
        "--tokens",
        "1,2,3",
        "--capture",
        "blocks.3.hook_resid_post|lens2,logits@-1|top3,blocks.0.attn.hook_pattern",
        "--json",
    ]);
    assert!(traced.contains("blocks.3.hook_resid_post"), "{traced}");
    let script = tempfile::NamedTempFile::new().unwrap();
    fs::write(&script, "quit\n").unwrap();
    let script = script.path().to_str().unwrap().to_owned();
    run(&["debug", "--tokens", "1,2,3", "--script", &script]);
    let plan = run(&["plan", "--link", "3GB", "--compute", "20GB", "--json"]);
    let plan: Value = serde_json::from_str(&plan).unwrap();
    assert!(number(&plan, "/context") >= 512, "{plan}");
    // A synthetic model has no tokenizer, and a chat needs one: peak_memory.rs adds one.
    let chat = refusal(&[&["chat"][..], &model].concat());
    assert!(chat.contains("tokenizer"), "{chat}");
}

#[test]
fn a_server_serves_a_model_in_less_than_a_quarter_of_its_weights() {
    let model = format!("{SMOLLM},memory={SMALL}");
    let server = Server::start_plain(&["--model", &model, "--device", "cpu"]);
    let body = r#"{"prompt": [1, 2, 3], "max_tokens": 2, "ignore_eos": true}"#;
    let answer = server.post("/v1/completions", body);
    assert!(answer.contains("\"completion_tokens\":2"), "{answer}");
}

#[test]
fn the_least_memory_of_a_run_is_enough_for_every_command() {
    // The bundled model has a tokenizer, so that a chat starts.
    let error = refusal(&["run", "--memory", "1kB"]);
    let least = format!("{}MB", word_after(&error, "at least "));
    let run = |args: &[&str]| ok(&[args, &["--memory", &least]].concat());
    run(&["run", "--max-tokens", "1"]);
    run(&["plan", "--link", "1GB", "--compute", "1GB"]);
    run(&[
        "trace",
        "--prompt",
        "Tom",
        "--capture",
        "blocks.0.hook_resid_post",
    ]);
    let chat = ["chat", "--memory", &least, "--max-tokens", "1"];
    let answer = output_of(&chat, &["Tom", "/show"]);
    assert!(answer.contains("assistant: "), "{answer}");
    let script = tempfile::NamedTempFile::new().unwrap();
    fs::write(&script, "step\nquit\n").unwrap();
    let script = script.path().to_str().unwrap();
    run(&["debug", "--prompt", "Tom", "--script", script]);
    let server = Server::start_plain(&["--memory", &least, "--device", "cpu"]);
    let answer = server.post("/v1/completions", r#"{"prompt": "Tom", "max_tokens": 2}"#);
    assert!(answer.contains("\"completion_tokens\":2"), "{answer}");
}

#[test]
fn a_context_that_does_not_fit_is_refused_with_numbers_that_work() {
    let base = [
        "plan",
        "--model",
        SMOLLM,
        "--memory",
        SMALL,
        "--link",
        "3GB",
        "--compute",
        "20GB",
        "--host-memory",
        "1MB",
    ];
    // With host memory, the pages stream through a window.
    let in_host = [&base[..9], &["--context", "8192", "--json"]].concat();
    assert_eq!(number(&json_output(&in_host), "/context"), 8192);
    let error = refusal(&[&base[..], &["--context", "8192"]].concat());
    for part in ["--memory 60.0 MB", "--context 8192", "KV takes"] {
        assert!(error.contains(part), "{error}");
    }
    let shorter = word_after(&error, "set --context ");
    let fits = json_output(&[&base[..], &["--context", shorter, "--json"]].concat());
    assert_eq!(number(&fits, "/context").to_string(), shorter);
    let longer = (shorter.parse::<u64>().unwrap() + 16).to_string();
    refused(
        &[&base[..], &["--context", &longer]].concat(),
        &["--memory 60.0 MB"],
    );
    let memory = word_after(&error, "set --memory ");
    let base = [
        "plan",
        "--model",
        SMOLLM,
        "--link",
        "3GB",
        "--compute",
        "20GB",
        "--host-memory",
        "1MB",
    ];
    let with = |memory: &str| {
        let args = [&base[..], &["--memory", memory, "--context", "8192"]].concat();
        common::djinn(&args).status.success()
    };
    assert!(with(memory), "{error}");
    let bytes: djinn_types::Size = memory.parse().unwrap();
    assert!(!with(&format!("{}", bytes.0 - 200_000)), "{error}");
}

#[test]
fn what_the_user_sets_is_refused_and_not_changed() {
    let base = [
        "plan",
        "--model",
        SMOLLM,
        "--memory",
        SMALL,
        "--context",
        "512",
    ];
    ok(&[&base[..], &["--link", "3GB", "--compute", "20GB"]].concat());
    refused(
        &[&base[..], &["--rows", "4096"]].concat(),
        &["--memory 60.0 MB", "--rows 4096"],
    );
    refused(&["chat", "--context", "1000000"], &["1000000"]);
}

#[test]
fn the_plan_chooses_the_context_and_says_why() {
    let plan = |memory: &str| {
        json_output(&[
            "plan",
            "--model",
            SMOLLM,
            "--memory",
            memory,
            "--link",
            "3GB",
            "--compute",
            "20GB",
            "--json",
        ])
    };
    let plenty = plan("4GB");
    assert_eq!(number(&plenty, "/context"), 8192);
    assert_eq!(number(&plenty, "/streamed_bytes_per_pass"), 0);
    assert!(plenty["reduced"].as_array().unwrap().is_empty(), "{plenty}");
    let scarce = plan(SMALL);
    let context = number(&scarce, "/context");
    assert!((512..8192).contains(&context), "{scarce}");
    let reason = scarce["reason"].as_str().unwrap();
    assert!(
        reason.contains(&format!("context {context} of 8192")),
        "{reason}"
    );
    // Far more memory gives a longer context.
    let contexts = [
        "20MB", "40MB", "60MB", "100MB", "200MB", "400MB", "800MB", "2GB",
    ];
    let contexts = contexts.map(|memory| number(&plan(memory), "/context"));
    assert!(contexts.is_sorted(), "{contexts:?}");
}

#[test]
fn the_example_of_the_help_is_planned() {
    let args = [
        "plan",
        "--model",
        "shape:llama-2-13b",
        "--memory",
        "4GB",
        "--link",
        "3GB",
        "--compute",
        "20GB",
        "--json",
    ];
    let plan = json_output(&args);
    let lines = plan["memory"].as_array().unwrap();
    let device = lines.iter().filter(|line| line["tier"] == "device");
    let sum: u64 = device.map(|line| number(line, "/bytes")).sum();
    assert_eq!(
        sum, 4_000_000_000,
        "the table accounts for every byte of the budget"
    );
    assert!(number(&plan, "/context") >= 512, "{plan}");
}

/// Rectangles of an SVG file with a class: position, width and bytes.
fn parts(svg: &str, class: &str) -> Vec<(f64, f64, Option<u64>)> {
    let document = roxmltree::Document::parse(svg).unwrap();
    let number = |node: &roxmltree::Node<'_, '_>, name: &str| node.attribute(name)?.parse().ok();
    let has = |node: &roxmltree::Node<'_, '_>| {
        let classes = node.attribute("class").unwrap_or_default();
        node.has_tag_name("rect") && classes.split(' ').any(|one| one == class)
    };
    let nodes = document.descendants().filter(has);
    let part = |node: roxmltree::Node<'_, '_>| {
        let bytes = node
            .attribute("data-bytes")
            .map(|bytes| bytes.parse().unwrap());
        (
            number(&node, "x").unwrap(),
            number(&node, "width").unwrap(),
            bytes,
        )
    };
    nodes.map(part).collect()
}

#[test]
fn the_picture_shows_the_memory_to_scale() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plan.svg");
    let plan = json_output(&[
        "plan",
        "--model",
        SMOLLM,
        "--memory",
        SMALL,
        "--device",
        "cpu",
        "--link",
        "3GB",
        "--compute",
        "20GB",
        "--json",
        "--svg",
        file.to_str().unwrap(),
    ]);
    let svg = fs::read_to_string(&file).unwrap();
    let frames = parts(&svg, "frame");
    let drawn = parts(&svg, "part");
    let lines = plan["memory"].as_array().unwrap();
    assert_eq!(drawn.len(), lines.len());
    let sum: f64 = drawn.iter().map(|(_, width, _)| width).sum();
    let whole: f64 = frames.iter().map(|(_, width, _)| width).sum();
    assert!((sum - whole).abs() < 0.05, "{sum} of {whole}");
    for ((_, width, bytes), line) in drawn.iter().zip(lines) {
        assert_eq!(*bytes, Some(number(line, "/bytes")));
        if line["tier"] == "device" {
            let share = number(line, "/bytes") as f64 / 60e6;
            assert!((width / frames[0].1 - share).abs() < 1e-4, "{line}");
        }
    }
    refused(
        &[
            "plan",
            "--memory",
            "6MB",
            "--link",
            "1GB",
            "--compute",
            "1GB",
            "--svg",
            "/no/such/x.svg",
        ],
        &["/no/such/x.svg"],
    );
}

/// Line of the table with this purpose and tier.
fn line<'a>(plan: &'a Value, tier: &str, purpose: &str) -> &'a Value {
    let mut lines = plan["memory"].as_array().unwrap().iter();
    let found = lines.find(|line| line["tier"] == tier && line["what"] == purpose);
    found.unwrap_or_else(|| panic!("no '{purpose}' on the {tier} in {plan}"))
}

/// Bytes of a tier in the table.
fn tier_bytes(plan: &Value, tier: &str) -> u64 {
    let lines = plan["memory"].as_array().unwrap().iter();
    let lines = lines.filter(|line| line["tier"] == tier);
    lines.map(|line| number(line, "/bytes")).sum()
}

/// Plan of a configuration file with this text, and its picture.
fn plan_of_config(text: &str) -> (Value, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("djinn.toml");
    fs::write(&file, text).unwrap();
    let svg = folder.path().join("plan.svg");
    let (file, svg) = (file.to_str().unwrap(), svg.to_str().unwrap());
    let args = ["plan", "--config", file, "--svg", svg, "--json"];
    let rates = ["--link", "3GB", "--compute", "20GB"];
    let plan = json_output(&[&args[..], &rates].concat());
    (plan, fs::read_to_string(svg).unwrap())
}

/// Checks that the picture draws a line of the table with this class.
fn is_drawn(svg: &str, class: &str, line: &Value) {
    let drawn: Vec<_> = parts(svg, class).iter().filter_map(|part| part.2).collect();
    assert_eq!(drawn, [number(line, "/bytes")], "{class}");
}

#[test]
fn a_plan_tells_the_kv_window_from_the_pages_of_the_device() {
    let folder = tempfile::tempdir().unwrap();
    let svg = folder.path().join("plan.svg");
    let base = [
        "plan", "--model", SMOLLM, "--memory", SMALL, "--device", "cpu",
    ];
    let rates = ["--link", "3GB", "--compute", "20GB"];
    let more = [
        "--context",
        "8192",
        "--json",
        "--svg",
        svg.to_str().unwrap(),
    ];
    let plan = json_output(&[&base[..], &rates, &more].concat());
    let svg = fs::read_to_string(&svg).unwrap();
    let (page, pages) = (
        number(&plan, "/kv/page_bytes"),
        number(&plan, "/kv/device_pages"),
    );
    let kv = line(&plan, "device", "KV pages");
    assert_eq!(number(kv, "/bytes"), pages * page);
    let window = line(&plan, "device", "KV window");
    assert_eq!(number(window, "/bytes"), number(&plan, "/kv/window_bytes"));
    assert_eq!(
        number(kv, "/bytes") + number(window, "/bytes"),
        number(&plan, "/bytes/kv")
    );
    // All pages of a session with 8192 tokens that the device has no room for stream.
    let streamed = 8192 / number(&plan, "/kv/page_tokens") - pages;
    assert_eq!(number(&plan, "/kv/streamed_pages"), streamed);
    let why = window["why"].as_str().unwrap();
    assert!(
        why.contains(&format!("{streamed} of a full session")),
        "{why}"
    );
    let host = line(&plan, "host", "KV pages")["why"].as_str().unwrap();
    assert!(host.contains("that stream in every pass"), "{host}");
    assert_eq!(tier_bytes(&plan, "device"), 60_000_000);
    is_drawn(&svg, "window", window);
}

#[test]
fn a_plan_tells_weights_that_may_yield_from_those_that_stay() {
    let text = |elastic: &str| {
        format!(
            "device = \"cpu\"\nmemory = \"400MB\"\ncontext = 1024\nelastic = \"{elastic}\"\n\
             model = [\"{SMOLLM}\"]\n"
        )
    };
    let (plan, svg) = plan_of_config(&text("on"));
    let model = &plan["models"][0];
    let yields = line(&plan, "device", "may yield");
    assert_eq!(number(yields, "/bytes"), number(model, "/yield_bytes"));
    let stay = line(&plan, "device", "resident weights");
    assert_eq!(
        number(yields, "/bytes") + number(stay, "/bytes"),
        number(model, "/bytes/resident")
    );
    let why = stay["why"].as_str().unwrap();
    assert!(!why.contains("all weights fit"), "{why}");
    let (now, most) = (
        number(model, "/kv/device_pages"),
        number(model, "/kv/most_device_pages"),
    );
    assert!(now < most, "{model}");
    let kv = line(&plan, "device", "KV pages");
    let page = number(model, "/kv/page_bytes");
    assert!(number(kv, "/bytes").abs_diff(now * page) < page, "{kv}");
    let gained = (most - now) * page;
    assert!(number(yields, "/bytes").abs_diff(gained) < page, "{yields}");
    let why = yields["why"].as_str().unwrap();
    assert!(why.contains(&format!("up to {most} pages")), "{why}");
    assert_eq!(tier_bytes(&plan, "device"), 400_000_000);
    is_drawn(&svg, "yields", yields);

    // A plan by flags is elastic too: its sessions need not fit beside all weights.
    let flags = [
        "plan", "--model", SMOLLM, "--memory", "400MB", "--device", "cpu", "--json",
    ];
    let more = ["--sessions", "32", "--context", "1024", "--elastic", "on"];
    let rates = ["--link", "3GB", "--compute", "20GB"];
    let plan = json_output(&[&flags[..], &more, &rates].concat());
    let yields = number(line(&plan, "device", "may yield"), "/bytes");
    assert_eq!(yields, number(&plan, "/yield_bytes"));
    assert!(yields > 100_000_000, "{plan}");

    let (fixed, _) = plan_of_config(&text("off"));
    assert_eq!(number(&fixed["models"][0], "/yield_bytes"), 0);
    let why = line(&fixed, "device", "resident weights")["why"].clone();
    assert_eq!(why, "all weights fit");
}

#[test]
fn a_plan_says_that_models_take_turns() {
    let text = |memory: &str| {
        format!(
            "device = \"cpu\"\nmemory = \"{memory}\"\n\
             model = [\"a={SMOLLM},memory=120MB\", \"b={SMOLLM},memory=120MB\"]\n"
        )
    };
    let (plan, svg) = plan_of_config(&text("150MB"));
    assert_eq!(plan["in_turns"], true);
    let together = tier_bytes(&plan, "device");
    assert!(together > 150_000_000, "{plan}");
    assert!(svg.contains("150.0 MB in turns"), "{svg}");
    assert!(svg.contains("the models take turns"), "{svg}");
    // The bar stands for all models together.
    let frame = parts(&svg, "frame")[0].1;
    let kv = parts(&svg, "kv")[0];
    let share = kv.2.unwrap() as f64 / together as f64;
    assert!((kv.1 / frame - share).abs() < 1e-4, "{kv:?}");

    let (apart, svg) = plan_of_config(&text("240MB"));
    assert_eq!(apart["in_turns"], false);
    assert_eq!(tier_bytes(&apart, "device"), 240_000_000);
    assert!(!svg.contains("turns"), "{svg}");
}

#[test]
fn flags_without_effect_are_named() {
    // One session with a short context fits beside the weights.
    let run = ["run", "--elastic", "on", "--max-tokens", "1"];
    let text = stderr(&ok(&run));
    let because = "--elastic on has no effect: all KV pages fit on the device";
    assert!(text.contains(because), "{text}");
    let text = stderr(&ok(&run[..1]
        .iter()
        .chain(&run[3..])
        .copied()
        .collect::<Vec<_>>()));
    assert!(!text.contains("--elastic"), "{text}");
    let decode = ["bench", "decode", "--tokens", "1", "--elastic", "on"];
    let text = stderr(&ok(&decode));
    let note = "note: --elastic on has no effect: this command";
    assert!(text.contains(note), "{text}");
    let config = ["plan", "--config", "djinn.toml", "--elastic", "on"];
    refused(&config, &["--config", "--elastic"]);
    for (value, has_note) in [("on", true), ("auto", false)] {
        let log = tempfile::NamedTempFile::new().unwrap();
        let flags = ["--host-copy", value];
        let server = Server::start_with_log(&flags, log.reopen().unwrap().into());
        server.terminate();
        let text = fs::read_to_string(log.path()).unwrap();
        let note = "note: --host-copy on has no effect: a CPU";
        assert_eq!(text.contains(note), has_note, "{text}");
    }
}

#[test]
fn all_models_of_a_configuration_are_planned_together() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("djinn.toml");
    let text = format!(
        "device = \"cpu\"\nmemory = \"200MB\"\nmodel = [\"a={SMOLLM},memory=80MB\", \"b={SMOLLM}?layers=2\"]\n"
    );
    fs::write(&file, text).unwrap();
    let svg = folder.path().join("plan.svg");
    let rates = ["--link", "3GB", "--compute", "20GB"];
    let args = [
        "plan",
        "--config",
        file.to_str().unwrap(),
        "--svg",
        svg.to_str().unwrap(),
    ];
    let plan = json_output(&[&args[..], &rates, &["--json"]].concat());
    assert_eq!(number(&plan, "/budget_bytes"), 200_000_000);
    let models = plan["models"].as_array().unwrap();
    let names: Vec<_> = models
        .iter()
        .map(|model| model["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(number(&models[0], "/budget_bytes"), 80_000_000);
    let first = number(&models[0], "/bytes/total");
    assert_eq!(number(&models[1], "/budget_bytes"), 200_000_000 - first);
    let lines = plan["memory"].as_array().unwrap();
    let device = lines.iter().filter(|line| line["tier"] == "device");
    let sum: u64 = device.map(|line| number(line, "/bytes")).sum();
    assert_eq!(sum, 200_000_000);
    roxmltree::Document::parse(&fs::read_to_string(&svg).unwrap()).unwrap();
    let text = stdout(&ok(&[&args[..], &rates].concat()));
    for part in ["a in 80.0 MB", "resident weights", "KV pages", "free"] {
        assert!(text.contains(part), "{text}");
    }
    refused(
        &["plan", "--config", "/no/such/file.toml"],
        &["/no/such/file.toml"],
    );
}
