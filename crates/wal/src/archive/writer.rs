//! Writing an archive: beside its place until it is whole.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::{FRONT_BYTES, Front};
use crate::checksum::checksum;
use crate::{WalError, disk};

/// An archive that is being written. Dropped before it is finished it leaves nothing behind;
/// a process that is killed leaves `NAME.PID-N.tmp` beside the archive's place.
#[derive(Debug)]
pub struct ArchiveWriter {
    file: File,
    unfinished: PathBuf,
    path: PathBuf,
    replace: bool,
    front: Front,
    /// Where the next page goes.
    end: u64,
}

impl ArchiveWriter {
    /// Begins an archive that will be at `path`, in a folder that exists. A file that is there
    /// is replaced, when all is written, if `replace` says so.
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
        let file = File::create_new(&unfinished);
        let file = file.map_err(WalError::system("create", &unfinished))?;
        let writer = ArchiveWriter {
            file,
            unfinished,
            path: path.to_owned(),
            replace,
            front: Front {
                header_bytes: header.len() as u64,
                page_bytes,
                pages: 0,
                header_checksum: checksum(0, header),
            },
            end: (FRONT_BYTES + header.len()) as u64,
        };
        // What comes before the header is written last: without it this is no archive.
        writer.write_at(header, FRONT_BYTES as u64)?;
        Ok(writer)
    }

    /// Writes the next page. If that fails it may be tried again.
    pub fn write(&mut self, page: &[u8]) -> Result<(), WalError> {
        let (page_bytes, given) = (self.front.page_bytes, page.len() as u64);
        if given != page_bytes {
            return Err(WalError::PageSize {
                path: self.path.clone(),
                page_bytes,
                given,
            });
        }
        let sum = checksum(self.front.pages, page).to_le_bytes();
        self.write_at(page, self.end)?;
        self.write_at(&sum, self.end + page_bytes)?;
        self.front.pages += 1;
        self.end += page_bytes + sum.len() as u64;
        Ok(())
    }

    /// Puts the archive in its place, once it is on disk.
    pub fn finish(self) -> Result<(), WalError> {
        self.write_at(&self.front.to_bytes(), 0)?;
        // A page that failed and was not tried again may have left some of its bytes.
        self.file
            .set_len(self.end)
            .and_then(|()| self.file.sync_all())
            .map_err(WalError::system("sync", &self.unfinished))?;
        self.put_in_place()?;
        disk::sync_folder(disk::folder_of(&self.path))
    }

    fn put_in_place(&self) -> Result<(), WalError> {
        if !self.replace {
            // Unlike renaming this fails where there is a file, even one that came just now.
            if fs::hard_link(&self.unfinished, &self.path).is_ok() {
                // Dropping tries again.
                let _ = fs::remove_file(&self.unfinished);
                return Ok(());
            }
            // Or the filesystem has no links, like those of most memory sticks.
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
        // After renaming there is nothing under this name, and nobody else uses it.
        let _ = fs::remove_file(&self.unfinished);
    }
}

fn refuse_existing(path: &Path) -> Result<(), WalError> {
    // A link that leads nowhere is in the way too.
    match fs::symlink_metadata(path) {
        Ok(_) => Err(WalError::Exists {
            path: path.to_owned(),
        }),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(WalError::system("look at", path)(error)),
    }
}

/// Beside the archive's place, so that renaming stays on one filesystem.
fn unfinished_name(path: &Path) -> PathBuf {
    let mut name = path.file_name().map_or_else(OsString::new, OsString::from);
    let (pid, number) = (std::process::id(), disk::unique());
    name.push(format!(".{pid}-{number}.tmp"));
    path.with_file_name(name)
}
