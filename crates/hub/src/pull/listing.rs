//! What the hub says a model consists of.

use std::collections::BTreeSet;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;

use super::Pull;
use super::client::Client;
use super::retry::{Failure, Halt};
use crate::{HubError, Progress};

/// The largest listing read: repositories of ten thousand files take a few of them.
const LISTING_BYTES_MAX: u64 = 64 << 20;

const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');

/// One commit of a model's repository.
pub(super) struct Listing {
    id: String,
    /// The commit that the revision asked for stands for now. Files are fetched by it, so that a
    /// push in the middle of a download cannot mix two versions.
    pub sha: String,
    files: Vec<RemoteFile>,
}

/// One file of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RemoteFile {
    /// As the server spells it.
    pub name: String,
    /// Its size, where the hub says.
    pub bytes: Option<u64>,
    /// Its hash, where the hub says, as it does for all that is large.
    pub sha256: Option<String>,
    /// What identifies its content: the hash, else the git object, else the commit.
    pub content: String,
}

impl Listing {
    pub(super) fn ask(
        request: &Pull,
        client: &Client,
        halt: &Halt,
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
        let attempt = || ask_once(request, client, &url);
        request.retry.run(halt, on_wait, attempt)
    }

    pub(super) fn names(&self) -> BTreeSet<&str> {
        self.files.iter().map(|file| file.name.as_str()).collect()
    }

    /// The files of these names, each of which must be listed.
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

/// Where a file of a commit is.
pub(super) fn file_url(request: &Pull, sha: &str, name: &str) -> String {
    let segments = name
        .split('/')
        .map(|part| utf8_percent_encode(part, SEGMENT).to_string());
    let name = segments.collect::<Vec<_>>().join("/");
    format!("{}/{}/resolve/{sha}/{name}", request.base(), request.id)
}

fn listing_url(request: &Pull) -> String {
    // A revision such as refs/pr/1 is one segment here.
    let revision = utf8_percent_encode(&request.revision, SEGMENT);
    let id = &request.id;
    format!(
        "{}/api/models/{id}/revision/{revision}?blobs=true",
        request.base()
    )
}

fn ask_once(request: &Pull, client: &Client, url: &str) -> Result<Listing, Failure> {
    let mut answer = client.get(url, 0)?;
    if answer.status() != 200 {
        return Err(answer.refusal(request, None));
    }
    let body = answer.body().with_config().limit(LISTING_BYTES_MAX);
    let text = body.read_to_vec().map_err(|error| {
        Failure::passing(HubError::Network {
            url: answer.url.clone(),
            reason: error.to_string(),
        })
    })?;
    let listing = parse(request.id.as_str(), &text);
    listing.map_err(|reason| {
        let url = answer.url;
        HubError::BadAnswer { url, reason }.into()
    })
}

fn parse(id: &str, text: &[u8]) -> Result<Listing, String> {
    #[derive(Deserialize)]
    struct Wire {
        sha: String,
        siblings: Vec<WireFile>,
    }
    let wire: Wire = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    if !is_hex(&wire.sha, 40) && !is_hex(&wire.sha, 64) {
        return Err("its sha is no commit".to_owned());
    }
    let files = wire
        .siblings
        .into_iter()
        .map(|file| file.checked(&wire.sha));
    Ok(Listing {
        id: id.to_owned(),
        files: files.collect::<Result<_, _>>()?,
        sha: wire.sha,
    })
}

/// A file as the hub's interface has it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireFile {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: String,
    size: Option<u64>,
}

impl WireFile {
    /// Hashes become parts of file names here, so they must be what they say.
    fn checked(self, commit: &str) -> Result<RemoteFile, String> {
        let name = self.rfilename;
        let (sha256, lfs_bytes) = match self.lfs {
            Some(lfs) => (Some(lfs.sha256.to_ascii_lowercase()), lfs.size),
            None => (None, None),
        };
        if sha256.as_ref().is_some_and(|hash| !is_hex(hash, 64)) {
            return Err(format!("the sha256 of {name} is none"));
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
