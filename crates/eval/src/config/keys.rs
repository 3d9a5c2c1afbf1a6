//! Check of configuration keys. An unknown key is an error that suggests a similar key.

use serde_json::Value;

use super::{error::ConfigProblem, sections::EvalConfig};
use crate::baselines::NAMES;

/// Smallest similarity of a key that an error suggests.
const SIMILAR: f64 = 0.75;

/// Checks that every key exists in the schema of a configuration.
pub fn check(value: &Value) -> Result<(), ConfigProblem> {
    let schema = schemars::schema_for!(EvalConfig).to_value();
    let root = schema.clone();
    walk(value, &schema, &root, "")
}

fn walk(value: &Value, schema: &Value, root: &Value, path: &str) -> Result<(), ConfigProblem> {
    let schema = resolved(schema, root);
    match value {
        Value::Object(entries) => {
            let known = schema["properties"].as_object();
            for (key, inner) in entries {
                let here = match path {
                    "" => key.clone(),
                    _ => format!("{path}.{key}"),
                };
                let next = match known.map(|known| known.get(key)) {
                    Some(Some(next)) => next,
                    Some(None) => {
                        let names: Vec<&str> = known
                            .into_iter()
                            .flatten()
                            .map(|(k, _)| k.as_str())
                            .collect();
                        return Err(unknown(&here, key, &names));
                    }
                    None => {
                        // The only map without a schema is `baselines`; its keys are the baselines.
                        if !NAMES.contains(&key.as_str()) {
                            return Err(unknown(&here, key, NAMES));
                        }
                        &schema["additionalProperties"]
                    }
                };
                walk(inner, next, root, &here)?;
            }
            Ok(())
        }
        Value::Array(items) => {
            for (number, item) in items.iter().enumerate() {
                walk(item, &schema["items"], root, &format!("{path}[{number}]"))?;
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Follows references, and the first alternative of optional values, to the schema itself.
fn resolved<'s>(mut schema: &'s Value, root: &'s Value) -> &'s Value {
    loop {
        let inner = schema["anyOf"].as_array().and_then(|any| any.first());
        if let Some(inner) = inner {
            schema = inner;
        } else if let Some(name) = schema["$ref"].as_str() {
            let pointer = name.trim_start_matches('#');
            schema = root.pointer(pointer).unwrap_or(&Value::Null);
        } else {
            return schema;
        }
    }
}

fn unknown(path: &str, key: &str, known: &[&str]) -> ConfigProblem {
    let similar = known
        .iter()
        .map(|name| (strsim::jaro_winkler(key, name), *name))
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .filter(|(similarity, _)| *similarity >= SIMILAR);
    ConfigProblem::UnknownKey {
        key: path.to_owned(),
        similar: similar.map(|(_, name)| name.to_owned()),
        known: known.iter().map(|name| (*name).to_owned()).collect(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use crate::config::{ConfigProblem, EvalConfig};

    #[test]
    fn unknown_keys_are_rejected_with_a_suggestion() {
        let check = |text: &str, expect: &str, suggested: Option<&str>| {
            let problem = EvalConfig::parse(text).unwrap_err();
            let ConfigProblem::UnknownKey { key, similar, .. } = &problem else {
                panic!("{text}: {problem}");
            };
            assert_eq!((key.as_str(), similar.as_deref()), (expect, suggested));
        };
        check(
            "experiment: {inference: {promt_length: 3}}",
            "experiment.inference.promt_length",
            Some("prompt_length"),
        );
        check("experimnt: {}", "experimnt", Some("experiment"));
        check(
            "baselines: {hf_acelerate: {enabled: true}}",
            "baselines.hf_acelerate",
            Some("hf_accelerate"),
        );
        check(
            "baselines: {vllm: {enable: true}}",
            "baselines.vllm.enable",
            Some("enabled"),
        );
        check(
            "experiment: {server: {hots: a}}",
            "experiment.server.hots",
            Some("host"),
        );
        check(
            "targets: [{metric: spread, at_mst: 1}]",
            "targets[0].at_mst",
            Some("at_most"),
        );
        check("tuning: {zzz: 1}", "tuning.zzz", None);
    }

    #[test]
    fn invalid_yaml_and_wrong_types_are_syntax_errors() {
        for text in ["experiment: [", "experiment: {measurement: {runs: many}}"] {
            let problem = EvalConfig::parse(text).unwrap_err();
            assert!(matches!(problem, ConfigProblem::Syntax(_)), "{problem}");
        }
    }
}
