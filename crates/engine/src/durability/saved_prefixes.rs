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
};

use djinn_kv::{IndexedPage, PageContent, Pager};
use djinn_wal::{Archive, ArchiveWriter, WalError};
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

use crate::error::EngineError;

/// Name of the archive in a state folder.
const FILE: &str = "prefixes.djinn";

/// Everything that the bytes of cached pages and their scopes depend on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PrefixOrigin {
    /// Digest of the model.
    pub model: String,
    /// Element type of keys and values.
    pub kv_dtype: String,
    pub page_tokens: usize,
    /// Device whose kernels computed the pages: `cpu`, or the product name of a card.
    pub device: String,
    /// Digest of the program.
    pub program: String,
    /// Whether pages of all owners have one scope.
    pub all_owners: bool,
}

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

/// PrefixHeader of the archive.
#[derive(Debug, Serialize, Deserialize)]
struct PrefixHeader {
    origin: PrefixOrigin,
    scopes: Vec<String>,
    pages: Vec<SavedPage>,
}

/// One page of the archive.
#[derive(Debug, Serialize, Deserialize)]
struct SavedPage {
    /// Number of the page before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    previous: Option<usize>,
    /// Number of the scope.
    scope: usize,
    tokens: Vec<u32>,
    /// Indices of the tokens that do not belong to a prompt.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    generated: Vec<usize>,
}

impl PrefixFile {
    /// The archive of a state folder, for pages of this origin.
    pub fn new(folder: &Path, origin: PrefixOrigin) -> Self {
        PrefixFile {
            path: folder.join(FILE),
            origin,
        }
    }

    /// Writes as many cached pages as `limit` bytes hold, and replaces the archive. Without pages, removes
    /// it.
    pub fn save(
        &self,
        cached: &mut EnginePages<'_>,
        limit: u64,
    ) -> Result<SavedPrefixes, EngineError> {
        let page_bytes = cached.page_bytes;
        let mut pages = cached.pager.pages().indexed_pages();
        let most = usize::try_from(limit / page_bytes.max(1)).unwrap_or(usize::MAX);
        pages.truncate(most);
        if pages.is_empty() {
            return match fs::remove_file(&self.path) {
                Err(error) if error.kind() != ErrorKind::NotFound => Err(self.failed(&error)),
                _ => Ok(SavedPrefixes::default()),
            };
        }
        let header = PrefixHeader::new(self.origin.clone(), &pages);
        let header = serde_json::to_vec(&header).expect("headers are plain data");
        let mut writer = ArchiveWriter::create(&self.path, &header, page_bytes, true)?;
        let reader = cached.pager.page_reader()?;
        for page in &pages {
            reader.read(page.page, |bytes| writer.write(bytes))??;
        }
        writer.finish()?;
        Ok(SavedPrefixes {
            pages: pages.len(),
            bytes: pages.len() as u64 * page_bytes,
        })
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

    fn failed(&self, error: &io::Error) -> EngineError {
        EngineError::File {
            path: self.path.clone(),
            reason: error.to_string(),
        }
    }
}

impl PrefixOrigin {
    /// First difference that keeps pages from being used, in words.
    fn difference(&self, now: &PrefixOrigin) -> Option<&'static str> {
        let differences = [
            (self.model != now.model, "it belongs to another model"),
            (
                self.kv_dtype != now.kv_dtype,
                "its keys and values have another type",
            ),
            (
                self.page_tokens != now.page_tokens,
                "its pages have another size",
            ),
            (
                self.device != now.device,
                "another kind of device computed it",
            ),
            (
                self.program != now.program,
                "another build of djinn wrote it",
            ),
            (
                self.all_owners != now.all_owners,
                "--share-prefixes has changed",
            ),
        ];
        let found = differences.into_iter().find(|(differs, _)| *differs);
        found.map(|(_, reason)| reason)
    }
}

impl PrefixHeader {
    fn new(origin: PrefixOrigin, pages: &[IndexedPage]) -> Self {
        let mut scopes: Vec<String> = Vec::new();
        let pages = pages.iter().map(|page| {
            let scope = page.content.scope();
            let known = scopes.iter().position(|known| known == scope);
            let number = known.unwrap_or_else(|| {
                scopes.push(scope.to_owned());
                scopes.len() - 1
            });
            let tokens = page.content.tokens();
            let generated = tokens.clone().enumerate();
            let generated = generated.filter(|(_, (_, is_prompt))| !is_prompt);
            SavedPage {
                previous: page.previous,
                scope: number,
                generated: generated.map(|(at, _)| at).collect(),
                tokens: tokens.map(|(token, _)| token).collect(),
            }
        });
        let pages = pages.collect();
        PrefixHeader {
            origin,
            scopes,
            pages,
        }
    }

    /// Decodes the header of an archive with this number of pages, and checks every number in it.
    fn parse(bytes: &[u8], pages: usize) -> Result<Self, &'static str> {
        let header: PrefixHeader =
            serde_json::from_slice(bytes).map_err(|_| "its list of pages cannot be read")?;
        let size = header.origin.page_tokens;
        let is_valid = |(number, page): (usize, &SavedPage)| {
            page.previous.is_none_or(|previous| previous < number)
                && page.scope < header.scopes.len()
                && page.tokens.len() == size
                && page.generated.iter().all(|&at| at < size)
        };
        let is_whole = header.pages.len() == pages;
        match is_whole && header.pages.iter().enumerate().all(is_valid) {
            true => Ok(header),
            false => Err("its list of pages is not consistent"),
        }
    }

    /// Contents of the pages, each with the number of the page before it.
    fn contents(&self) -> impl Iterator<Item = (Option<usize>, PageContent)> {
        self.pages.iter().map(|page| {
            let is_prompt = |at: usize| !page.generated.contains(&at);
            let tokens = page.tokens.iter().enumerate();
            let tokens = tokens.map(|(at, &token)| (token, is_prompt(at)));
            (
                page.previous,
                PageContent::new(&self.scopes[page.scope], tokens),
            )
        })
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{PrefixHeader, PrefixOrigin};

    fn header(pages: &serde_json::Value) -> Vec<u8> {
        let origin = PrefixOrigin {
            model: "v2-0".to_owned(),
            kv_dtype: "f16".to_owned(),
            page_tokens: 2,
            device: "cpu".to_owned(),
            program: "0".to_owned(),
            all_owners: false,
        };
        let header = json!({ "origin": origin, "scopes": ["ada"], "pages": pages });
        serde_json::to_vec(&header).unwrap()
    }

    #[test]
    fn a_header_with_numbers_out_of_range_is_refused() {
        let good = json!([
            { "scope": 0, "tokens": [1, 2] },
            { "previous": 0, "scope": 0, "tokens": [3, 4], "generated": [1] },
        ]);
        assert!(PrefixHeader::parse(&header(&good), 2).is_ok());
        assert!(
            PrefixHeader::parse(&header(&good), 1).is_err(),
            "number of pages"
        );
        let bad = [
            json!([{ "previous": 0, "scope": 0, "tokens": [1, 2] }]),
            json!([{ "scope": 1, "tokens": [1, 2] }]),
            json!([{ "scope": 0, "tokens": [1, 2, 3] }]),
            json!([{ "scope": 0, "tokens": [1, 2], "generated": [2] }]),
            json!([{ "tokens": [1, 2] }]),
        ];
        for pages in bad {
            assert!(PrefixHeader::parse(&header(&pages), 1).is_err(), "{pages}");
        }
    }
}
