//! Store of pushed models. Files are stored by their hash, so that no file is sent twice and an
//! interrupted push resumes.
//!
//! `blobs/HASH` is a complete file, `parts/HASH` an incomplete one, and `models/HASH/` a model:
//! hard links to blobs. A file gets its final name only when it is complete and its hash is
//! correct.

use std::{
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use crate::ServeError;

/// Largest number of files in a model.
const FILES_MAX: usize = 4096;

/// A file that a client offers to push.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileOffer {
    /// File name without a path.
    pub name: String,
    /// Length in bytes.
    pub bytes: u64,
    /// BLAKE3 hash of the content.
    pub hash: [u8; 32],
}

/// Reply to an offer: the bytes of each file that the server has.
pub struct PushOffer {
    /// Id of the push: a hash over all files.
    pub push: String,
    /// Bytes of each file that the server has.
    pub have: Vec<u64>,
}

/// Folder of pushed models.
pub struct PushStore {
    folder: PathBuf,
    /// Limit in bytes on a pushed model.
    bytes_max: u64,
    offers: Mutex<HashMap<String, Arc<Vec<FileOffer>>>>,
    /// Hashes of the files that are being written.
    writing: Mutex<Vec<blake3::Hash>>,
}

impl PushStore {
    /// Creates a store in a folder. The first push creates the folder.
    pub fn new(folder: &Path, bytes_max: u64) -> Self {
        PushStore {
            folder: folder.to_owned(),
            bytes_max,
            offers: Mutex::default(),
            writing: Mutex::default(),
        }
    }

    /// Folder of a pushed model.
    pub fn folder(&self, hash: &str) -> Result<PathBuf, ServeError> {
        let hash = blake3::Hash::from_hex(hash).map_err(|_| {
            ServeError::Invalid(
                "Invalid reference: pushed: is followed by 64 hexadecimal digits".to_owned(),
            )
        })?;
        let folder = self.folder.join("models").join(hash.to_hex().as_str());
        match folder.is_dir() {
            true => Ok(folder),
            false => Err(ServeError::NotFound(format!(
                "No pushed model {hash}; push it first"
            ))),
        }
    }

    /// Registers an offer and returns the bytes of each file that the server has.
    pub fn offer(&self, files: Vec<FileOffer>) -> Result<PushOffer, ServeError> {
        check(&files, self.bytes_max)?;
        let push = push_id(&files);
        for folder in ["blobs", "parts", "models"] {
            fs::create_dir_all(self.folder.join(folder)).map_err(|e| self.io_error(&e))?;
        }
        for file in files.iter().filter(|file| file.bytes == 0) {
            // A client never sends an empty file.
            match file.hash == *blake3::hash(b"").as_bytes() {
                true => fs::write(self.blob(file), b"").map_err(|e| self.io_error(&e))?,
                false => {
                    return Err(ServeError::Invalid(format!(
                        "{} has 0 bytes, but its hash is not the hash of an empty file; offer the file again",
                        file.name
                    )));
                }
            }
        }
        let have = files.iter().map(|file| self.have(file)).collect();
        let mut offers = self.offers.lock().unwrap_or_else(PoisonError::into_inner);
        // This limit bounds the memory of offers without a push.
        if offers.len() >= 1024 {
            offers.clear();
        }
        offers.insert(push.clone(), Arc::new(files));
        Ok(PushOffer { push, have })
    }

    pub(super) fn io_error(&self, error: &io::Error) -> ServeError {
        ServeError::Internal(format!("{}: {error}", self.folder.display()))
    }

    pub(super) fn blob(&self, file: &FileOffer) -> PathBuf {
        self.folder.join("blobs").join(hex(file))
    }

    pub(super) fn part(&self, file: &FileOffer) -> PathBuf {
        self.folder.join("parts").join(hex(file))
    }

    pub(super) fn have(&self, file: &FileOffer) -> u64 {
        if self.blob(file).is_file() {
            return file.bytes;
        }
        let part = fs::metadata(self.part(file)).map_or(0, |part| part.len());
        // A complete part that is not a blob had a wrong hash.
        if part >= file.bytes { 0 } else { part }
    }

