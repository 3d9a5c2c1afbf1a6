//! Files that are there whole or not at all.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Writes a file beside the one it is to be, and renames it when it is on disk: whoever looks
/// sees all of the old one or all of the new one. A link stays one; what fails leaves nothing.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let beside = beside(&path);
    let mut file = File::create_new(&beside)?;
    let written = file
        .write_all(bytes)
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&beside, &path));
    if written.is_err() {
        // What went wrong first is what counts.
        let _ = fs::remove_file(&beside);
    }
    written
}

/// A name next to a file's that nobody else uses.
fn beside(path: &Path) -> PathBuf {
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
    fn the_old_one_or_the_new_one() {
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
        // Nothing is left of those that lost, nor of one that cannot be.
        assert!(write_atomically(&folder.path().join("missing/a"), b"x").is_err());
        assert!(write_atomically(folder.path(), b"x").is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
