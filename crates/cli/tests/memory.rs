//! Models larger than their memory budget, run as users run them.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Read},
    process::{Command, Stdio},
    time::Duration,
};

use common::{golden, ok, refused, stderr, stdout};
use serde_json::Value;

/// Runs a command and parses its standard output as JSON.
fn json(args: &[&str]) -> Value {
    serde_json::from_str(&stdout(&ok(args))).unwrap()
}

/// Number at a JSON pointer.
fn number(value: &Value, pointer: &str) -> f64 {
    let found = value.pointer(pointer).and_then(Value::as_f64);
    found.unwrap_or_else(|| panic!("no number at {pointer} of {value}"))
}

#[test]
fn the_text_does_not_depend_on_the_memory_budget() {
    let run = |flags: &[&str]| {
        let args: Vec<&str> = ["run", "--max-tokens", "24"]
            .iter()
            .chain(flags)
            .copied()
            .collect();
        let output = ok(&args);
        (stdout(&output), stderr(&output))
    };
    let (text, stderr_text) = run(&[]);
    assert!(
        stderr_text.contains("all 13.9 MB of weights stay in memory, because"),
        "{stderr_text}"
    );
    for flags in [
        &["--memory", "6MB"][..],
        &["--memory", "2MB", "--prefetch", "off"],
        &["--resident", "none", "--chunk", "64KiB", "--workers", "2"],
        &["--resident", "4MB", "--ring", "1MB"],
    ] {
        let (found, stderr_text) = run(flags);
        assert_eq!(found, text, "{flags:?}");
        assert!(
            stderr_text.contains("streams each pass through a ring of"),
            "{stderr_text}"
        );
    }
    let (found, stderr_text) = run(&["--memory", "0.5", "--ring", "1MB"]);
    assert_eq!(found, text);
    assert!(
        stderr_text.contains("--ring has no effect"),
        "{stderr_text}"
    );
}

#[test]
fn an_impossible_budget_is_refused_with_the_smallest_possible_one() {
    let check = |flags: &[&str], parts: &[&str]| {
        let args: Vec<&str> = ["run"].iter().chain(flags).copied().collect();
        refused(&args, parts);
    };
    check(&["--memory", "100kB"], &["100.0 kB", "at least", "MB"]);
    check(&["--memory", "1.5"], &["'1.5' is not a size"]);
    check(&["--memory", "much"], &["'much' is not a size"]);
    check(
        &["--memory", "6MB", "--ring", "1kB"],
        &["--ring 1.0 kB", "at least"],
    );
    let all = ["--memory", "6MB", "--resident", "all"];
    check(&all, &["--resident all needs", "--memory is 6.0 MB"]);
    check(
        &["--resident", "some"],
        &["'some' is neither all, none nor a size"],
    );
    check(&["--workers", "0"], &["at least 1"]);
    check(&["--workers", "65"], &["--workers 65", "64"]);
    check(&["--prefetch", "maybe"], &["maybe"]);
    check(
        &["--timeline", "/no/such/folder/t.json"],
        &["/no/such/folder"],
    );
    refused(&["plan", "--memory", "10kB"], &["at least"]);
    refused(&["plan", "--context", "1000000"], &["1000000", "context"]);
    let no_link = ["plan", "--link", "0", "--memory", "6MB", "--context", "64"];
    refused(&no_link, &["above 0"]);
    refused(&["bench", "stream", "--memory", "1GB"], &["lower --memory"]);
}

#[test]
fn plans_of_large_shapes_fill_the_budget() {
    for (shape, memory, budget) in [
        ("llama-2-70b", "60GB", 60e9),
        ("falcon-180b", "80GB", 80e9),
        ("mixtral-8x7b", "24GB", 24e9),
        ("llama-2-13b", "16GB", 16e9),
    ] {
        let model = format!("shape:{shape}");
        let rates = ["--link", "55GB", "--compute", "4TB"];
        let args = ["plan", "--model", &model, "--memory", memory];
        let plan = json(&[&args[..], &rates, &["--json"]].concat());
        let parts = ["resident", "ring", "experts", "kv", "activations"];
        let sum: f64 = parts
            .map(|part| number(&plan, &format!("/bytes/{part}")))
            .iter()
            .sum();
        assert_eq!(sum, number(&plan, "/bytes/total"), "{shape}");
        assert!(sum <= budget && sum > 0.98 * budget, "{shape}: {sum}");
        let pieces = plan["pieces"].as_array().unwrap();
        let bytes = |place: &str| -> f64 {
            let there = pieces.iter().filter(|piece| piece["place"] == place);
            there.map(|piece| number(piece, "/bytes")).sum()
        };
        assert_eq!(
            bytes("ring"),
            number(&plan, "/streamed_bytes_per_pass"),
            "{shape}"
        );
        assert!(number(&plan, "/prediction/tokens_per_s") > 0.0);
        let text = stdout(&ok(&[&args[..], &rates].concat()));
        for part in [
            shape,
            "resident weights",
            "KV",
            "free",
            "tokens/s",
            "limited by the link",
        ] {
            assert!(text.contains(part), "'{part}' is not in: {text}");
        }
    }
}

