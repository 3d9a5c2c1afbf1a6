//! Archive writer: writes a temporary file that gets the archive's name when it is complete.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::{PREAMBLE_BYTES, Preamble};
use crate::checksum::checksum;
use crate::{WalError, disk};

/// Archive being written. Dropping the writer before [`ArchiveWriter::finish`] removes the
/// temporary file. A killed process leaves `NAME.PID-N.tmp` in the archive's folder.
#[derive(Debug)]
pub struct ArchiveWriter {
    file: File,
    unfinished: PathBuf,
    path: PathBuf,
    replace: bool,
    preamble: Preamble,
    /// Offset of the next page.
    end: u64,
}

impl ArchiveWriter {
    /// Starts an archive with the final name `path`, in an existing folder. Only the owner of the
    /// process can read the archive. With `replace`,
    /// [`ArchiveWriter::finish`] replaces a file of that name; otherwise such a file is an error.
    pub fn create(
        path: &Path,
        header: &[u8],
        page_bytes: u64,
        replace: bool,
    ) -> Result<ArchiveWriter, WalError> {
        if !replace {
            refuse_existing(path)?;
        }
        let unfinished = unfinished_name(path);
        let mut options = File::options();
        let file = disk::open_private(options.write(true).create_new(true), &unfinished);
        let file = file.map_err(WalError::system("create", &unfinished))?;
        let writer = ArchiveWriter {
            file,
            unfinished,
            path: path.to_owned(),
            replace,
            preamble: Preamble {
                header_bytes: header.len() as u64,
                page_bytes,
                pages: 0,
                header_checksum: checksum(0, header),
            },
            end: (PREAMBLE_BYTES + header.len()) as u64,
        };
        // The preamble is written last, because a file without it is not an archive.
        writer.write_at(header, PREAMBLE_BYTES as u64)?;
        Ok(writer)
    }

    /// Writes the next page. A failed write can be repeated.
    pub fn write(&mut self, page: &[u8]) -> Result<(), WalError> {
        let (page_bytes, given) = (self.preamble.page_bytes, page.len() as u64);
        if given != page_bytes {
            return Err(WalError::PageSize {
                path: self.path.clone(),
                page_bytes,
                given,
            });
        }
        let sum = checksum(self.preamble.pages, page).to_le_bytes();
        self.write_at(page, self.end)?;
        self.write_at(&sum, self.end + page_bytes)?;
        self.preamble.pages += 1;
        self.end += page_bytes + sum.len() as u64;
        Ok(())
    }

    /// Completes the archive, syncs it, and renames it to its final name.
    pub fn finish(self) -> Result<(), WalError> {
        self.write_at(&self.preamble.to_bytes(), 0)?;
        // A failed write that was not repeated may have left bytes after the last page.
        self.file
            .set_len(self.end)
            .and_then(|()| self.file.sync_all())
            .map_err(WalError::system("sync", &self.unfinished))?;
        self.rename_to_final()?;
        disk::sync_folder(disk::folder_of(&self.path))
    }

    fn rename_to_final(&self) -> Result<(), WalError> {
        if !self.replace {
            // A hard link fails if the name exists, even if another process just created it. A
            // rename does not.
            if fs::hard_link(&self.unfinished, &self.path).is_ok() {
                // If this fails, drop tries again.
                let _ = fs::remove_file(&self.unfinished);
                return Ok(());
            }
            // The name exists, or the filesystem has no hard links.
            refuse_existing(&self.path)?;
        }
        fs::rename(&self.unfinished, &self.path)
            .map_err(WalError::system("rename", &self.unfinished))
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), WalError> {
        let written = self.file.write_all_at(bytes, offset);
        written.map_err(|source| WalError::write(&self.path, source))
    }
}

impl Drop for ArchiveWriter {
    fn drop(&mut self) {
        // After the rename no file has this name, and no other writer uses it.
        let _ = fs::remove_file(&self.unfinished);
    }
}

/// Fails if a file or a link exists at `path`.
fn refuse_existing(path: &Path) -> Result<(), WalError> {
    // A dangling symbolic link counts as existing.
    match fs::symlink_metadata(path) {
        Ok(_) => Err(WalError::Exists {
            path: path.to_owned(),
        }),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(WalError::system("inspect", path)(error)),
    }
}

/// Returns a temporary name in the same folder, so that the rename stays on one filesystem.
fn unfinished_name(path: &Path) -> PathBuf {
    let mut name = path.file_name().map_or_else(OsString::new, OsString::from);
    let (pid, number) = (std::process::id(), disk::unique());
    name.push(format!(".{pid}-{number}.tmp"));
    path.with_file_name(name)
}
