//! `djinn eval` and `djinn report` as users run them. Nothing here depends on the speed of the machine: the
//! comparison of times is tested on kept results.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use common::{djinn, ok, refused, root, server::Server, stderr, stdout};
use serde_json::{Value, json};

const RESULTS: [&str; 5] = [
    "virtual_memory",
    "memory_pressure",
    "resume_latency",
    "steering",
    "agents",
];
const FIGURES: [&str; 6] = [
    "effective_bandwidth_comparison",
    "latency_timeline",
    "memory_usage",
    "figure6_memory_virtualization",
    "figure7_resume_latency",
    "agents_latency",
];

/// Reads a JSON file.
fn read(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Runs every experiment against a server, without Python baselines.
fn smoke(results: &Path, more: &[&str]) {
    let mut flags = vec!["eval", "all", "--smoke", "--runs", "1"];
    flags.extend(["--python", "there-is-no-such-python"]);
    flags.extend(["--output", results.to_str().unwrap()]);
    flags.extend(more);
    let output = ok(&flags);
    assert_eq!(stdout(&output).matches("PASS").count(), 5, "{output:?}");
}

/// Returns the measured runs of a result.
fn runs(result: &Value) -> &[Value] {
    result["runs"].as_array().unwrap()
}

/// Checks that the smoke configurations test what they claim: the weights exceed the budget and stream, and
/// the KV cache exceeds the budget and moves.
fn weights_stream_and_pages_move(results: &Path) {
    let number = |value: &Value| {
        value
            .as_f64()
            .unwrap_or_else(|| panic!("{value} is not a number"))
    };
    for name in ["virtual_memory", "memory_pressure"] {
        let result = read(&results.join(format!("{name}.json")));
        let budget_gb = number(&result["budget_mb"]) / 1e3;
        for run in runs(&result) {
            assert!(number(&run["model_size_gb"]) > budget_gb, "{name}: {run}");
            assert!(number(&run["link_gbps"]) > 0.0, "{name}: {run}");
        }
        let checks = result["summary"]["checks"].as_array().unwrap();
        let expect = match name {
            "virtual_memory" => "weights streamed in every run",
            _ => "KV pages moved in every run",
        };
        let check = checks.iter().find(|check| check["name"] == expect);
        assert_eq!(check.unwrap()["outcome"], "pass", "{name}");
    }
    let pressure = read(&results.join("memory_pressure.json"));
    let samples = pressure["memory"].as_array().unwrap();
    let device_kv_mb = samples
        .iter()
        .map(|sample| number(&sample["kv_mb"]))
        .fold(0.0, f64::max);
    for run in runs(&pressure) {
        assert!(number(&run["kv_demand_gb"]) * 1e3 > device_kv_mb, "{run}");
        assert!(number(&run["paged_out_gb"]) > 0.0, "{run}");
        assert!(number(&run["paged_back_gb"]) > 0.0, "{run}");
    }
}

/// Checks that every pause has a time measured by the client and a shorter time measured by the engine.
fn resume_times_have_a_client_and_an_engine_part(result: &Value) {
    for run in runs(result) {
        let points = run["points"].as_array().unwrap();
        let ms = |series: &str, x: &Value| {
            let is = |point: &&Value| point["series"] == series && point["x"] == *x;
            points
                .iter()
                .find(is)
                .and_then(|point| point["ms"].as_f64())
        };
        let outside = points.iter().filter(|point| point["series"] == "resume");
        let layers: Vec<&Value> = outside.map(|point| &point["x"]).collect();
        assert_eq!(layers.len(), 3, "{run}");
        for x in layers {
            let (all, inside) = (ms("resume", x).unwrap(), ms("resume_inside", x).unwrap());
            assert!(
                0.0 < inside && inside < all,
                "{inside} ms in the engine of {all} ms"
            );
        }
    }
}

/// Checks that `--keep` measures again only experiments without a result, with other settings, or that
/// failed.
fn valid_results_are_kept(results: &Path) {
    let path = |name: &str| results.join(format!("{name}.json"));
    let texts = || RESULTS.map(|name| fs::read_to_string(path(name)).unwrap());
    let before = texts();
    fs::remove_file(path("steering")).unwrap();
    let mut other = read(&path("resume_latency"));
    other["settings"]["experiment"]["breakpoints"]["repeats"] = json!(7);
    fs::write(path("resume_latency"), other.to_string()).unwrap();
    let mut failed = read(&path("virtual_memory"));
    failed["runs"][0]["logit_norm"] = json!(5.0);
    fs::write(path("virtual_memory"), failed.to_string()).unwrap();
    smoke(results, &["--keep"]);
    let same = before
        .iter()
        .zip(texts())
        .map(|(before, after)| *before == after);
    assert_eq!(same.collect::<Vec<_>>(), [false, true, false, false, true]);
}

/// Runs `djinn report`, and returns whether it succeeds and all that it prints.
fn report(results: &Path, output: &Path) -> (bool, String) {
    let done = djinn(&[
        "report",
        "--results",
        results.to_str().unwrap(),
        "--output",
        output.to_str().unwrap(),
    ]);
    (done.status.success(), stdout(&done) + &stderr(&done))
}

#[test]
fn all_experiments_run_and_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let results = folder.path().join("results");
    smoke(&results, &[]);
    for name in RESULTS {
        let result = read(&results.join(format!("{name}.json")));
        assert_eq!(runs(&result).len(), 1, "{name}");
        assert_eq!(result["summary"]["pass"], true, "{name}");
        let address = result["environment"]["server"].as_str().unwrap();
        assert!(address.starts_with("127.0.0.1:"), "{name}: {address}");
        for baseline in result["baselines"].as_array().into_iter().flatten() {
            let name = baseline["baseline"].as_str().unwrap();
            let is_djinn = ["ring_buffer", "djinn", "stateless"];
            let is_djinn = is_djinn.iter().any(|start| name.starts_with(start));
            let expect = if is_djinn { "ran" } else { "absent" };
            assert_eq!(baseline["status"], expect, "{baseline}");
        }
    }
    weights_stream_and_pages_move(&results);
    let streamed = read(&results.join("virtual_memory.json"));
    assert!(runs(&streamed).iter().all(|run| run["logit_norm"] == 0.0));
    let spans = streamed["timeline"]["spans"].as_array().unwrap();
    for lane in ["copy", "compute"] {
        assert!(spans.iter().any(|span| span["lane"] == lane), "{lane}");
    }
    resume_times_have_a_client_and_an_engine_part(&read(&results.join("resume_latency.json")));

    let output = folder.path().join("report");
    let (passes, text) = report(&results, &output);
    assert!(passes, "{text}");
    for figure in FIGURES {
        for end in ["svg", "png", "pdf"] {
            assert!(
                output.join(format!("{figure}.{end}")).is_file(),
                "{figure}.{end}"
            );
        }
    }
    let analysis = fs::read_to_string(output.join("analysis.md")).unwrap();
    assert!(analysis.contains("there-is-no-such-python"), "{analysis}");
    let page = fs::read_to_string(output.join("report.html")).unwrap();
    assert!(page.contains("<svg") && !page.contains("<script"));
    valid_results_are_kept(&results);
}