#[test]
fn more_memory_is_never_predicted_to_be_slower() {
    for model in ["shape:llama-2-7b", "shape:mixtral-8x7b", "shape:gpt2"] {
        let mut before = f64::INFINITY;
        for memory in [
            "600MB", "1GB", "2GB", "4GB", "8GB", "16GB", "32GB", "64GB", "128GB",
        ] {
            let plan = json(&[
                "plan",
                "--model",
                model,
                "--memory",
                memory,
                "--context",
                "64",
                "--json",
                "--link",
                "3GB",
                "--compute",
                "20GB",
            ]);
            let now = number(&plan, "/prediction/pass_s");
            assert!(
                now <= before,
                "{model} in {memory}: {now} s, but {before} s with less memory"
            );
            before = now;
        }
        assert!(before < 5.0, "{model}: {before}");
    }
}

#[test]
fn a_plan_shows_the_type_of_keys_and_values() {
    let plan = |model: &str, flags: &[&str]| {
        let args = [
            "plan",
            "--context",
            "64",
            "--json",
            "--compute",
            "10GB",
            "--model",
            model,
        ];
        json(&[&args[..], flags].concat())
    };
    let folder = golden("llama3");
    for (model, auto) in [
        ("shape:llama-2-7b?layers=1&dtype=bf16", "bf16"),
        ("shape:llama-2-7b?layers=1&dtype=f16", "f16"),
        (folder.to_str().unwrap(), "f16"),
    ] {
        let whole = plan(model, &["--kv-dtype", "f32"]);
        assert_eq!(whole["kv_dtype"], "f32", "{model}");
        for (choice, dtype) in [("auto", auto), ("f16", "f16"), ("bf16", "bf16")] {
            let half = plan(model, &["--kv-dtype", choice]);
            assert_eq!(half["kv_dtype"], dtype, "{model} {choice}");
            let bytes = number(&half, "/session_kv_bytes");
            assert_eq!(2.0 * bytes, number(&whole, "/session_kv_bytes"));
        }
    }
    let default = plan("shape:llama-2-7b?layers=1&dtype=bf16", &[]);
    assert_eq!(default["kv_dtype"], "bf16");
    refused(&["plan", "--kv-dtype", "i32"], &["auto, f16, bf16 or f32"]);
}

#[test]
fn a_plan_lists_every_piece_on_request() {
    let text = stdout(&ok(&[
        "plan",
        "--memory",
        "6MB",
        "--context",
        "64",
        "--pieces",
    ]));
    assert!(text.contains("block 0, 1 of"), "{text}");
    let is_piece = |line: &&str| line.starts_with("block") || line.starts_with("head");
    let pieces = text.lines().filter(is_piece);
    let rings = pieces.filter(|line| line.contains(" ring ")).count();
    let plan = json(&["plan", "--memory", "6MB", "--context", "64", "--json"]);
    assert_eq!(rings as f64, number(&plan, "/ring/slots"));
}

#[test]
fn stats_and_timeline_agree() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("passes.json");
    let report = json(&[
        "run",
        "--memory",
        "6MB",
        "--max-tokens",
        "4",
        "--stats",
        "--json",
        "--timeline",
        file.to_str().unwrap(),
    ]);
    let passes = report["passes"].as_array().unwrap();
    assert_eq!(passes.len(), 4);
    for pass in passes {
        assert!(number(pass, "/link_bytes") > 1e6, "{pass}");
        assert!(
            number(pass, "/stall_s") <= number(pass, "/seconds"),
            "{pass}"
        );
        let overlap = number(pass, "/overlap");
        assert!((0.0..=1.0).contains(&overlap), "{pass}");
    }
    assert!(number(&report, "/link_alone_gb_per_s") > 0.0);

    let trace: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let spans: Vec<&Value> = events.iter().filter(|event| event["ph"] == "X").collect();
    let of = |category: &'static str| spans.iter().filter(move |span| span["cat"] == category);
    // Every segment computes in every pass, and every pass copies the streamed weights.
    let computed = of("compute").filter(|span| span["name"] == "block 3");
    assert!(computed.count() >= 4);
    let copied: f64 = of("copy").map(|span| number(span, "/args/bytes")).sum();
    let counted: f64 = passes.iter().map(|pass| number(pass, "/link_bytes")).sum();
    assert!(
        copied > 0.5 * counted && copied < 1.5 * counted,
        "{copied} bytes in the timeline, {counted} in the stats"
    );
    assert!(of("wait").count() > 0);
    // The spans of a lane do not overlap.
    let mut ends: BTreeMap<u64, f64> = BTreeMap::new();
    for span in spans {
        // Computing and waiting count as one lane, because a waiting thread does not compute.
        let lane = span["tid"].as_u64().unwrap().max(1);
        let (start, length) = (number(span, "/ts"), number(span, "/dur"));
        let end = ends.insert(lane, start + length);
        assert!(
            end.is_none_or(|end| start >= end - 0.01),
            "{span} begins before the previous span ends at {end:?}"
        );
    }
}

