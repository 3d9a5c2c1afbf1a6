//! CUDA kernels. The sources are compiled ahead by `build-ptx` and kept as PTX, text
//! that the driver compiles for its own card: building Djinn needs no CUDA, and running
//! it needs a driver alone.

#![forbid(unsafe_code)]

/// Every kernel.
pub const PTX: &str = include_str!("djinn.ptx");

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    #[test]
    fn the_text_is_of_these_sources() {
        let source = include_bytes!("djinn.cu");
        let digest = Sha256::digest(source);
        let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        let first = super::PTX.lines().next();
        assert_eq!(
            first,
            Some(format!("// source {hex}").as_str()),
            "run crates/kernels/build-ptx"
        );
    }
}
