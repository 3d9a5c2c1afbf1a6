//! Writer of one pushed file, which verifies its hash.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    sync::Arc,
};

use super::pushed::{FileOffer, PushStore};
use crate::ServeError;

/// Bytes read at a time to hash the part of an earlier push.
const READ_BYTES: usize = 1 << 20;

/// Writer of one pushed file. Dropping the writer keeps the bytes received so far.
pub struct PushWriter {
    store: Arc<PushStore>,
    offer: FileOffer,
    to: Option<File>,
    hasher: blake3::Hasher,
    at: u64,
}

impl PushWriter {
    /// Starts writing a file, or resumes where an earlier push was interrupted.
    pub fn open(store: &Arc<PushStore>, file: &FileOffer) -> Result<Self, ServeError> {
        store.claim(file)?;
        let mut writer = PushWriter {
            store: Arc::clone(store),
            offer: file.clone(),
            to: None,
            hasher: blake3::Hasher::new(),
            at: 0,
        };
        writer.resume().map_err(|error| store.io_error(&error))?;
        Ok(writer)
    }

    fn resume(&mut self) -> io::Result<()> {
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
        // The hash also covers the bytes of earlier pushes.
        let mut buffer = vec![0; READ_BYTES];
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

    /// Writes the next bytes. The bytes must start at the end of the previous ones.
    pub fn take(&mut self, offset: u64, data: &[u8]) -> Result<(), ServeError> {
        let (expect, bytes, name) = (self.at, self.offer.bytes, &self.offer.name);
        // Another client may have sent a part meanwhile. A new offer reports how much.
        if offset != expect {
            return Err(ServeError::Conflict(format!(
                "{name}: received byte {offset}, but expected byte {expect}; offer the files again"
            )));
        }
        if data.len() as u64 > bytes - expect {
            return Err(ServeError::Invalid(format!(
                "{name} exceeds the {bytes} bytes of its offer"
            )));
        }
        if let Some(file) = &mut self.to {
            file.write_all(data)
                .map_err(|error| self.store.io_error(&error))?;
            self.hasher.update(data);
        }
        self.at += data.len() as u64;
        Ok(())
    }

    /// Completes the file if its length and hash match the offer.
    pub fn finish(mut self) -> Result<(), ServeError> {
        let name = self.offer.name.clone();
        if self.at < self.offer.bytes {
            let (at, bytes) = (self.at, self.offer.bytes);
            return Err(ServeError::Invalid(format!(
                "{name} ended at byte {at} of {bytes}; push the rest"
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
                "{name} does not match its offer: the hash of the received bytes is {found}; push the file again"
            )));
        }
        let keep = || {
            file.sync_all()
                .and_then(|()| fs::rename(&part, self.store.blob(&self.offer)))
        };
        keep().map_err(|error| self.store.io_error(&error))
    }
}

impl Drop for PushWriter {
    fn drop(&mut self) {
        self.store.release(&self.offer);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use super::{FileOffer, PushStore, PushWriter};

    fn file(name: &str, data: &[u8]) -> FileOffer {
        FileOffer {
            name: name.to_owned(),
            bytes: data.len() as u64,
            hash: *blake3::hash(data).as_bytes(),
        }
    }

    #[test]
    fn an_interrupted_push_resumes_and_no_file_is_sent_twice() {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(PushStore::new(folder.path(), 1 << 20));
        let data = vec![7u8; 1000];
        let files = vec![file("config.json", b"{}"), file("model.safetensors", &data)];
        let offer = store.offer(files.clone()).unwrap();
        assert_eq!(offer.have, [0, 0]);
        let mut config = PushWriter::open(&store, &files[0]).unwrap();
        config.take(0, b"{}").unwrap();
        config.finish().unwrap();
        let mut model = PushWriter::open(&store, &files[1]).unwrap();
        model.take(0, &data[..600]).unwrap();
        assert!(PushWriter::open(&store, &files[1]).is_err(), "two at once");
        drop(model);
        assert!(store.finish(&files).is_err());
        let again = Arc::new(PushStore::new(folder.path(), 1 << 20));
        assert_eq!(again.offer(files.clone()).unwrap().have, [2, 600]);
        let mut model = PushWriter::open(&again, &files[1]).unwrap();
        assert!(model.take(0, &data).is_err(), "out of order");
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
    fn a_file_with_a_wrong_hash_is_discarded() {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(PushStore::new(folder.path(), 1 << 20));
        let files = vec![file("config.json", b"{}")];
        store.offer(files.clone()).unwrap();
        let mut writing = PushWriter::open(&store, &files[0]).unwrap();
        writing.take(0, b"[]").unwrap();
        assert!(writing.finish().is_err());
        assert_eq!(store.offer(files).unwrap().have, [0]);
    }

    #[test]
    fn file_names_that_are_paths_are_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let store = PushStore::new(folder.path(), 1 << 20);
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
