//! The prefix cache of a state folder: cached pages in an archive, which the next process reads.
//!
//! The archive replaces the one before it when the engine ends. It belongs to one model, one type of keys
//! and values, one device and one build of the program: another one could give other bits, so it ignores
//! the archive. The pages of an archive are ordered such that any beginning of it is a complete cache.

use std::{
    fs::{self, File},
    hash::Hasher,
    io::{self, ErrorKind, Read},
    path::{Path, PathBuf},
    sync::OnceLock,
    time::Instant,
};

use djinn_kv::Pager;
use djinn_wal::{Archive, ArchiveWriter, WalError};
use twox_hash::XxHash3_64;

use super::prefix_header::{PrefixHeader, PrefixOrigin};
use crate::error::EngineError;

/// Name of the archive in a state folder.
const FILE: &str = "prefixes.djinn";

/// Cached pages that were saved or restored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SavedPrefixes {
    /// Number of pages.
    pub pages: usize,
    /// Number of bytes of their keys and values.
    pub bytes: u64,
}

/// Pages of an engine, and their sizes.
pub(crate) struct EnginePages<'a> {
    pub pager: &'a mut Pager,
    pub page_bytes: u64,
    pub page_tokens: usize,
}

/// Archive of cached pages in a state folder.
#[derive(Debug)]
pub(crate) struct PrefixFile {
    path: PathBuf,
    origin: PrefixOrigin,
}

impl PrefixFile {
    /// The archive of a state folder, for pages of this origin. Removes what processes left that were killed
    /// while they wrote it; the folder belongs to this process alone.
    pub fn new(folder: &Path, origin: PrefixOrigin) -> Self {
        remove_unfinished(folder);
        PrefixFile {
            path: folder.join(FILE),
            origin,
        }
    }

    /// Writes as many cached pages as `limit` bytes hold and as there is time for, and replaces the archive.
    /// Without new pages, the archive stays.
    pub fn save(
        &self,
        cached: &mut EnginePages<'_>,
        limit: u64,
        until: Instant,
    ) -> Result<SavedPrefixes, EngineError> {
        let (page_bytes, mut saved) = (cached.page_bytes, SavedPrefixes::default());
        if cached.pager.pages().inserted() == 0 {
            return Ok(saved);
        }
        let mut pages = cached.pager.pages().indexed_pages();
        let most = usize::try_from(limit / page_bytes.max(1)).unwrap_or(usize::MAX);
        pages.truncate(most);
        let header = PrefixHeader::new(self.origin.clone(), &pages);
        let header = serde_json::to_vec(&header).expect("headers are plain data");
        let mut writer = ArchiveWriter::create(&self.path, &header, page_bytes, true)?;
        let mut reader = cached.pager.page_reader()?;
        for page in pages {
            if Instant::now() >= until {
                break;
            }
            // A page that the disk lost ends the archive: later pages may follow it.
            let Ok(written) = reader.read(page.page, |bytes| writer.write(bytes)) else {
                break;
            };
            written?;
            saved.pages += 1;
            saved.bytes += page_bytes;
        }
        if saved.pages > 0 {
            writer.finish()?;
        }
        Ok(saved)
    }

    /// Adds the pages of the archive to the prefix cache, as far as frames are free. Adds none if there is
    /// no archive.
    pub fn restore(
        &self,
        cached: &mut EnginePages<'_>,
    ) -> (SavedPrefixes, Result<(), EngineError>) {
        let (none, page_bytes) = (SavedPrefixes::default(), cached.page_bytes);
        let archive = match Archive::open(&self.path) {
            Err(WalError::System { source, .. }) if source.kind() == ErrorKind::NotFound => {
                return (none, Ok(()));
            }
            Err(error) => return (none, Err(error.into())),
            Ok(archive) => archive,
        };
        let header = match PrefixHeader::parse(archive.header(), archive.pages()) {
            Ok(header) => header,
            Err(reason) => return (none, Err(self.ignored(reason))),
        };
        if let Some(reason) = header.origin.difference(&self.origin) {
            return (none, Err(self.ignored(reason)));
        }
        if archive.page_bytes() != page_bytes {
            return (none, Err(self.ignored("its pages have another size")));
        }
        let contents = header.contents();
        let (pages, read) = cached.pager.add_saved(contents, |number, to| {
            archive.read(number, to).map_err(EngineError::from)
        });
        let bytes = pages as u64 * page_bytes;
        (SavedPrefixes { pages, bytes }, read)
    }

    fn ignored(&self, reason: &str) -> EngineError {
        EngineError::File {
            path: self.path.clone(),
            reason: format!("the saved prefix cache is not used: {reason}"),
        }
    }
}

/// Removes archives that killed processes left unfinished in a folder.
fn remove_unfinished(folder: &Path) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name());
    let is_unfinished = |name: &str| name.starts_with(FILE) && name.ends_with(".tmp");
    for name in names.filter(|name| name.to_str().is_some_and(is_unfinished)) {
        // A file that cannot be removed costs only its space.
        let _ = fs::remove_file(folder.join(name));
    }
}

/// Digest of the running program. Another build may have kernels that round in another way.
pub(crate) fn program_digest() -> Result<String, EngineError> {
    static DIGEST: OnceLock<String> = OnceLock::new();
    if let Some(known) = DIGEST.get() {
        return Ok(known.clone());
    }
    // On Linux this is the running file, also if an update has replaced it.
    let path = match cfg!(target_os = "linux") {
        true => Ok(PathBuf::from("/proc/self/exe")),
        false => std::env::current_exe(),
    };
    let digest = path.and_then(|path| digest_of(&path));
    let digest = digest.map_err(|error| {
        EngineError::Unreadable(format!("the program cannot read its own file: {error}"))
    })?;
    Ok(DIGEST.get_or_init(|| digest).clone())
}

fn digest_of(path: &Path) -> io::Result<String> {
    let (mut file, mut hash) = (File::open(path)?, XxHash3_64::new());
    let mut bytes = vec![0; 1 << 20];
    loop {
        match file.read(&mut bytes)? {
            0 => return Ok(format!("{:016x}", hash.finish())),
            count => hash.write(&bytes[..count]),
        }
    }
}
