//! Atomic writes: a file has its old content or its new content, never a mixture.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::disk;

/// Replaces the content of a file in one step: writes a temporary file in the same folder, syncs
/// it and renames it. The new file is readable by the user of the process alone, whatever the mode
/// of the old file was. Symbolic links are kept. A failed write leaves no temporary file.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let temporary = temporary_name(&path);
    let mut options = File::options();
    let mut file = disk::open_private(options.write(true).create_new(true), &temporary)?;
    let written = file
        .write_all(bytes)
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&temporary, &path));
    if written.is_err() {
        // The caller gets the first error, so this one is ignored.
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// Returns an unused temporary name in the folder of `path`.
fn temporary_name(path: &Path) -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let unique = NEXT.fetch_add(1, Ordering::Relaxed);
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}-{unique}.part", std::process::id()));
    name.into()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::write_atomically;

    #[test]
    fn readers_see_one_complete_version() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        write_atomically(&path, b"one").unwrap();
        std::thread::scope(|scope| {
            for n in 0..4u8 {
                scope.spawn({
                    let path = &path;
                    move || write_atomically(path, &[n; 9000]).unwrap()
                });
            }
        });
        let found = fs::read(&path).unwrap();
        assert!(found.len() == 9000 && found.iter().all(|b| *b == found[0]));
        // Neither replaced nor failed writes leave temporary files.
        assert!(write_atomically(&folder.path().join("missing/a"), b"x").is_err());
        assert!(write_atomically(folder.path(), b"x").is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
