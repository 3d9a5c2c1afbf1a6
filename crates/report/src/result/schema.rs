//! Reading and writing of result files, and their JSON Schema.

use std::{fs, path::Path};

use serde_json::Value;
use serde_path_to_error::Segment;

use super::{
    file::{Baseline, ResultFile, VERSION},
    judge::summarize,
    summary::Summary,
};
use crate::error::ReportError;

/// Largest number of violations that an error lists.
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

/// Returns the violations that the types of a result cannot express, each with its path: `null` in place
/// of a number, and an unknown version.
fn violations(value: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let version = &value["version"];
    if version.is_u64() && *version != VERSION {
        found.push(format!(
            "/version: {version} is not supported; this program reads version {VERSION}"
        ));
    }
    find_null(value, "", &mut found);
    found.truncate(REPORTED);
    found
}

/// Finds every `null` outside of settings, which may hold any value.
fn find_null(value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Null => found.push(format!(
            "{path}: null is not a value; a number must be finite, and a field that was not measured is \
             left out"
        )),
        Value::Array(items) => {
            for (i, item) in items.iter().enumerate() {
                find_null(item, &format!("{path}/{i}"), found);
            }
        }
        Value::Object(fields) => {
            for (name, field) in fields.iter().filter(|(name, _)| *name != "settings") {
                find_null(field, &format!("{path}/{name}"), found);
            }
        }
        _ => {}
    }
}

/// Converts a JSON value to a result. An error names the path of the first field that does not fit.
fn typed(value: Value) -> Result<ResultFile, String> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path: String = error.path().iter().map(segment).collect();
        match &*path {
            "" => error.inner().to_string(),
            path => format!("{path}: {}", error.inner()),
        }
    })
}

fn segment(segment: &Segment) -> String {
    match segment {
        Segment::Seq { index } => format!("/{index}"),
        Segment::Map { key } => format!("/{key}"),
        Segment::Enum { variant } => format!("/{variant}"),
        Segment::Unknown => String::new(),
    }
}

impl ResultFile {
    /// Reads a result file. A file that does not match the schema is an error.
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
        typed(value).map_err(|violation| shape(vec![violation]))
    }

    /// Computes the summary and writes the file atomically. A number that is not finite is an error.
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
