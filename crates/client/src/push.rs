//! Push of a model to a server: sends only the missing bytes, in order, with read-ahead.

use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    sync::Arc,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use bytes::Bytes;
use djinn_wire::{ErrorCode, v1};
use tokio::sync::mpsc;
use tokio_stream::Stream;

use crate::{connection::GrpcConnection, error::Error};

/// Bytes of one part.
const PART_BYTES: usize = 1 << 20;
/// Parts that are read ahead of sending.
const READ_AHEAD: usize = 8;
/// Interval of progress reports.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);
/// File extensions of a model; other files of a folder are not sent.
const EXTENSIONS: [&str; 5] = [".json", ".safetensors", ".jinja", ".txt", ".model"];

/// Result of a push.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Push {
    /// Reference to register the model with: `pushed:HASH`.
    pub reference: String,
    /// Number of files.
    pub files: usize,
    /// Bytes of all files.
    pub bytes: u64,
    /// Bytes that were sent.
    pub sent: u64,
}

/// Progress of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushProgress {
    /// Files are being hashed: bytes done, and bytes in total.
    Hashing(u64, u64),
    /// Missing bytes are being sent: bytes done, and bytes in total.
    Sending(u64, u64),
}

/// A file to push.
struct PushSource {
    path: PathBuf,
    offer: v1::PushFile,
}

pub(crate) async fn push(
    connection: &GrpcConnection,
    folder: &Path,
    mut progress: impl FnMut(PushProgress),
) -> Result<Push, Error> {
    let paths = files(folder)?;
    let total: u64 = paths.iter().map(|(_, bytes)| bytes).sum();
    let mut sources = Vec::with_capacity(paths.len());
    let mut hashed = 0;
    for (path, bytes) in paths {
        progress(PushProgress::Hashing(hashed, total));
        let source = tokio::task::spawn_blocking(move || hash(path, bytes)).await;
        sources.push(source.map_err(|error| Error::new(ErrorCode::Internal, error.to_string()))??);
        hashed += bytes;
    }
    progress(PushProgress::Hashing(total, total));
    let asked = v1::OfferRequest {
        files: sources.iter().map(|source| source.offer.clone()).collect(),
    };
    let files = sources.len();
    let offer = connection
        .one(connection.models_service().offer(asked))
        .await?;
    if offer.have.len() != files {
        let text = "Unexpected reply of the server: the reply does not report every offered file";
        return Err(Error::new(ErrorCode::Internal, text));
    }
    let done = |sent| Push {
        reference: format!("pushed:{}", offer.push),
        files,
        bytes: total,
        sent,
    };
    if offer.complete {
        return Ok(done(0));
    }
    let missing = total - offer.have.iter().sum::<u64>().min(total);
    let sent = send(connection, sources, &offer, missing, &mut progress).await?;
    Ok(done(sent))
}

/// Sends the missing bytes and returns their number.
async fn send(
    connection: &GrpcConnection,
    sources: Vec<PushSource>,
    offer: &v1::OfferReply,
    missing: u64,
    progress: &mut impl FnMut(PushProgress),
) -> Result<u64, Error> {
    let (to_server, parts) = mpsc::channel(READ_AHEAD);
    let sent = Arc::new(AtomicU64::new(0));
    let (push, have) = (offer.push.clone(), offer.have.clone());
    let reader = tokio::task::spawn_blocking(move || read(&sources, &have, &push, &to_server));
    let parts = PushParts {
        parts,
        sent: Arc::clone(&sent),
    };
    let mut service = connection.models_service();
    let mut pushed = std::pin::pin!(service.push(parts));
    let answer = loop {
        progress(PushProgress::Sending(sent.load(Ordering::Relaxed), missing));
        if let Ok(answer) = tokio::time::timeout(PROGRESS_INTERVAL, &mut pushed).await {
            break answer;
        }
    };
    // A read error on this side is the cause of an error reply.
    let read = reader.await;
    read.map_err(|error| Error::new(ErrorCode::Internal, error.to_string()))??;
    let received = answer?.into_inner().received_bytes;
    progress(PushProgress::Sending(missing, missing));
    Ok(received)
}

