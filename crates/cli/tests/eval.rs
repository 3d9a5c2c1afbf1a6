//! Experiments and reports as a user runs them: all of them small, and results that somebody broke.

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

fn read(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Every experiment against a server of its own, with no Python to be found. Gives what it said on the way.
fn smoke(results: &Path, more: &[&str]) -> String {
    let mut flags = vec!["eval", "all", "--smoke", "--runs", "3"];
    flags.extend(["--python", "there-is-no-such-python"]);
    flags.extend(["--output", results.to_str().unwrap()]);
    flags.extend(more);
    let told = ok(&flags);
    assert_eq!(stdout(&told).matches("PASS").count(), 5, "{told:?}");
    stderr(&told)
}

/// As the client saw them, and what the engine took of that.
fn stops_are_told_twice(result: &Value) {
    for run in result["runs"].as_array().unwrap() {
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
            assert!(0.0 < inside && inside < all, "{inside} of {all}");
        }
    }
}

/// Measures again what has no result, what has one of something else, and what failed.
fn what_is_there_is_kept(results: &Path) {
    let path = |name: &str| results.join(format!("{name}.json"));
    let texts = || RESULTS.map(|name| fs::read_to_string(path(name)).unwrap());
    let before = texts();
    fs::remove_file(path("steering")).unwrap();
    let mut other = read(&path("resume_latency"));
    other["settings"]["experiment"]["breakpoints"]["repeats"] = json!(7);
    fs::write(path("resume_latency"), other.to_string()).unwrap();
    let mut failed = read(&path("virtual_memory"));
    failed["runs"][1]["logit_norm"] = json!(5.0);
    fs::write(path("virtual_memory"), failed.to_string()).unwrap();
    let said = smoke(results, &["--keep"]);
    assert_eq!(said.matches("kept: ").count(), 2, "{said}");
    let same = before
        .iter()
        .zip(texts())
        .map(|(before, after)| *before == after);
    assert_eq!(same.collect::<Vec<_>>(), [false, true, false, false, true]);
}

fn report(results: &Path, output: &Path) -> (bool, String) {
    let told = djinn(&[
        "report",
        "--results",
        results.to_str().unwrap(),
        "--output",
        output.to_str().unwrap(),
    ]);
    (told.status.success(), stdout(&told) + &stderr(&told))
}

#[test]
fn all_of_them_small_and_a_report_that_says_what_the_data_says() {
    let folder = tempfile::tempdir().unwrap();
    let results = folder.path().join("results");
    smoke(&results, &[]);
    for name in RESULTS {
        let result = read(&results.join(format!("{name}.json")));
        assert_eq!(result["runs"].as_array().unwrap().len(), 3, "{name}");
        assert_eq!(result["summary"]["pass"], true, "{name}");
        let address = result["environment"]["server"].as_str().unwrap();
        assert!(address.starts_with("127.0.0.1:"), "{name}: {address}");
        for baseline in result["baselines"].as_array().into_iter().flatten() {
            let ours =
                ["ring", "djin", "stat"].contains(&&baseline["baseline"].as_str().unwrap()[..4]);
            let expect = if ours { "ran" } else { "absent" };
            assert_eq!(baseline["status"], expect, "{baseline}");
        }
    }
    let streamed = read(&results.join("virtual_memory.json"));
    assert_eq!(streamed["runs"][0]["logit_norm"], 0.0);
    assert!(streamed["runs"][0]["stall_ms"].as_f64().unwrap() > 0.0);
    let lanes = |lane: &str| {
        let spans = streamed["timeline"]["spans"].as_array().unwrap();
        spans.iter().filter(|span| span["lane"] == lane).count()
    };
    assert!(lanes("copy") > 0 && lanes("compute") > 0);
    let paged = read(&results.join("memory_pressure.json"));
    assert!(paged["runs"][0]["paged_out_gb"].as_f64().unwrap() > 0.0);
    stops_are_told_twice(&read(&results.join("resume_latency.json")));

    let output = folder.path().join("report");
    let (passes, told) = report(&results, &output);
    assert!(passes, "{told}");
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
    broken(folder.path(), &results);
    what_is_there_is_kept(&results);
    compared(folder.path(), &results);
}