#[test]
fn a_shape_written_to_disk_generates_the_same_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("small");
    let path = out.to_str().unwrap();
    ok(&["shape", "gpt2?layers=1&dtype=bf16", "--out", path]);
    let tokens = |model: &str, flags: &[&str]| {
        let args = [
            "run",
            "--model",
            model,
            "--tokens",
            "5,6,7",
            "--max-tokens",
            "3",
            "--json",
        ];
        json(&[&args[..], flags].concat())["output_ids"].clone()
    };
    let expect = tokens("shape:gpt2?layers=1&dtype=bf16", &[]);
    assert_eq!(tokens(path, &[]), expect);
    assert_eq!(tokens(path, &["--memory", "20MB"]), expect);
    refused(
        &["shape", "gpt2?layers=1", "--out", path],
        &["exists already"],
    );
    refused(&["shape", "gpt2"], &["--out"]);
    let missing = folder.path().join("no/such/place");
    refused(
        &["shape", "gpt2", "--out", missing.to_str().unwrap()],
        &["no/such/place"],
    );
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "no partial model is left behind");
    assert!(stdout(&ok(&["shape"])).contains("shape:llama-2-13b"));
    assert_eq!(json(&["shape", "--json"]).as_array().unwrap().len(), 13);
}

#[test]
fn a_file_truncated_while_it_streams_is_named() {
    let copy = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(golden("llama2").join(file), copy.path().join(file)).unwrap();
    }
    let weights = copy.path().join("model.safetensors");
    let mut child = Command::new(env!("CARGO_BIN_EXE_djinn"))
        .args(["run", "--model", copy.path().to_str().unwrap()])
        .args(["--resident", "none", "--prefetch", "off", "--workers", "1"])
        .args([
            "--tokens",
            "1,2,3",
            "--max-tokens",
            "250",
            "--ignore-eos",
            "--json",
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The program prints the plan once the files are open; hundreds of passes follow.
    let mut child_stderr = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    child_stderr.read_line(&mut line).unwrap();
    assert!(line.contains("--resident asks for it"), "{line}");
    let file = fs::File::options().write(true).open(&weights).unwrap();
    file.set_len(20_000).unwrap();
    let output = child.wait_with_output().unwrap();
    let mut error = String::new();
    child_stderr.read_to_string(&mut error).unwrap();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("model.safetensors: cannot read"), "{error}");
    assert!(error.contains("at offset"), "{error}");
    assert_eq!(stdout(&output), "", "a failed run prints no result");
}

#[test]
fn link_and_stream_benchmarks_report_positive_rates() {
    let link = json(&[
        "bench",
        "link",
        "--workers",
        "2",
        "--chunk",
        "256KiB",
        "--seconds",
        "0.05",
        "--repeat",
        "2",
        "--json",
    ]);
    assert!(number(&link, "/link/0/gb_per_s") > 0.0);
    let stream = json(&[
        "bench", "stream", "--repeat", "1", "--tokens", "8", "--json",
    ]);
    assert!(number(&stream, "/token/share_of_link") > 0.0);
    assert!(number(&stream, "/prompt/faster_by_prefetch") > 0.0);
    assert!(number(&stream, "/streamed_bytes_per_token") > 1e6);
}

/// Peak resident memory of a run, as the kernel reports it in `/proc`.
fn peak_bytes(args: &[&str]) -> u64 {
    let mut child = Command::new(env!("CARGO_BIN_EXE_djinn"))
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    loop {
        let text = fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        peak = peak.max(kib.unwrap_or(0) * 1024);
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success(), "{args:?}");
            return peak;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Memory of a process outside its budget: the program, stacks, tables of a plan.
const OVERHEAD: u64 = 64 << 20;

#[test]
#[cfg(target_os = "linux")]
fn peak_memory_stays_within_the_budget() {
    // The model has 6.6 GB of weights.
    let model = "shape:llama-2-7b?layers=15&dtype=bf16";
    for (memory, budget) in [("1GB", 1e9), ("2GB", 2e9), ("4GB", 4e9)] {
        let run = ["run", "--model", model, "--memory", memory];
        let request = ["--tokens", "1,2,3,4,5,6,7,8", "--max-tokens", "2"];
        let peak = peak_bytes(&[&run[..], &request].concat());
        let limit = 1.05 * budget + OVERHEAD as f64;
        assert!((peak as f64) < limit, "{peak} bytes in {memory}");
        assert!(
            peak as f64 > 0.9 * budget,
            "{peak} bytes in {memory}: the budget is not used"
        );
    }
}
