//! Reading of configurations, and questions about them.

use std::{collections::BTreeMap, fs, path::Path};

use super::{
    bundled,
    check::metric_key,
    error::{ConfigError, ConfigProblem},
    keys,
    sections::EvalConfig,
};

impl EvalConfig {
    /// Reads a YAML file, or a bundled configuration by its name.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = match (fs::read_to_string(path), bundled::by_name(path)) {
            (Ok(text), _) => text,
            (Err(_), Some(text)) => text.to_owned(),
            (Err(error), None) => {
                return Err(ConfigError::Unreadable {
                    path: path.to_owned(),
                    error,
                    bundled: bundled::names().collect(),
                });
            }
        };
        Self::parse(&text).map_err(|problem| ConfigError::Invalid {
            path: path.to_owned(),
            problem,
        })
    }

    /// Parses and checks a configuration in YAML.
    pub fn parse(text: &str) -> Result<Self, ConfigProblem> {
        let value: serde_json::Value =
            serde_saphyr::from_str(text).map_err(|error| syntax(&error))?;
        keys::check(&value)?;
        let config: EvalConfig = serde_json::from_value(value).map_err(|error| syntax(&error))?;
        config.check()?;
        Ok(config)
    }

    /// Returns the configuration as the settings of a result file.
    pub fn settings(&self) -> BTreeMap<String, serde_json::Value> {
        match serde_json::to_value(self) {
            Ok(serde_json::Value::Object(entries)) => entries.into_iter().collect(),
            _ => BTreeMap::new(),
        }
    }

    /// Whether the terminal output shows a metric. All metrics are shown if `output.metrics` is empty.
    pub fn shows(&self, metric: &str) -> bool {
        let named = &self.output.metrics;
        named.is_empty() || named.iter().any(|name| metric_key(name) == Some(metric))
    }

    /// Returns the number of measured runs of a baseline or of Djinn.
    pub fn measured_runs(&self, baseline: &str) -> u32 {
        let own = self.baselines.get(baseline).and_then(|b| b.runs);
        own.unwrap_or(self.experiment.measurement.runs)
    }

    /// Whether a baseline is enabled.
    pub fn is_enabled(&self, baseline: &str) -> bool {
        self.baselines.get(baseline).is_some_and(|b| b.enabled)
    }

    /// Returns the address of the server, if the configuration names one.
    pub fn server_address(&self) -> Option<String> {
        let server = self.experiment.server.as_ref()?;
        Some(format!("{}:{}", server.host, server.port))
    }
}

fn syntax(error: &dyn std::fmt::Display) -> ConfigProblem {
    ConfigProblem::Syntax(error.to_string())
}
