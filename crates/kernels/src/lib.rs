//! CUDA kernels as PTX. The script `build-ptx` compiles the sources ahead of time, and the driver
//! compiles the PTX for its card. Building Djinn therefore needs no CUDA, and running Djinn needs
//! only a driver.

#![forbid(unsafe_code)]

/// PTX of one CUDA source file.
#[derive(Clone, Copy, Debug)]
pub struct KernelModule {
    /// Name of the source file without its extension.
    pub name: &'static str,
    /// Least compute capability, times ten. If several modules have the same name, a card
    /// uses the one with the highest capability that it supports.
    pub capability: u32,
    /// PTX text for the driver.
    pub ptx: &'static str,
}

macro_rules! modules {
    ($($name:literal for $capability:literal),* $(,)?) => {
        [$(KernelModule {
            name: $name,
            capability: $capability,
            ptx: include_str!(concat!("ptx/", $name, ".sm", $capability, ".ptx")),
        }),*]
    };
}

/// PTX of all CUDA source files.
pub const KERNEL_MODULES: [KernelModule; 21] = modules![
    "attention_prefill" for 80,
    "attention_decode" for 80,
    "attention_simple" for 80,
    "edit" for 80,
    "elementwise" for 80,
    "lookup" for 80,
    "position" for 80,
    "gemv_small_batch" for 80,
    "product_chain" for 80,
    "product_simple" for 80,
    "read_back" for 80,
    "reduce" for 80,
    "sample" for 80,
    "attention_prefill" for 90,
    "attention_decode" for 90,
    "elementwise" for 90,
    "lookup" for 90,
    "position" for 90,
    "gemv_small_batch" for 90,
    "product_chain" for 90,
    "sample" for 90,
];

impl KernelModule {
    /// Names of the kernels in the module.
    pub fn kernels(&self) -> impl Iterator<Item = &'static str> {
        let entries = self
            .ptx
            .lines()
            .filter_map(|line| line.split_once(".entry "));
        entries.map(|(_, name)| name.trim_end_matches('('))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use sha2::{Digest, Sha256};

    use super::{KERNEL_MODULES, KernelModule};

    fn source(name: &str) -> Vec<u8> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(name);
        std::fs::read(path).unwrap()
    }

    #[test]
    fn the_ptx_matches_its_sources() {
        for module in KERNEL_MODULES {
            let cu_file = format!("{}.cu", module.name);
            let headers = ["activation", "common", "dtype", "intrinsics", "tensor"];
            let headers = headers.map(|name| format!("{name}.cuh"));
            let sources = [&cu_file].into_iter().chain(&headers).map(String::as_str);
            let digest = Sha256::digest(sources.flat_map(source).collect::<Vec<u8>>());
            let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            let first = module.ptx.lines().next();
            let expect = format!("// source {hex}");
            assert_eq!(first, Some(expect.as_str()), "run crates/kernels/build-ptx");
        }
    }

    #[test]
    fn kernel_names_are_unique() {
        for capability in [80, 90] {
            let modules = KERNEL_MODULES
                .iter()
                .filter(|module| module.capability == capability);
            let mut names: Vec<&str> = modules.flat_map(KernelModule::kernels).collect();
            let count = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), count);
            assert!(names.contains(&"gemv_f16_16_8"), "{names:?}");
        }
    }
}