/// Stream of parts that counts the bytes sent.
struct PushParts {
    parts: mpsc::Receiver<v1::PushPart>,
    sent: Arc<AtomicU64>,
}

impl Stream for PushParts {
    type Item = v1::PushPart;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<v1::PushPart>> {
        let part = self.parts.poll_recv(context);
        if let std::task::Poll::Ready(Some(part)) = &part {
            self.sent
                .fetch_add(part.data.len() as u64, Ordering::Relaxed);
        }
        part
    }
}

/// Files of a model in a folder with their lengths, sorted by name.
fn files(folder: &Path) -> Result<Vec<(PathBuf, u64)>, Error> {
    let broken = |error: std::io::Error| Error::file(folder, &error);
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(broken)? {
        let path = entry.map_err(broken)?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let is_known =
            |name: &str| !name.starts_with('.') && EXTENSIONS.iter().any(|end| name.ends_with(end));
        // Follows links, because the cache of a hub consists of links.
        let facts = std::fs::metadata(&path).map_err(|error| Error::file(&path, &error))?;
        if name.is_some_and(is_known) && facts.is_file() && facts.len() > 0 {
            found.push((path, facts.len()));
        }
    }
    found.sort();
    match found.is_empty() {
        true => {
            let text = format!(
                "{} contains no files of a model (config.json, *.safetensors)",
                folder.display()
            );
            Err(Error::new(ErrorCode::Local, text))
        }
        false => Ok(found),
    }
}

/// Hashes a file.
fn hash(path: PathBuf, bytes: u64) -> Result<PushSource, Error> {
    let mut hasher = blake3::Hasher::new();
    hasher
        .update_mmap_rayon(&path)
        .map_err(|error| Error::file(&path, &error))?;
    let name = path
        .file_name()
        .map(|name| name.to_string_lossy().into_owned());
    Ok(PushSource {
        offer: v1::PushFile {
            name: name.unwrap_or_default(),
            bytes,
            hash: Bytes::copy_from_slice(hasher.finalize().as_bytes()),
        },
        path,
    })
}

/// Reads the missing bytes of all files until the receiver is dropped.
fn read(
    sources: &[PushSource],
    have: &[u64],
    push: &str,
    to_server: &mpsc::Sender<v1::PushPart>,
) -> Result<(), Error> {
    for (number, (source, &have)) in sources.iter().zip(have).enumerate() {
        if have >= source.offer.bytes {
            continue;
        }
        let broken = |error: std::io::Error| Error::file(&source.path, &error);
        let mut file = File::open(&source.path).map_err(broken)?;
        file.seek(SeekFrom::Start(have)).map_err(broken)?;
        let mut offset = have;
        while offset < source.offer.bytes {
            let wanted = (source.offer.bytes - offset).min(PART_BYTES as u64);
            let mut data = Vec::with_capacity(wanted as usize);
            let read = (&mut file).take(wanted).read_to_end(&mut data);
            if read.map_err(broken)? as u64 != wanted {
                let text = format!(
                    "{} became shorter during the push; push again",
                    source.path.display()
                );
                return Err(Error::new(ErrorCode::Local, text));
            }
            let part = v1::PushPart {
                push: push.to_owned(),
                file: number as u32,
                offset,
                data: data.into(),
            };
            if to_server.blocking_send(part).is_err() {
                // The call ended, and the call itself reports its error.
                return Ok(());
            }
            offset += wanted;
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::files;

    #[test]
    fn only_model_files_are_sent() {
        let folder = std::env::temp_dir().join(format!("djinn-push-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("nested.json")).unwrap();
        assert!(files(&folder).is_err());
        for name in [
            "config.json",
            "b.safetensors",
            "README.md",
            ".hidden.json",
            "empty.txt",
        ] {
            let text = if name == "empty.txt" { "" } else { "x" };
            std::fs::write(folder.join(name), text).unwrap();
        }
        let names: Vec<String> = files(&folder)
            .unwrap()
            .into_iter()
            .map(|(path, _)| path.file_name().unwrap().to_string_lossy().into_owned())
            .collect();
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(names, ["b.safetensors", "config.json"]);
    }
}