/// Whatever somebody did to a result, the report says so.
fn broken(folder: &Path, results: &Path) {
    type Break = fn(&mut Value);
    let check = |name: &str, file: &str, damage: Break, expect: &str| {
        let broken = folder.join(format!("broken-{name}"));
        fs::create_dir_all(&broken).unwrap();
        let mut result = read(&results.join(format!("{file}.json")));
        damage(&mut result);
        fs::write(broken.join("broken.json"), result.to_string()).unwrap();
        let output = broken.join("report");
        let (passes, told) = report(&broken.join("broken.json"), &output);
        assert!(!passes && told.contains("FAIL"), "{name}: {told}");
        let analysis = fs::read_to_string(output.join("analysis.md")).unwrap();
        assert!(
            analysis.contains("FAIL") && analysis.contains(expect),
            "{name}: {analysis}"
        );
    };
    let logits: Break = |result| result["runs"][1]["logit_norm"] = json!(5.0);
    check("logits", "virtual_memory", logits, "norm 5");
    let dropped: Break = |result| result["runs"][0]["sessions_completed"] = json!(23);
    check("session", "memory_pressure", dropped, "23 of 24");
    let tokens: Break = |result| result["runs"][0]["tokens_match"] = json!(false);
    check("tokens", "resume_latency", tokens, "other tokens");
    let summary: Break =
        |result| result["summary"]["metrics"]["total_time_ms"]["median"] = json!(1.0);
    check(
        "summary",
        "steering",
        summary,
        "is not what its runs come to",
    );

    let odd = folder.join("odd.json");
    fs::write(&odd, r#"{"version": 1, "experiment": "steering"}"#).unwrap();
    let output = folder.join("never");
    refused(
        &[
            "report",
            "--results",
            odd.to_str().unwrap(),
            "--output",
            output.to_str().unwrap(),
        ],
        &["odd.json", "not a result", "is a required property"],
    );
}

/// A run that takes twice as long is worse than noise, and the same one is not.
fn compared(folder: &Path, results: &Path) {
    let old = results.join("steering.json");
    let mut slower = read(&old);
    for run in slower["runs"].as_array_mut().unwrap() {
        run["total_time_ms"] = json!(run["total_time_ms"].as_f64().unwrap() * 10.0);
    }
    slower["summary"]["metrics"] = json!({});
    let path = folder.join("slower.json");
    fs::write(&path, slower.to_string()).unwrap();
    let check = |new: &Path, expect: bool| {
        let output = folder.join("compared");
        let told = ok(&[
            "report",
            "--results",
            new.to_str().unwrap(),
            "--against",
            old.to_str().unwrap(),
            "--output",
            output.to_str().unwrap(),
        ]);
        let told = stdout(&told);
        assert_eq!(!told.contains(" 0 worse"), expect, "{told}");
        assert!(output.join("comparison.md").is_file());
    };
    check(&path, true);
    check(&old, false);
}

/// A session that somebody takes away while the experiment runs is missed.
#[test]
fn ctrl_c_ends_all_of_them() {
    let folder = tempfile::tempdir().unwrap();
    let running = Command::new(env!("CARGO_BIN_EXE_djinn"))
        .args(["eval", "all", "--smoke", "--no-peers", "--output"])
        .arg(folder.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let mut running = running.unwrap();
    let mut said = BufReader::new(running.stderr.take().unwrap()).lines();
    said.by_ref()
        .find(|line| line.as_ref().unwrap().starts_with("[2 of 5]"))
        .unwrap()
        .unwrap();
    let interrupt = Command::new("kill")
        .args(["-INT", &running.id().to_string()])
        .status();
    assert!(interrupt.unwrap().success());
    let rest: Vec<String> = said.map(Result::unwrap).collect();
    assert_eq!(running.wait().unwrap().code(), Some(130), "{rest:?}");
    assert_eq!(rest.last().unwrap(), "djinn: interrupted");
    // What was measured before is there to go on from.
    assert!(folder.path().join("virtual_memory.json").is_file());
    assert!(!folder.path().join("agents.json").exists());
}

#[test]
fn a_session_that_is_lost_fails_the_experiment() {
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
        // Those that run alone come first; it is when all are there that one is taken away.
        while begin.elapsed() < Duration::from_secs(120) {
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
    let checks = result["summary"]["checks"].to_string();
    assert!(checks.contains("every session came to its end"), "{checks}");
    let run = &result["runs"][0];
    assert!(run["sessions_completed"].as_u64() < Some(24), "{run}");
    assert!(!run["failures"].as_array().unwrap().is_empty());
}

#[test]
fn bad_input_is_told_before_anything_is_measured() {
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
            "is it 'prompt_length'?",
        ],
    );
    refuse(
        "experiment: {activation_steering: {modification_type: rotate}}",
        &["modification_type", "only scale"],
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
    agents(&[], &["--output FILE.json"]);
    agents(&["--output", "/proc/x/y.json"], &["/proc/x"]);
    agents(
        &["--output", output, "--server", "127.0.0.1:1"],
        &["no server answers at 127.0.0.1:1"],
    );
    refused(
        &["report", "--results", "no-such-folder", "--output", output],
        &["no-such-folder"],
    );
}

/// The README's table is what the kept results say.
#[test]
fn the_readme_is_generated() {
    let folder = tempfile::tempdir().unwrap();
    let readme = folder.path().join("README.md");
    fs::copy(root().join("README.md"), &readme).unwrap();
    ok(&[
        "report",
        "--results",
        root().join("docs/results/h200").to_str().unwrap(),
        "--output",
        folder.path().join("report").to_str().unwrap(),
        "--table",
        readme.to_str().unwrap(),
    ]);
    let (found, kept) = (
        fs::read_to_string(&readme).unwrap(),
        fs::read_to_string(root().join("README.md")).unwrap(),
    );
    assert!(
        found.contains("measurements:begin") && found == kept,
        "djinn report --table README.md"
    );
    let made = fs::read_to_string(folder.path().join("report/analysis.md")).unwrap();
    let kept = fs::read_to_string(root().join("docs/results/h200/report/analysis.md")).unwrap();
    assert!(
        made == kept,
        "docs/results/h200/report is not what djinn report makes of the results"
    );
}
