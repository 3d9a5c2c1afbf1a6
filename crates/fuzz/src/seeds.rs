//! Seeds: small inputs in `testdata/fuzz/TARGET`, among them every input that once found a bug.
//!
//! A seed whose name starts with `slow-` is replayed, but no other inputs are made from it.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Returns the folder that holds `testdata`: the variable `DJINN_FUZZ_DATA`, else the source tree.
pub fn data_folder() -> PathBuf {
    match std::env::var_os("DJINN_FUZZ_DATA") {
        Some(folder) => folder.into(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."),
    }
}

/// Whether a seed takes so long that other inputs should not be made from it.
pub fn is_slow(name: &str) -> bool {
    name.starts_with("slow-")
}

/// Reads the seeds of a target, in order of their names.
pub fn seeds(target: &str) -> io::Result<Vec<(String, Vec<u8>)>> {
    let folder = data_folder().join("testdata/fuzz").join(target);
    let mut seeds = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        seeds.push((name, fs::read(entry.path())?));
    }
    seeds.sort();
    Ok(seeds)
}
