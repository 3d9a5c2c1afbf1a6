//! Partially downloaded files.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::listing::RemoteFile;
use crate::error::HubError;

pub(super) const BUFFER_BYTES: usize = 256 << 10;

/// Partially downloaded file. Every chunk updates the hash, so the file is not read again at the
/// end.
pub(super) struct PartialFile {
    path: PathBuf,
    file: File,
    bytes: u64,
    hash: Option<Sha256>,
}

impl PartialFile {
    /// Opens the partial file of an earlier download, or creates an empty one.
    pub(super) fn open(path: PathBuf, remote: &RemoteFile) -> Result<Self, HubError> {
        let mut options = OpenOptions::new();
        let opened = options.read(true).append(true).create(true).open(&path);
        let mut part = Self {
            file: opened.map_err(HubError::io("open", &path))?,
            path,
            bytes: 0,
            hash: remote.sha256.as_ref().map(|_| Sha256::new()),
        };
        part.bytes = part.length()?;
        if remote.bytes.is_some_and(|whole| part.bytes > whole) {
            part.restart()?;
        }
        if let Some(hash) = &mut part.hash {
            hash_all(&mut part.file, hash).map_err(HubError::io("read", &part.path))?;
        }
        Ok(part)
    }

    /// Returns the number of bytes so far.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn append(&mut self, chunk: &[u8]) -> Result<(), HubError> {
        let written = self.file.write_all(chunk);
        written.map_err(HubError::io("write", &self.path))?;
        self.bytes += chunk.len() as u64;
        if let Some(hash) = &mut self.hash {
            hash.update(chunk);
        }
        Ok(())
    }

    /// Removes all bytes.
    pub(super) fn restart(&mut self) -> Result<(), HubError> {
        let emptied = self.file.set_len(0);
        emptied.map_err(HubError::io("empty", &self.path))?;
        self.bytes = 0;
        self.hash = self.hash.as_ref().map(|_| Sha256::new());
        Ok(())
    }

    /// Verifies the file and moves it to its final path. Removes a file that fails the check,
    /// because the position of the damage is unknown.
    pub(super) fn publish(mut self, remote: &RemoteFile, path: &Path) -> Result<u64, HubError> {
        if let Err(wrong) = self.verify(remote) {
            fs::remove_file(&self.path).map_err(HubError::io("remove", &self.path))?;
            return Err(wrong);
        }
        // Without the sync, the rename could survive a power failure and the data could be lost.
        let synced = self.file.sync_all();
        synced.map_err(HubError::io("write", &self.path))?;
        fs::rename(&self.path, path).map_err(HubError::io("write", path))?;
        Ok(self.bytes)
    }

    fn verify(&mut self, remote: &RemoteFile) -> Result<(), HubError> {
        if let Some(want_bytes) = remote.bytes.filter(|want| *want != self.bytes) {
            return Err(HubError::WrongSize {
                file: remote.name.clone(),
                want_bytes,
                got_bytes: self.bytes,
            });
        }
        if let (Some(hash), Some(want)) = (self.hash.take(), &remote.sha256) {
            check_hash(hash, want, &remote.name)?;
        }
        Ok(())
    }

    fn length(&self) -> Result<u64, HubError> {
        let metadata = self.file.metadata();
        Ok(metadata.map_err(HubError::io("read", &self.path))?.len())
    }
}

/// Returns whether the hash of the file at `path` matches the listing; `false` if the listing has
/// no hash.
pub(super) fn is_complete(path: &Path, remote: &RemoteFile) -> Result<bool, HubError> {
    let Some(want) = &remote.sha256 else {
        return Ok(false);
    };
    let read = HubError::io("read", path);
    let mut hash = Sha256::new();
    let hashed = File::open(path).and_then(|mut file| hash_all(&mut file, &mut hash));
    hashed.map_err(read)?;
    Ok(check_hash(hash, want, &remote.name).is_ok())
}

fn check_hash(hash: Sha256, want: &str, file: &str) -> Result<(), HubError> {
    let digest = hash.finalize();
    let got: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    if got == want {
        return Ok(());
    }
    Err(HubError::WrongHash {
        file: file.to_owned(),
        want: want.to_owned(),
        got,
    })
}

fn hash_all(file: &mut File, hash: &mut Sha256) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(()),
            n => hash.update(&buffer[..n]),
        }
    }
}
