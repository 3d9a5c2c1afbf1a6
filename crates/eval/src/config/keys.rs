//! Keys that nobody reads are errors, with what may have been meant.

use serde_json::Value;

use super::Config;
use crate::baselines::NAMES;

/// How alike two keys are that may be meant for each other.
const ALIKE: f64 = 0.75;

/// Holds every key to the schema of a configuration.
pub fn check(value: &Value) -> Result<(), String> {
    let schema = schemars::schema_for!(Config).to_value();
    let root = schema.clone();
    walk(value, &schema, &root, "")
}

fn walk(value: &Value, schema: &Value, root: &Value, path: &str) -> Result<(), String> {
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
                        // A map of names: there is one, and its names are known too.
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

/// What a schema stands for: behind references, and of what may be left out what it is otherwise.
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

fn unknown(path: &str, key: &str, known: &[&str]) -> String {
    let alike = known
        .iter()
        .map(|name| (strsim::jaro_winkler(key, name), *name))
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .filter(|(alike, _)| *alike >= ALIKE);
    match alike {
        Some((_, name)) => format!("there is no key '{path}': is it '{name}'?"),
        None => format!("there is no key '{path}'; there are {}", known.join(", ")),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use crate::Config;

    #[test]
    fn keys_that_nobody_reads_are_told_with_what_may_be_meant() {
        let check = |text: &str, expect: &str| {
            let told = Config::parse(text).unwrap_err();
            assert!(told.contains(expect), "{told}");
        };
        check(
            "experiment: {inference: {promt_length: 3}}",
            "no key 'experiment.inference.promt_length': is it 'prompt_length'?",
        );
        check("experimnt: {}", "'experimnt': is it 'experiment'?");
        check(
            "baselines: {hf_acelerate: {enabled: true}}",
            "'baselines.hf_acelerate': is it 'hf_accelerate'?",
        );
        check(
            "baselines: {vllm: {enable: true}}",
            "'baselines.vllm.enable': is it 'enabled'?",
        );
        check("experiment: {server: {hots: a}}", "is it 'host'?");
        check(
            "targets: [{metric: spread, at_mst: 1}]",
            "'targets[0].at_mst': is it 'at_most'?",
        );
        check(
            "tuning: {zzz: 1}",
            "there is no key 'tuning.zzz'; there are",
        );
        check("experiment: {measurement: {runs: 0}}", "at least one run");
        check("experiment: {measurement: {runs: many}}", "invalid type");
        check(
            "targets: [{metric: spread}]",
            "neither at_least nor at_most",
        );
        check("experiment: [", "");
    }
}