    /// Files of an offer.
    pub fn offered(&self, push: &str) -> Result<Arc<Vec<FileOffer>>, ServeError> {
        let offers = self.offers.lock().unwrap_or_else(PoisonError::into_inner);
        let offered = offers.get(push).cloned();
        offered
            .ok_or_else(|| ServeError::NotFound("Unknown push: offer the files first".to_owned()))
    }

    /// Reserves a file for one writer.
    pub(super) fn claim(&self, file: &FileOffer) -> Result<(), ServeError> {
        let hash = blake3::Hash::from_bytes(file.hash);
        let mut writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        if writing.contains(&hash) {
            return Err(ServeError::Conflict(format!(
                "Another client is pushing {} now; retry later",
                file.name
            )));
        }
        writing.push(hash);
        Ok(())
    }

    /// Ends the reservation of a file.
    pub(super) fn release(&self, file: &FileOffer) {
        let hash = blake3::Hash::from_bytes(file.hash);
        let mut writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        writing.retain(|other| *other != hash);
    }

    /// Creates the model once all its files are complete, and returns its id.
    pub fn finish(&self, files: &[FileOffer]) -> Result<String, ServeError> {
        let push = push_id(files);
        if let Some(missing) = files.iter().find(|file| !self.blob(file).is_file()) {
            return Err(ServeError::Conflict(format!(
                "{} is incomplete; push its remaining bytes",
                missing.name
            )));
        }
        let folder = self.folder.join("models").join(&push);
        if folder.is_dir() {
            return Ok(push);
        }
        let link = || -> io::Result<()> {
            let half = self.folder.join("parts").join(format!("{push}.model"));
            if half.is_dir() {
                fs::remove_dir_all(&half)?;
            }
            fs::create_dir_all(&half)?;
            for file in files {
                fs::hard_link(self.blob(file), half.join(&file.name))?;
            }
            match fs::rename(&half, &folder) {
                Err(_) if folder.is_dir() => Ok(()),
                other => other,
            }
        };
        link().map_err(|error| self.io_error(&error))?;
        Ok(push)
    }
}

fn hex(file: &FileOffer) -> String {
    blake3::Hash::from_bytes(file.hash).to_hex().to_string()
}

/// Id of a model: a hash over the names and contents of its files.
fn push_id(files: &[FileOffer]) -> String {
    let mut sorted: Vec<&FileOffer> = files.iter().collect();
    sorted.sort_by(|a, b| a.name.cmp(&b.name));
    let mut hasher = blake3::Hasher::new();
    for file in sorted {
        hasher.update(&(file.name.len() as u64).to_le_bytes());
        hasher.update(file.name.as_bytes());
        hasher.update(&file.hash);
    }
    hasher.finalize().to_hex().to_string()
}

/// Rejects file names that are paths or not part of a model, and models above the size limit.
fn check(files: &[FileOffer], bytes_max: u64) -> Result<(), ServeError> {
    if files.is_empty() || files.len() > FILES_MAX {
        return Err(ServeError::Invalid(format!(
            "A model has 1 to {FILES_MAX} files, but {} were offered",
            files.len()
        )));
    }
    let mut names = std::collections::HashSet::new();
    for file in files {
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let known = [".json", ".safetensors", ".jinja", ".txt", ".model"];
        let is_name = file.name.len() <= 200
            && !file.name.starts_with('.')
            && file.name.chars().all(plain)
            && known.iter().any(|end| file.name.ends_with(end));
        if !is_name {
            return Err(ServeError::Invalid(format!(
                "'{}' is not a file of a model: expected a plain name that ends in {}",
                file.name.escape_debug().take(64).collect::<String>(),
                known.join(", ")
            )));
        }
        if !names.insert(&file.name) {
            return Err(ServeError::Invalid(format!(
                "The offer lists {} twice; list every file once",
                file.name
            )));
        }
    }
    let total = files
        .iter()
        .try_fold(0u64, |sum, file| sum.checked_add(file.bytes));
    match total {
        Some(total) if total <= bytes_max => Ok(()),
        _ => Err(ServeError::TooLarge(format!(
            "The model exceeds the limit of {bytes_max} bytes for pushed models; raise the server's limit, or register a folder"
        ))),
    }
}
