//! Listing of a model's repository.

use std::collections::BTreeSet;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;

use super::client::HubClient;
use super::request::Pull;
use super::retry::{AbortSignal, FetchFailure};
use crate::error::{HubError, ResponseProblem};
use crate::progress::Progress;

/// Largest listing that a pull reads, in bytes. A repository of ten thousand files needs a few
/// MB.
const LISTING_BYTES_MAX: u64 = 64 << 20;

/// Characters that are escaped in a path segment of a URL.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');

/// Files of one commit of a model's repository.
pub(super) struct RepoListing {
    id: String,
    /// Commit that the requested revision refers to. Files are downloaded by commit, so a push
    /// during the download cannot mix two versions.
    pub sha: String,
    files: Vec<RemoteFile>,
}

/// File of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RemoteFile {
    /// Name, as in the repository.
    pub name: String,
    /// Size in bytes, if the hub lists it.
    pub bytes: Option<u64>,
    /// SHA-256 hash, if the hub lists it. The hub lists the hash of every large file.
    pub sha256: Option<String>,
    /// Identifier of the content: the hash, or the git object, or the commit.
    pub content: String,
}

impl RepoListing {
    /// Requests the listing of the model's revision.
    pub(super) fn request(
        request: &Pull,
        client: &HubClient,
        abort: &AbortSignal,
        progress: &dyn Progress,
    ) -> Result<Self, HubError> {
        if request.revision.trim().is_empty() {
            return Err(HubError::BadRevision {
                given: request.revision.clone(),
            });
        }
        let id = request.id.as_str();
        let on_wait = |error: &HubError, wait| progress.retry(id, error, wait);
        let url = listing_url(request);
        let attempt = || request_once(request, client, &url);
        request.retry.run(abort, on_wait, attempt)
    }

    pub(super) fn names(&self) -> BTreeSet<&str> {
        self.files.iter().map(|file| file.name.as_str()).collect()
    }

    /// Returns the files with the given names; a missing file is an error.
    pub(super) fn pick<'n>(
        &self,
        names: impl IntoIterator<Item = &'n str>,
    ) -> Result<Vec<&RemoteFile>, HubError> {
        let named = |name| self.files.iter().find(|file| file.name == name);
        let missing = |name: &str| HubError::MissingShard {
            id: self.id.clone(),
            shard: name.to_owned(),
        };
        let names = names.into_iter();
        names
            .map(|name| named(name).ok_or_else(|| missing(name)))
            .collect()
    }
}

/// Returns the URL of a file of a commit.
pub(super) fn file_url(request: &Pull, sha: &str, name: &str) -> String {
    let segments = name
        .split('/')
        .map(|part| utf8_percent_encode(part, SEGMENT).to_string());
    let name = segments.collect::<Vec<_>>().join("/");
    format!("{}/{}/resolve/{sha}/{name}", request.base(), request.id)
}

fn listing_url(request: &Pull) -> String {
    // A revision such as refs/pr/1 is one path segment.
    let revision = utf8_percent_encode(&request.revision, SEGMENT);
    let id = &request.id;
    format!(
        "{}/api/models/{id}/revision/{revision}?blobs=true",
        request.base()
    )
}

fn request_once(
    request: &Pull,
    client: &HubClient,
    url: &str,
) -> Result<RepoListing, FetchFailure> {
    let mut response = client.get(url, 0)?;
    if response.status() != 200 {
        return Err(response.failure(request, None));
    }
    let body = response.body().with_config().limit(LISTING_BYTES_MAX);
    let text = body.read_to_vec().map_err(|error| {
        FetchFailure::transient(HubError::Network {
            url: response.url.clone(),
            reason: error.to_string(),
        })
    })?;
    let listing = parse(request.id.as_str(), &text);
    listing.map_err(|problem| {
        let url = response.url;
        HubError::BadResponse { url, problem }.into()
    })
}

fn parse(id: &str, text: &[u8]) -> Result<RepoListing, ResponseProblem> {
    #[derive(Deserialize)]
    struct ListingJson {
        sha: String,
        siblings: Vec<FileJson>,
    }
    let wire: ListingJson = serde_json::from_slice(text)
        .map_err(|error| ResponseProblem::NotAListing(error.to_string()))?;
    if !is_hex(&wire.sha, 40) && !is_hex(&wire.sha, 64) {
        return Err(ResponseProblem::NoCommit);
    }
    let files = wire
        .siblings
        .into_iter()
        .map(|file| file.checked(&wire.sha));
    Ok(RepoListing {
        id: id.to_owned(),
        files: files.collect::<Result<_, _>>()?,
        sha: wire.sha,
    })
}

/// File in the JSON of a listing.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct FileJson {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<LfsInfo>,
}

#[derive(Deserialize)]
struct LfsInfo {
    sha256: String,
    size: Option<u64>,
}

impl FileJson {
    /// Checks the entry. Hashes become part of file names, so they must be hexadecimal.
    fn checked(self, commit: &str) -> Result<RemoteFile, ResponseProblem> {
        let name = self.rfilename;
        let (sha256, lfs_bytes) = match self.lfs {
            Some(lfs) => (Some(lfs.sha256.to_ascii_lowercase()), lfs.size),
            None => (None, None),
        };
        if sha256.as_ref().is_some_and(|hash| !is_hex(hash, 64)) {
            return Err(ResponseProblem::BadHash { file: name });
        }
        let blob = self.blob_id.filter(|blob| is_hex(blob, 40));
        let content = sha256.clone().or(blob);
        Ok(RemoteFile {
            name,
            bytes: lfs_bytes.or(self.size),
            sha256,
            content: content.unwrap_or_else(|| commit.to_owned()),
        })
    }
}

fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|b| b.is_ascii_hexdigit())
}