/// Kept result of a real measurement, so that tests do not depend on the speed of this machine.
fn measured(name: &str) -> Value {
    read(&root().join(format!("docs/results/h200/{name}.json")))
}

#[test]
fn changed_results_fail_the_report() {
    type Damage = fn(&mut Value);
    let folder = tempfile::tempdir().unwrap();
    let cases: [(&str, &str, Damage); 6] = [
        ("logits", "virtual_memory_13b", |result| {
            result["runs"][1]["logit_norm"] = json!(5.0);
        }),
        ("streaming", "virtual_memory_13b", |result| {
            result["runs"][1]
                .as_object_mut()
                .unwrap()
                .remove("link_gbps");
        }),
        ("session", "memory_pressure", |result| {
            result["runs"][0]["sessions_completed"] = json!(49);
        }),
        ("paging", "memory_pressure", |result| {
            result["runs"][0]["paged_back_gb"] = json!(0.0);
        }),
        ("tokens", "resume_latency", |result| {
            result["runs"][0]["tokens_match"] = json!(false);
        }),
        ("summary", "steering", |result| {
            result["summary"]["metrics"]["total_time_ms"]["median"] = json!(1.0);
        }),
    ];
    for (name, file, damage) in cases {
        let mut result = measured(file);
        damage(&mut result);
        let path = folder.path().join(format!("{name}.json"));
        fs::write(&path, result.to_string()).unwrap();
        let output = folder.path().join(name);
        let (passes, text) = report(&path, &output);
        assert!(!passes && text.contains("FAIL"), "{name}: {text}");
        let analysis = fs::read_to_string(output.join("analysis.md")).unwrap();
        assert!(analysis.contains("FAIL"), "{name}: {analysis}");
    }
}

#[test]
fn an_invalid_result_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let odd = folder.path().join("odd.json");
    fs::write(&odd, r#"{"version": 1, "experiment": "steering"}"#).unwrap();
    let (odd, output) = (odd.to_str().unwrap(), folder.path().join("report"));
    let output = output.to_str().unwrap();
    let report = ["report", "--results", odd, "--output", output];
    refused(&report, &["odd.json"]);
}

#[test]
fn results_are_compared_with_earlier_ones() {
    let folder = tempfile::tempdir().unwrap();
    let old = root().join("docs/results/h200/steering.json");
    let mut slower = measured("steering");
    for run in slower["runs"].as_array_mut().unwrap() {
        run["total_time_ms"] = json!(run["total_time_ms"].as_f64().unwrap() * 10.0);
    }
    slower["summary"]["metrics"] = json!({});
    let new = folder.path().join("slower.json");
    fs::write(&new, slower.to_string()).unwrap();
    for (new, is_worse) in [(&new, true), (&old, false)] {
        let output = folder.path().join("compared");
        let done = ok(&[
            "report",
            "--results",
            new.to_str().unwrap(),
            "--against",
            old.to_str().unwrap(),
            "--output",
            output.to_str().unwrap(),
        ]);
        let text = stdout(&done);
        assert_eq!(!text.contains(" 0 worse"), is_worse, "{text}");
        assert!(output.join("comparison.md").is_file());
    }
}

