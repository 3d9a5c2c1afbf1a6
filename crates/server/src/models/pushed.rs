//! Models that clients pushed: files by what is in them, so that nothing is sent twice and a push that
//! broke goes on.
//!
//! `blobs/HASH` is a whole file, `parts/HASH` one that is still coming, and `models/HASH/` a model: names
//! that are the blobs. Nothing appears under its own name before it is whole and its hash is right.

use std::{
    collections::HashMap,
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use crate::ServeError;

/// Files of a model at most.
const FILES: usize = 4096;
/// Bytes read at a time where a part has to be hashed again.
const READ: usize = 1 << 20;

/// A file of a model that is offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileOffer {
    /// Its name, no path.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// What is in it.
    pub hash: [u8; 32],
}

/// What was offered, and how far each file has come.
pub struct Offer {
    /// Names the push.
    pub push: String,
    /// Bytes of each file that are here.
    pub have: Vec<u64>,
}

/// The folder of pushed models.
pub struct Pushed {
    folder: PathBuf,
    most: u64,
    offers: Mutex<HashMap<String, Arc<Vec<FileOffer>>>>,
    /// Blobs that somebody writes.
    writing: Mutex<Vec<blake3::Hash>>,
}

impl Pushed {
    /// Opens a folder; it is made when something is pushed.
    pub fn open(folder: &Path, most: u64) -> Result<Self, ServeError> {
        Ok(Pushed {
            folder: folder.to_owned(),
            most,
            offers: Mutex::default(),
            writing: Mutex::default(),
        })
    }

    /// The folder of a model that is here.
    pub fn folder(&self, hash: &str) -> Result<PathBuf, ServeError> {
        let hash = blake3::Hash::from_hex(hash)
            .map_err(|_| ServeError::Invalid("pushed: wants 64 hexadecimal digits".to_owned()))?;
        let folder = self.folder.join("models").join(hash.to_hex().as_str());
        match folder.is_dir() {
            true => Ok(folder),
            false => Err(ServeError::NotFound(format!(
                "no model {hash} was pushed here"
            ))),
        }
    }

    /// What of some files is here.
    pub fn offer(&self, files: Vec<FileOffer>) -> Result<Offer, ServeError> {
        check(&files, self.most)?;
        let push = name_of(&files);
        for folder in ["blobs", "parts", "models"] {
            fs::create_dir_all(self.folder.join(folder)).map_err(|e| self.broken(&e))?;
        }
        for file in files.iter().filter(|file| file.bytes == 0) {
            // There is nothing to send of these.
            match file.hash == *blake3::hash(b"").as_bytes() {
                true => fs::write(self.blob(file), b"").map_err(|e| self.broken(&e))?,
                false => {
                    let why = format!("{} is empty, and its hash is of something", file.name);
                    return Err(ServeError::Invalid(why));
                }
            }
        }
        let have = files.iter().map(|file| self.have(file)).collect();
        let mut offers = self.offers.lock().unwrap_or_else(PoisonError::into_inner);
        // Offers that nobody took up make way.
        if offers.len() >= 1024 {
            offers.clear();
        }
        offers.insert(push.clone(), Arc::new(files));
        Ok(Offer { push, have })
    }

    fn broken(&self, error: &io::Error) -> ServeError {
        ServeError::Internal(format!("{}: {error}", self.folder.display()))
    }

    fn blob(&self, file: &FileOffer) -> PathBuf {
        self.folder.join("blobs").join(hex(file))
    }

    fn part(&self, file: &FileOffer) -> PathBuf {
        self.folder.join("parts").join(hex(file))
    }

    fn have(&self, file: &FileOffer) -> u64 {
        if self.blob(file).is_file() {
            return file.bytes;
        }
        let part = fs::metadata(self.part(file)).map_or(0, |part| part.len());
        // One that is as long as it should be and is no blob was wrong.
        if part >= file.bytes { 0 } else { part }
    }

    /// The files of an offer.
    pub fn offered(&self, push: &str) -> Result<Arc<Vec<FileOffer>>, ServeError> {
        let offers = self.offers.lock().unwrap_or_else(PoisonError::into_inner);
        let offered = offers.get(push).cloned();
        offered.ok_or_else(|| {
            ServeError::NotFound("nothing of that kind was offered: offer it first".to_owned())
        })
    }

