//! The configurations that ship with Djinn.

use std::path::Path;

macro_rules! bundled {
    ($($name:literal),* $(,)?) => {
        const BUNDLED: &[(&str, &str)] = &[
            $(($name, include_str!(concat!("../../../../eval/configs/", $name, ".yaml")))),*
        ];
    };
}

bundled![
    "virt_mem_config",
    "virt_mem_smoke",
    "virt_mem_distributed",
    "virt_mem_l4",
    "exp3_osdi_llama",
    "exp3_osdi_full",
    "exp3_resume_llama",
    "exp3_smoke",
    "pressure_smoke",
    "agent_scaling",
    "agent_smoke",
];

/// Returns the names of the bundled configurations.
pub fn names() -> impl Iterator<Item = &'static str> {
    BUNDLED.iter().map(|(name, _)| *name)
}

/// Returns the text of a bundled configuration, named with or without `.yaml`.
pub fn by_name(path: &Path) -> Option<&'static str> {
    let name = path.to_str()?;
    let name = name.strip_suffix(".yaml").unwrap_or(name);
    let found = BUNDLED.iter().find(|(known, _)| *known == name);
    found.map(|(_, text)| *text)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::path::Path;

    use super::names;
    use crate::config::{ConfigError, EvalConfig};

    #[test]
    fn the_distributed_configuration_has_its_documented_values() {
        let config = EvalConfig::read(Path::new("virt_mem_distributed")).unwrap();
        assert_eq!(config.server_address().unwrap(), "192.168.1.100:5556");
        let experiment = &config.experiment;
        assert_eq!(experiment.model.model_id, "meta-llama/Llama-2-70b-hf");
        assert_eq!(experiment.inference.prompt_length, 512);
        assert_eq!(experiment.inference.max_seq_len, Some(4096));
        assert_eq!(experiment.inference.top_p, Some(0.9));
        assert_eq!(experiment.ring_buffer.capacity_gb, Some(48.0));
        assert_eq!(
            (
                experiment.measurement.runs,
                experiment.measurement.warmup_runs
            ),
            (5, 1)
        );
        assert_eq!(config.environment.budget_bytes(), Some(63_000_000_000));
        assert_eq!(config.output.metrics.len(), 4);
        let notes = config.notes(false, true).join("; ");
        for key in ["pin_memory_gb", "os_reserve_gb", "prefetch_workers"] {
            assert!(
                notes.contains(key),
                "no note says that {key} has no effect: {notes}"
            );
        }
    }

    #[test]
    fn smoke_budgets_are_below_the_size_of_the_bundled_weights() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/stories-7m");
        let weights = std::fs::metadata(folder.join("model.safetensors")).unwrap();
        for name in ["virt_mem_smoke", "pressure_smoke"] {
            let config = EvalConfig::read(Path::new(name)).unwrap();
            let budget = config.environment.budget_bytes().unwrap();
            assert!(budget < weights.len(), "{name}");
        }
    }

    #[test]
    fn all_bundled_configurations_can_be_read() {
        for name in names() {
            let config = EvalConfig::read(Path::new(name)).unwrap();
            assert!(!config.experiment.name.is_empty(), "{name}");
        }
        assert!(EvalConfig::read(Path::new("virt_mem_l4.yaml")).is_ok());
        let error = EvalConfig::read(Path::new("virt_mem_l5")).unwrap_err();
        let ConfigError::Unreadable { bundled, .. } = error else {
            panic!("{error}");
        };
        assert!(bundled.contains(&"virt_mem_l4"));
    }
}
