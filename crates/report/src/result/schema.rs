//! JSON Schema of result files. Files are validated when they are read and written.

use std::{fs, path::Path, sync::OnceLock};

use serde_json::Value;

use super::{
    file::{Baseline, ResultFile, VERSION},
    judge::summarize,
    summary::Summary,
};
use crate::error::ReportError;

/// Largest number of schema violations that an error lists.
const REPORTED: usize = 5;

/// Returns the JSON Schema of result files; `eval/result.schema.json` is a copy of it.
pub fn schema() -> Value {
    let mut schema = schemars::schema_for!(ResultFile).to_value();
    schema["title"] = "Result file of djinn eval".into();
    schema["properties"]["version"]["const"] = VERSION.into();
    without_null(&mut schema);
    schema
}

/// Removes `null` from the types of optional fields. Absent fields are omitted from a file; a `null` would
/// be a number that is not finite, which must not pass as "not measured".
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

/// Returns the schema violations of a value, each with its path.
fn violations(value: &Value) -> Vec<String> {
    static VALIDATOR: OnceLock<jsonschema::Validator> = OnceLock::new();
    let validator = VALIDATOR
        .get_or_init(|| jsonschema::validator_for(&schema()).expect("the schema is well-formed"));
    let fault = |error: jsonschema::ValidationError<'_>| match error.instance_path().as_str() {
        "" => error.to_string(),
        path => format!("{path}: {error}"),
    };
    validator
        .iter_errors(value)
        .take(REPORTED)
        .map(fault)
        .collect()
}

impl ResultFile {
    /// Reads a result file and validates it against the schema.
    pub fn read(path: &Path) -> Result<Self, ReportError> {
        let text = fs::read_to_string(path).map_err(|error| ReportError::File {
            path: path.to_owned(),
            error,
        })?;
        let value: Value = serde_json::from_str(&text).map_err(|error| ReportError::Json {
            path: path.to_owned(),
            reason: error.to_string(),
        })?;
        let shape = |violations: Vec<String>| ReportError::Schema {
            path: path.to_owned(),
            violations,
        };
        let violations = violations(&value);
        if !violations.is_empty() {
            return Err(shape(violations));
        }
        serde_json::from_value(value).map_err(|error| shape(vec![error.to_string()]))
    }

    /// Computes the summary, validates the result against the schema, and writes the file atomically.
    /// Numbers that are not finite are an error.
    pub fn write(&mut self, path: &Path) -> Result<(), ReportError> {
        // A stale summary would fail the check that compares it with the runs.
        self.baselines.iter_mut().for_each(Baseline::sum_up);
        self.summary = Summary::default();
        self.summary = summarize(self);
        let value = serde_json::to_value(&*self).expect("a result serializes to JSON");
        let violations = violations(&value);
        if !violations.is_empty() {
            let path = path.to_owned();
            return Err(ReportError::Schema { path, violations });
        }
        let file_error = |error| ReportError::File {
            path: path.to_owned(),
            error,
        };
        if let Some(folder) = path.parent().filter(|folder| *folder != Path::new("")) {
            fs::create_dir_all(folder).map_err(file_error)?;
        }
        let text =
            serde_json::to_string_pretty(&value).expect("a result serializes to JSON") + "\n";
        let part = path.with_extension("json.part");
        let written = fs::write(&part, text).and_then(|()| fs::rename(&part, path));
        written.map_err(|error| {
            // Do not leave a partial file behind.
            let _ = fs::remove_file(&part);
            file_error(error)
        })
    }
}