#[test]
fn ctrl_c_ends_all_experiments() {
    let folder = tempfile::tempdir().unwrap();
    let running = Command::new(env!("CARGO_BIN_EXE_djinn"))
        .args(["eval", "all", "--smoke", "--no-peers", "--output"])
        .arg(folder.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let mut running = running.unwrap();
    let mut lines = BufReader::new(running.stderr.take().unwrap()).lines();
    lines
        .by_ref()
        .find(|line| line.as_ref().unwrap().starts_with("[2 of 5]"))
        .unwrap()
        .unwrap();
    let interrupt = Command::new("kill")
        .args(["-INT", &running.id().to_string()])
        .status();
    assert!(interrupt.unwrap().success());
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    assert_eq!(running.wait().unwrap().code(), Some(130), "{rest:?}");
    // Finished experiments keep their results.
    assert!(folder.path().join("virtual_memory.json").is_file());
    assert!(!folder.path().join("agents.json").exists());
}

#[test]
fn a_lost_session_fails_the_experiment() {
    let server = Server::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("lost.json");
    let address = server.address.clone();
    let mut running = Command::new(env!("CARGO_BIN_EXE_djinn"))
        .args([
            "eval",
            "memory-pressure",
            "--config",
            "exp3_smoke",
            "--no-peers",
        ])
        .args(["--runs", "1", "--server", &address, "--output"])
        .arg(&output)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let client = server.client().await;
        let begin = Instant::now();
        // The experiment first runs sessions alone; the test deletes a session once many sessions are open.
        while begin.elapsed() < Duration::from_secs(600) {
            let sessions = client.sessions(None).await.unwrap();
            let waiting = sessions.iter().find(|session| session.state == "waiting");
            if let (true, Some(lost)) = (sessions.len() > 12, waiting) {
                let _ = client.session(lost.session.clone()).delete().await;
            }
            if running.try_wait().unwrap().is_some() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("the experiment does not end");
    });
    assert_eq!(running.wait().unwrap().code(), Some(2));
    let result = read(&output);
    assert_eq!(result["summary"]["pass"], false);
    let checks = result["summary"]["checks"].as_array().unwrap();
    let failed = checks.iter().find(|check| check["outcome"] == "fail");
    assert_eq!(failed.unwrap()["name"], "every session completed");
    let run = &result["runs"][0];
    assert!(run["sessions_completed"].as_u64() < Some(24), "{run}");
    assert!(!run["failures"].as_array().unwrap().is_empty());
}

#[test]
fn invalid_input_is_rejected_before_the_measurement() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("x.json");
    let output = output.to_str().unwrap();
    let config = folder.path().join("c.yaml");
    let refuse = |text: &str, parts: &[&str]| {
        fs::write(&config, text).unwrap();
        let config = config.to_str().unwrap();
        refused(
            &["eval", "steering", "--config", config, "--output", output],
            parts,
        );
    };
    refuse(
        "experiment: {inference: {promt_length: 3}}",
        &[
            "c.yaml",
            "experiment.inference.promt_length",
            "'prompt_length'",
        ],
    );
    refuse(
        "experiment: {activation_steering: {modification_type: rotate}}",
        &["modification_type", "'scale'"],
    );
    refused(
        &[
            "eval",
            "agents",
            "--config",
            "agent_smok",
            "--output",
            output,
        ],
        &["agent_smok", "agent_smoke"],
    );
    let agents = |more: &[&str], expect: &[&str]| {
        refused(
            &[&["eval", "agents", "--config", "agent_smoke"], more].concat(),
            expect,
        );
    };
    agents(&[], &["--output"]);
    agents(&["--output", "/proc/x/y.json"], &["/proc/x"]);
    agents(
        &["--output", output, "--server", "127.0.0.1:1"],
        &["127.0.0.1:1"],
    );
    refused(
        &["report", "--results", "no-such-folder", "--output", output],
        &["no-such-folder"],
    );
}

/// Checks that `djinn report` makes the tables in README.md and docs/results, and the report, from the kept
/// results.
#[test]
fn the_tables_and_the_report_are_up_to_date() {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report");
    for name in ["README.md", "docs/results/README.md"] {
        let copy = folder.path().join("copy.md");
        fs::copy(root().join(name), &copy).unwrap();
        ok(&[
            "report",
            "--results",
            root().join("docs/results/h200").to_str().unwrap(),
            "--output",
            report.to_str().unwrap(),
            "--table",
            copy.to_str().unwrap(),
        ]);
        let made = fs::read_to_string(&copy).unwrap();
        let kept = fs::read_to_string(root().join(name)).unwrap();
        assert!(made == kept, "run djinn report --table {name}");
    }
    let made = fs::read_to_string(report.join("analysis.md")).unwrap();
    let kept = fs::read_to_string(root().join("docs/results/h200/report/analysis.md")).unwrap();
    assert!(
        made == kept,
        "docs/results/h200/report is out of date: run djinn report"
    );
}
