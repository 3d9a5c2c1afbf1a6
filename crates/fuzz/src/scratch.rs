//! Temporary folders for readers that take a path. They lie in memory where the system offers that.

use std::{fs, path::Path};

use tempfile::TempDir;

/// Folder of files in memory on Linux.
const IN_MEMORY: &str = "/dev/shm";

/// Creates an empty folder that is removed when the value is dropped.
pub fn folder() -> TempDir {
    let created = match Path::new(IN_MEMORY).is_dir() {
        true => tempfile::tempdir_in(IN_MEMORY),
        false => tempfile::tempdir(),
    };
    created.expect("the system can create a temporary folder")
}

/// Writes a file into a folder.
pub fn write(folder: &Path, name: &str, bytes: &[u8]) {
    fs::write(folder.join(name), bytes).expect("the temporary folder is writable");
}
