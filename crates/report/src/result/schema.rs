//! The JSON Schema of result files, and files that are held to it, on writing and on reading.

use std::{fs, path::Path, sync::OnceLock};

use serde_json::Value;

use super::{Baseline, ResultFile, Summary, VERSION, judge::summarize};
use crate::ReportError;

/// Faults that are told of at most.
const TOLD: usize = 5;

/// The schema, as it stands beside the configurations.
pub fn schema() -> Value {
    let mut schema = schemars::schema_for!(ResultFile).to_value();
    schema["title"] = "A result of djinn eval".into();
    schema["properties"]["version"]["const"] = VERSION.into();
    without_null(&mut schema);
    schema
}

/// Takes `null` out of everything that may be left out. What is not there is left out; a number that is
/// none would be written as `null`, and must not pass for one that was not measured.
fn without_null(schema: &mut Value) {
    let is_null = |value: &Value| *value == "null" || value["type"] == "null";
    match schema {
        Value::Array(parts) => parts.iter_mut().for_each(without_null),
        Value::Object(parts) => {
            if let Some(Value::Array(types)) = parts.get_mut("type") {
                types.retain(|name| !is_null(name));
                if let [only] = &types[..] {
                    let only = only.clone();
                    parts.insert("type".to_owned(), only);
                }
            }
            if let Some(Value::Array(any)) = parts.get_mut("anyOf") {
                any.retain(|one| !is_null(one));
            }
            parts.values_mut().for_each(without_null);
        }
        _ => {}
    }
}

/// What is wrong with the shape of a value.
fn faults(value: &Value) -> Vec<String> {
    static VALIDATOR: OnceLock<jsonschema::Validator> = OnceLock::new();
    let validator = VALIDATOR
        .get_or_init(|| jsonschema::validator_for(&schema()).expect("the schema is well-formed"));
    let fault = |error: jsonschema::ValidationError<'_>| match error.instance_path().as_str() {
        "" => error.to_string(),
        path => format!("{path}: {error}"),
    };
    validator.iter_errors(value).take(TOLD).map(fault).collect()
}

impl ResultFile {
    /// Reads a file and holds it to the schema.
    pub fn read(path: &Path) -> Result<Self, ReportError> {
        let text = fs::read_to_string(path).map_err(|error| ReportError::File {
            path: path.to_owned(),
            error,
        })?;
        let value: Value = serde_json::from_str(&text).map_err(|error| ReportError::Json {
            path: path.to_owned(),
            reason: error.to_string(),
        })?;
        let shape = |faults: Vec<String>| ReportError::Shape {
            path: path.to_owned(),
            faults,
        };
        let faults = faults(&value);
        if !faults.is_empty() {
            return Err(shape(faults));
        }
        serde_json::from_value(value).map_err(|error| shape(vec![error.to_string()]))
    }

    /// Sums the runs up, holds all of it to the schema, and writes it: all of the file or nothing. A
    /// number that is none is refused.
    pub fn write(&mut self, path: &Path) -> Result<(), ReportError> {
        // What was said of fewer runs must not be held against those that are there now.
        self.baselines.iter_mut().for_each(Baseline::sum_up);
        self.summary = Summary::default();
        self.summary = summarize(self);
        let value = serde_json::to_value(&*self).expect("a result is JSON");
        let faults = faults(&value);
        if !faults.is_empty() {
            let path = path.to_owned();
            return Err(ReportError::Shape { path, faults });
        }
        let fault = |error| ReportError::File {
            path: path.to_owned(),
            error,
        };
        if let Some(folder) = path.parent().filter(|folder| *folder != Path::new("")) {
            fs::create_dir_all(folder).map_err(fault)?;
        }
        let text = serde_json::to_string_pretty(&value).expect("a result is JSON") + "\n";
        let beside = path.with_extension("json.part");
        let written = fs::write(&beside, text).and_then(|()| fs::rename(&beside, path));
        written.map_err(|error| {
            // Half a result is of use to nobody.
            let _ = fs::remove_file(&beside);
            fault(error)
        })
    }
}
