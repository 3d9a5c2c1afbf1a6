//! Choosing a device, and finding out what is wrong with it, as a user does.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{djinn, ok, refused, stderr, stdout};
use serde_json::Value;

/// What is said of a machine without a driver can only be tested on one.
fn no_driver() -> bool {
    !djinn_device::cuda::driver_present()
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&stdout(&ok(args))).unwrap()
}

#[test]
fn names_that_are_none_are_refused() {
    for name in ["gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1.5", "CPU"] {
        let parts = [&format!("'{name}'")[..], "neither auto, cpu nor cuda:N"];
        refused(&["run", "--device", name], &parts);
        refused(&["doctor", "--device", name], &parts);
        refused(&["bench", "link", "--device", name], &parts);
    }
}

#[test]
fn a_card_without_a_driver_is_refused_with_the_way_out() {
    if !no_driver() {
        return;
    }
    let parts = ["cuda:0", "driver", "--device cpu"];
    for command in [
        &["run"][..],
        &["trace", "--prompt", "A", "--capture", "logits"],
        &["plan"],
        &["selftest"],
        &["bench", "memory"],
        &["bench", "decode"],
        &["bench", "prefill", "--tokens", "8"],
        &["bench", "link"],
        &["bench", "stream"],
    ] {
        refused(&[command, &["--device", "cuda:0"]].concat(), &parts);
    }
    refused(&["run", "--device", "cuda:7"], &["cuda:7", "driver"]);
}

#[test]
fn auto_is_the_processor_where_there_is_no_driver() {
    if !no_driver() {
        return;
    }
    let said = |device: &[&str]| {
        let output = ok(&[&["run", "--max-tokens", "2"], device].concat());
        stderr(&output)
    };
    for flags in [&[][..], &["--device", "auto"]] {
        let said = said(flags);
        assert!(said.lines().any(|line| line == "device: cpu"), "{said}");
        assert!(!said.to_lowercase().contains("cuda"), "{said}");
    }
    let said = said(&["--device", "cpu"]);
    assert!(!said.contains("device: "), "{said}");
    let report = json(&["run", "--max-tokens", "2", "--json"]);
    assert_eq!(report["device"], "cpu");
    let plan = json(&["plan", "--context", "64", "--json"]);
    assert_eq!(plan["device"], "cpu");
}

#[test]
fn flags_without_effect_on_a_processor_are_noted() {
    let run = ["run", "--max-tokens", "2", "--device", "cpu"];
    let output = ok(&[&run[..], &["--host-memory", "1GB"]].concat());
    let said = stderr(&output);
    assert!(said.contains("--host-memory has no effect"), "{said}");
    refused(&["run", "--host-memory", "lots"], &["'lots' is not a size"]);
}

#[test]
fn a_doctor_passes_a_machine_without_a_card() {
    let text = stdout(&ok(&["doctor", "--device", "cpu"]));
    for part in ["pass  processor", "memory", "swap", "NUMA", "huge pages"] {
        assert!(text.contains(part), "{part} not in {text}");
    }
    assert!(!text.contains("driver") && !text.contains("\x1b"), "{text}");
    if !no_driver() {
        return;
    }
    let checks = json(&["doctor", "--json"]);
    let checks = checks.as_array().unwrap();
    for check in checks {
        assert!(["pass", "warn"].contains(&check["verdict"].as_str().unwrap()));
        assert!(!check["detail"].as_str().unwrap().is_empty(), "{check}");
        assert_eq!(
            check["remedy"].is_null(),
            check["verdict"] == "pass",
            "{check}"
        );
    }
    let driver = checks.iter().find(|check| check["check"] == "driver");
    let driver = driver.unwrap();
    assert_eq!(driver["verdict"], "warn");
    assert!(driver["remedy"].as_str().unwrap().contains("install"));
}

#[test]
fn a_doctor_fails_a_card_that_is_not_there() {
    if !no_driver() {
        return;
    }
    let output = djinn(&["doctor", "--device", "cuda:0"]);
    assert_eq!(output.status.code(), Some(2));
    let text = stdout(&output);
    assert!(text.starts_with("FAIL  driver"), "{text}");
    assert!(
        text.contains("→ for a card: install NVIDIA's driver"),
        "{text}"
    );
    assert!(
        text.contains("pass  processor"),
        "the rest is checked: {text}"
    );
    let said = stderr(&output);
    assert!(said.ends_with("checks failed: driver\n"), "{said}");
    let output = djinn(&["doctor", "--device", "cuda:0", "--json"]);
    assert_eq!(output.status.code(), Some(2));
    let checks: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(checks[0]["verdict"], "fail");
}

#[test]
fn a_link_is_held_against_a_threshold() {
    let quick = [
        "--workers",
        "1",
        "--chunk",
        "256KiB",
        "--seconds",
        "0.2",
        "--repeat",
        "1",
    ];
    let with = |threshold: &str, more: &[&str]| {
        let device = ["bench", "link", "--device", "cpu", "--threshold", threshold];
        djinn(&[&device[..], &quick, more].concat())
    };
    let passed = with("0.001", &[]);
    assert_eq!(passed.status.code(), Some(0), "{}", stderr(&passed));
    let text = stdout(&passed);
    let last = text.lines().last().unwrap();
    assert!(
        last.starts_with("PASS: ") && last.contains("at least 0.001 wanted"),
        "{text}"
    );

    let failed = with("99999", &[]);
    assert_eq!(failed.status.code(), Some(2));
    let text = stdout(&failed);
    assert!(text.lines().last().unwrap().starts_with("FAIL: "), "{text}");
    assert_eq!(stderr(&failed), "", "told once");

    let failed = with("99999", &["--json"]);
    assert_eq!(failed.status.code(), Some(2));
    let report: Value = serde_json::from_str(&stdout(&failed)).unwrap();
    assert_eq!(report["passed"], false);
    assert!(stderr(&failed).contains("FAIL: "));
    for wrong in ["0", "-1", "fast", "nan"] {
        let flag = format!("--threshold={wrong}");
        refused(&["bench", "link", &flag], &["GB/s above 0"]);
        refused(&["doctor", &flag], &["GB/s above 0"]);
    }
}

#[test]
fn many_long_sessions_are_timed() {
    let sessions = ["--sessions", "16", "--context", "400", "--tokens", "2"];
    let report = json(
        &[
            &["bench", "decode", "--device", "cpu", "--json"],
            &sessions[..],
        ]
        .concat(),
    );
    assert_eq!(report["sessions"], 16);
    assert_eq!(report["passes"], 2);
}

#[test]
fn help_teaches_devices() {
    let check = |command: &[&str], parts: &[&str]| {
        let text = stdout(&ok(&[command, &["--help"]].concat()));
        for part in parts {
            assert!(text.contains(part), "{command:?} has no '{part}': {text}");
        }
    };
    check(&["doctor"], &["Examples:", "--threshold", "auto"]);
    check(&["bench", "link"], &["Examples:", "PASS", "cuda:0"]);
    check(&["run"], &["--host-memory", "cuda:N", "[default: auto]"]);
}