    /// Begins to write a file, or goes on where it broke.
    pub fn write(self: &Arc<Self>, file: &FileOffer) -> Result<Writing, ServeError> {
        let hash = blake3::Hash::from_bytes(file.hash);
        {
            let mut writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
            if writing.contains(&hash) {
                return Err(ServeError::Conflict(format!(
                    "{} is being pushed by another",
                    file.name
                )));
            }
            writing.push(hash);
        }
        let mut made = Writing {
            store: Arc::clone(self),
            offer: file.clone(),
            to: None,
            hasher: blake3::Hasher::new(),
            at: 0,
        };
        made.open().map_err(|error| self.broken(&error))?;
        Ok(made)
    }

    /// Every file is here: the model is.
    pub fn finish(&self, files: &[FileOffer]) -> Result<String, ServeError> {
        let push = name_of(files);
        if let Some(missing) = files.iter().find(|file| !self.blob(file).is_file()) {
            return Err(ServeError::Conflict(format!(
                "{} has not come whole",
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
        link().map_err(|error| self.broken(&error))?;
        Ok(push)
    }
}

fn hex(file: &FileOffer) -> String {
    blake3::Hash::from_bytes(file.hash).to_hex().to_string()
}

/// A model's name: by the names of its files and what is in them.
fn name_of(files: &[FileOffer]) -> String {
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

/// Refuses names that are paths, what no model has, and more than is taken.
fn check(files: &[FileOffer], most: u64) -> Result<(), ServeError> {
    if files.is_empty() || files.len() > FILES {
        return Err(ServeError::Invalid(format!(
            "a model has from 1 to {FILES} files"
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
                "'{}' is no file of a model: a plain name that ends in {}",
                file.name.escape_debug().take(64).collect::<String>(),
                known.join(", ")
            )));
        }
        if !names.insert(&file.name) {
            return Err(ServeError::Invalid(format!("{} is there twice", file.name)));
        }
    }
    let total = files
        .iter()
        .try_fold(0u64, |sum, file| sum.checked_add(file.bytes));
    match total {
        Some(total) if total <= most => Ok(()),
        _ => Err(ServeError::TooLarge(format!(
            "a pushed model may have {most} bytes"
        ))),
    }
}

/// A file that is coming.
pub struct Writing {
    store: Arc<Pushed>,
    offer: FileOffer,
    to: Option<File>,
    hasher: blake3::Hasher,
    at: u64,
}

impl Writing {
    fn open(&mut self) -> io::Result<()> {
        if self.store.blob(&self.offer).is_file() {
            self.at = self.offer.bytes;
            return Ok(());
        }
        let path = self.store.part(&self.offer);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        let have = self.store.have(&self.offer);
        file.set_len(have)?;
        // What came before has to be hashed again: it may lie there for years.
        let mut buffer = vec![0; READ];
        loop {
            match file.read(&mut buffer)? {
                0 => break,
                read => drop(self.hasher.update(&buffer[..read])),
            }
        }
        file.seek(SeekFrom::Start(have))?;
        (self.at, self.to) = (have, Some(file));
        Ok(())
    }

    /// Takes the next bytes, which have to follow those before.
    pub fn take(&mut self, offset: u64, data: &[u8]) -> Result<(), ServeError> {
        let (expect, bytes, name) = (self.at, self.offer.bytes, &self.offer.name);
        // Another may have sent some of it meanwhile: an offer says how much.
        if offset != expect {
            return Err(ServeError::Conflict(format!(
                "{name}: byte {offset} came where {expect} was next"
            )));
        }
        if data.len() as u64 > bytes - expect {
            return Err(ServeError::Invalid(format!(
                "{name} is longer than the {bytes} bytes it was offered with"
            )));
        }
        if let Some(file) = &mut self.to {
            file.write_all(data)
                .map_err(|error| self.store.broken(&error))?;
            self.hasher.update(data);
        }
        self.at += data.len() as u64;
        Ok(())
    }

    /// The file is whole, if it is what was offered.
    pub fn finish(mut self) -> Result<(), ServeError> {
        let name = self.offer.name.clone();
        if self.at < self.offer.bytes {
            let (at, bytes) = (self.at, self.offer.bytes);
            return Err(ServeError::Invalid(format!(
                "{name} ended at byte {at} of {bytes}"
            )));
        }
        let Some(file) = self.to.take() else {
            return Ok(());
        };
        let part = self.store.part(&self.offer);
        let found = self.hasher.finalize();
        if found.as_bytes() != &self.offer.hash {
            let _ = fs::remove_file(&part);
            return Err(ServeError::Invalid(format!(
                "{name} is not what was offered: its hash is {found}"
            )));
        }
        let keep = || {
            file.sync_all()
                .and_then(|()| fs::rename(&part, self.store.blob(&self.offer)))
        };
        keep().map_err(|error| self.store.broken(&error))
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        let mut writing = self
            .store
            .writing
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let hash = blake3::Hash::from_bytes(self.offer.hash);
        writing.retain(|other| *other != hash);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use super::{FileOffer, Pushed};

    fn file(name: &str, data: &[u8]) -> FileOffer {
        FileOffer {
            name: name.to_owned(),
            bytes: data.len() as u64,
            hash: *blake3::hash(data).as_bytes(),
        }
    }

    #[test]
    fn a_push_that_broke_goes_on_and_is_not_sent_twice() {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(Pushed::open(folder.path(), 1 << 20).unwrap());
        let data = vec![7u8; 1000];
        let files = vec![file("config.json", b"{}"), file("model.safetensors", &data)];
        let offer = store.offer(files.clone()).unwrap();
        assert_eq!(offer.have, [0, 0]);
        let mut config = store.write(&files[0]).unwrap();
        config.take(0, b"{}").unwrap();
        config.finish().unwrap();
        let mut model = store.write(&files[1]).unwrap();
        model.take(0, &data[..600]).unwrap();
        assert!(store.write(&files[1]).is_err(), "two at once");
        drop(model);
        assert!(store.finish(&files).is_err());
        let again = Arc::new(Pushed::open(folder.path(), 1 << 20).unwrap());
        assert_eq!(again.offer(files.clone()).unwrap().have, [2, 600]);
        let mut model = again.write(&files[1]).unwrap();
        assert!(model.take(0, &data).is_err(), "not in order");
        model.take(600, &data[600..]).unwrap();
        assert!(model.take(1000, b"more").is_err());
        model.finish().unwrap();
        let push = again.finish(&files).unwrap();
        assert_eq!(push, offer.push);
        assert_eq!(again.offer(files.clone()).unwrap().have, [2, 1000]);
        let model = again.folder(&push).unwrap();
        assert_eq!(
            std::fs::read(model.join("model.safetensors")).unwrap(),
            data
        );
    }

    #[test]
    fn what_is_not_as_offered_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(Pushed::open(folder.path(), 1 << 20).unwrap());
        let files = vec![file("config.json", b"{}")];
        store.offer(files.clone()).unwrap();
        let mut writing = store.write(&files[0]).unwrap();
        writing.take(0, b"[]").unwrap();
        assert!(writing.finish().is_err());
        assert_eq!(store.offer(files).unwrap().have, [0]);
    }

    #[test]
    fn names_that_are_paths_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let store = Pushed::open(folder.path(), 1 << 20).unwrap();
        for name in [
            "../x.json",
            "a/b.json",
            "/x.json",
            ".json",
            "x",
            "x.py",
            "x.bin",
            "a\0.json",
            "",
        ] {
            assert!(store.offer(vec![file(name, b"")]).is_err(), "{name}");
        }
        let big = FileOffer {
            bytes: u64::MAX,
            ..file("a.json", b"")
        };
        assert!(
            store
                .offer(vec![
                    big.clone(),
                    FileOffer {
                        name: "b.json".into(),
                        ..big
                    }
                ])
                .is_err()
        );
        assert!(
            store
                .offer(vec![file("a.json", b"1"), file("a.json", b"1")])
                .is_err()
        );
        assert!(store.folder("../../etc").is_err());
    }
}
