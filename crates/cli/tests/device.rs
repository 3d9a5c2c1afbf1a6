//! `--device`, `djinn doctor` and device benchmarks run as users run them.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{djinn, ok, refused, stderr, stdout};
use serde_json::Value;

/// Whether this machine has no CUDA driver; some tests need such a machine.
fn no_driver() -> bool {
    !djinn_device::cuda::driver_present()
}

/// Runs a command and parses its standard output as JSON.
fn json(args: &[&str]) -> Value {
    serde_json::from_str(&stdout(&ok(args))).unwrap()
}

#[test]
fn invalid_device_names_are_refused() {
    for name in ["gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1.5", "CPU"] {
        let parts = [&format!("'{name}'")[..], "neither auto, cpu nor cuda:N"];
        refused(&["run", "--device", name], &parts);
        refused(&["doctor", "--device", name], &parts);
        refused(&["bench", "link", "--device", name], &parts);
    }
}

#[test]
fn a_card_without_a_driver_is_refused_with_the_remedy() {
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
fn auto_selects_the_processor_without_a_driver() {
    if !no_driver() {
        return;
    }
    let stderr_of = |device: &[&str]| {
        let output = ok(&[&["run", "--max-tokens", "2"], device].concat());
        stderr(&output)
    };
    for flags in [&[][..], &["--device", "auto"]] {
        let stderr_text = stderr_of(flags);
        assert!(
            stderr_text.lines().any(|line| line == "device: cpu"),
            "{stderr_text}"
        );
        assert!(
            !stderr_text.to_lowercase().contains("cuda"),
            "{stderr_text}"
        );
    }
    let stderr_text = stderr_of(&["--device", "cpu"]);
    assert!(!stderr_text.contains("device: "), "{stderr_text}");
    let report = json(&["run", "--max-tokens", "2", "--json"]);
    assert_eq!(report["device"], "cpu");
    let plan = json(&["plan", "--context", "64", "--json"]);
    assert_eq!(plan["device"], "cpu");
}

#[test]
fn flags_without_effect_on_the_processor_are_reported() {
    let run = ["run", "--max-tokens", "2", "--device", "cpu"];
    let output = ok(&[&run[..], &["--host-memory", "1GB"]].concat());
    let stderr_text = stderr(&output);
    assert!(
        stderr_text.contains("--host-memory has no effect"),
        "{stderr_text}"
    );
    refused(&["run", "--host-memory", "lots"], &["'lots' is not a size"]);
}

#[test]
fn the_doctor_passes_a_machine_without_a_card() {
    let text = stdout(&ok(&["doctor", "--device", "cpu"]));
    for part in ["pass  processor", "memory", "swap", "NUMA", "huge pages"] {
        assert!(text.contains(part), "'{part}' is not in: {text}");
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
fn the_doctor_fails_a_missing_card() {
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
        "the remaining checks run too: {text}"
    );
    let stderr_text = stderr(&output);
    assert!(
        stderr_text.ends_with("checks failed: driver\n"),
        "{stderr_text}"
    );
    let output = djinn(&["doctor", "--device", "cuda:0", "--json"]);
    assert_eq!(output.status.code(), Some(2));
    let checks: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(checks[0]["verdict"], "fail");
}

#[test]
fn the_link_is_compared_with_the_threshold() {
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
    assert_eq!(
        stderr(&failed),
        "",
        "the verdict is printed once, on standard output"
    );

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
fn decode_is_measured_with_many_long_sessions() {
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
fn help_documents_the_device_flags() {
    let check = |command: &[&str], parts: &[&str]| {
        let text = stdout(&ok(&[command, &["--help"]].concat()));
        for part in parts {
            assert!(
                text.contains(part),
                "'{part}' is not in {command:?} --help: {text}"
            );
        }
    };
    check(&["doctor"], &["Examples:", "--threshold", "auto"]);
    check(&["bench", "link"], &["Examples:", "PASS", "cuda:0"]);
    check(&["run"], &["--host-memory", "cuda:N", "[default: auto]"]);
}
