//! The schema file matches the code, and result files are validated against it. `UPDATE_REFERENCE=1 cargo
//! test -p djinn-report` writes the schema file.

#![allow(clippy::unwrap_used, missing_docs)]

mod samples;

use std::{fs, path::Path};

use djinn_report::{ReportError, ResultFile, schema, summarize};
use serde_json::{Value, json};

/// A change that makes a value invalid.
type Break<T> = fn(&mut T);

/// Whether an error lists a schema violation that contains all of the paths and names.
fn violates(error: &ReportError, places: &[&str]) -> bool {
    let ReportError::Schema { violations, .. } = error else {
        return false;
    };
    let is_it = |text: &String| places.iter().all(|place| text.contains(place));
    violations.iter().any(is_it)
}

#[test]
fn the_schema_file_matches_the_code() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../eval/result.schema.json");
    let text = serde_json::to_string_pretty(&schema()).unwrap() + "\n";
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, &text).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == text,
        "eval/result.schema.json is out of date: run UPDATE_REFERENCE=1 cargo test -p djinn-report"
    );
    assert!(
        schema()["$schema"]
            .as_str()
            .unwrap()
            .contains("json-schema.org")
    );
}

#[test]
fn written_results_can_be_read() {
    let dir = tempfile::tempdir().unwrap();
    for mut result in samples::all() {
        let path = dir.path().join("folders/that/are/made.json");
        result.write(&path).unwrap();
        let again = ResultFile::read(&path).unwrap();
        assert_eq!(again.summary.checks, result.summary.checks);
        assert!(summarize(&again).pass, "the summary agrees with the runs");
        let mut twice = again.clone();
        twice.write(&path).unwrap();
        assert_eq!(ResultFile::read(&path).unwrap(), again);
        assert!(!path.with_extension("json.part").exists());
    }
}

#[test]
fn written_results_match_the_schema() {
    let validator = jsonschema::validator_for(&schema()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.json");
    for mut result in samples::all() {
        result.settings.insert("nothing".to_owned(), Value::Null);
        result.write(&path).unwrap();
        let value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        if let Err(error) = validator.validate(&value) {
            panic!("{}: {error}", error.instance_path());
        }
        ResultFile::read(&path).unwrap();
    }
}

#[test]
fn the_summary_is_computed_when_a_result_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.json");
    let mut result = samples::virtual_memory("a", "m", 26.0);
    let later = result.runs.split_off(2);
    result.write(&path).unwrap();
    result.runs.extend(later);
    result.write(&path).unwrap();
    let again = ResultFile::read(&path).unwrap();
    assert!(again.summary.pass, "{:?}", again.summary.checks);
    assert_eq!(again.summary.metrics["per_token_ms"].count, 5);
    assert_eq!(again.baselines[1].summary.metrics["per_token_ms"].count, 3);
}

#[test]
fn numbers_that_are_not_finite_are_not_written() {
    let breaks: [(Break<ResultFile>, &str); 5] = [
        (
            |r| r.runs[1].logit_norm = Some(f64::NAN),
            "/runs/1/logit_norm",
        ),
        (
            |r| r.runs[0].total_time_ms = f64::INFINITY,
            "/runs/0/total_time_ms",
        ),
        (|r| r.budget_mb = Some(f64::NAN), "/budget_mb"),
        (
            |r| r.memory[3].kv_mb = Some(f64::NEG_INFINITY),
            "/memory/3/kv_mb",
        ),
        (
            |r| r.baselines[0].runs[0].stall_ms = Some(f64::NAN),
            "/baselines/0/runs/0/stall_ms",
        ),
    ];
    for (broken, place) in breaks {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        let mut result = samples::virtual_memory("a", "m", 26.0);
        broken(&mut result);
        let error = result.write(&path).unwrap_err();
        assert!(violates(&error, &[place]), "{place}: {error}");
        assert!(!path.exists());
    }
}

#[test]
fn invalid_files_are_rejected_with_the_path_of_the_violation() {
    let cases: [(Break<Value>, &[&str]); 9] = [
        (|v| v["extra"] = json!(1), &["extra"]),
        (
            |v| v["runs"][0]["per_tokn_ms"] = json!(1.0),
            &["/runs/0", "per_tokn_ms"],
        ),
        (
            |v| {
                v.as_object_mut().unwrap().remove("model");
            },
            &["model"],
        ),
        (
            |v| {
                v["runs"][1].as_object_mut().unwrap().remove("run_id");
            },
            &["/runs/1", "run_id"],
        ),
        (
            |v| v["runs"][2]["tokens"] = json!("many"),
            &["/runs/2/tokens", "many"],
        ),
        (|v| v["runs"][2]["tokens"] = json!(-1), &["/runs/2/tokens"]),
        (
            |v| v["runs"][2]["logit_norm"] = Value::Null,
            &["/runs/2/logit_norm", "null"],
        ),
        (|v| v["experiment"] = json!("tea"), &["/experiment"]),
        (|v| v["version"] = json!(2), &["/version"]),
    ];
    let validator = jsonschema::validator_for(&schema()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.json");
    samples::virtual_memory("a", "m", 26.0)
        .write(&path)
        .unwrap();
    let good: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    for (broken, places) in cases {
        let mut value = good.clone();
        broken(&mut value);
        fs::write(&path, value.to_string()).unwrap();
        let error = ResultFile::read(&path).unwrap_err();
        assert!(violates(&error, places), "{places:?}: {error}");
        assert!(!validator.is_valid(&value), "{places:?}");
    }
    fs::write(&path, "{\"runs\": [NaN]}").unwrap();
    let error = ResultFile::read(&path).unwrap_err();
    assert!(matches!(error, ReportError::Json { .. }), "{error}");
}
