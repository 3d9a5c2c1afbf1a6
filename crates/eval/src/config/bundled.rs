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
    "agent_scaling",
    "agent_smoke",
];

/// Their names.
pub fn names() -> impl Iterator<Item = &'static str> {
    BUNDLED.iter().map(|(name, _)| *name)
}

/// One of them, with or without `.yaml` behind its name.
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
    use crate::Config;

    #[test]
    fn all_of_them_can_be_read() {
        for name in names() {
            let config = Config::read(Path::new(name)).unwrap();
            assert!(!config.experiment.name.is_empty(), "{name}");
        }
        assert!(Config::read(Path::new("virt_mem_l4.yaml")).is_ok());
        let told = Config::read(Path::new("virt_mem_l5")).unwrap_err();
        assert!(told.to_string().contains("virt_mem_l4"), "{told}");
    }
}
