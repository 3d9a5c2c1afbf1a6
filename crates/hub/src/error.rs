//! Errors of looking up and downloading models.

use std::io;
use std::path::{Path, PathBuf};

/// Reason why a model cannot be found or downloaded.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// The text is not a valid name of a model.
    #[error(
        "`{given}` is not a model: write org/name as on the hub, the path of a folder, or shape:NAME"
    )]
    BadId {
        /// Text, as given.
        given: String,
    },
    /// The text is not a valid revision.
    #[error("`{given}` is not a revision: write a branch, a tag or a commit")]
    BadRevision {
        /// Text, as given.
        given: String,
    },
    /// The endpoint is not a URL.
    #[error("`{given}` is not an endpoint: set HF_ENDPOINT to https://HOST")]
    BadEndpoint {
        /// Text, as given.
        given: String,
    },
    /// The token contains characters that no request can carry. The message does not show the
    /// token.
    #[error("the token contains invalid characters: copy it again into HF_TOKEN")]
    BadToken,
    /// The certificates cannot be used.
    #[error("cannot use the certificates in {path} (from SSL_CERT_FILE): {reason}", path = path.display())]
    BadCertificates {
        /// Path of the certificates.
        path: PathBuf,
        /// Problem with the certificates.
        reason: String,
    },
    /// No environment variable gives a folder for models.
    #[error("no folder for models: set DJINN_HOME (HOME and XDG_CACHE_HOME are not set either)")]
    NoHome,

    /// The path of a model does not exist.
    #[error("the folder {path} does not exist: give the folder that holds config.json", path = path.display())]
    NoSuchPath {
        /// Path, as given.
        path: PathBuf,
    },
    /// The path of a model is a file.
    #[error("{path} is a file: give the folder that holds config.json", path = path.display())]
    NotAFolder {
        /// Path, as given.
        path: PathBuf,
    },
    /// The model is not on this machine.
    #[error("{id} is not on this machine: run `djinn pull {id}` (searched {searched})", searched = searched.join("; "))]
    NotFound {
        /// Name of the model.
        id: String,
        /// Folders that were searched, each with the reason if it exists.
        searched: Vec<String>,
    },

    /// The hub does not have the model.
    #[error("{endpoint} has no model {id}: check the spelling, org/name")]
    NoSuchModel {
        /// Name of the model.
        id: String,
        /// URL of the hub.
        endpoint: String,
    },
    /// The hub has the model, but not the revision.
    #[error("{id} has no revision {revision}: see {endpoint}/{id}/tree/main for its revisions")]
    NoSuchRevision {
        /// Name of the model.
        id: String,
        /// Requested revision.
        revision: String,
        /// URL of the hub.
        endpoint: String,
    },
    /// The hub lists a file, but does not have it.
    #[error("{endpoint} lists {file} in {id} but does not have it: pull again later")]
    NoSuchFile {
        /// Name of the model.
        id: String,
        /// Name of the file.
        file: String,
        /// URL of the hub.
        endpoint: String,
    },
    /// The hub requires a token, and none is set.
    #[error(
        "{endpoint} does not show {id} without a token: check the spelling; for a private or gated model set HF_TOKEN to a token from {endpoint}/settings/tokens"
    )]
    TokenNeeded {
        /// Name of the model.
        id: String,
        /// URL of the hub.
        endpoint: String,
    },
    /// The hub rejects the token.
    #[error(
        "{endpoint} rejects the token for {id}: set HF_TOKEN to a valid token from {endpoint}/settings/tokens"
    )]
    TokenRefused {
        /// Name of the model.
        id: String,
        /// URL of the hub.
        endpoint: String,
    },
    /// The model is gated, and its terms are not accepted.
    #[error(
        "{id} is gated: accept its terms at {endpoint}/{id}, then set HF_TOKEN to a token of the same account with access to gated models"
    )]
    Gated {
        /// Name of the model.
        id: String,
        /// URL of the hub.
        endpoint: String,
    },
    /// The hub limits the rate of requests.
    #[error(
        "{endpoint} limits the rate of requests: wait some minutes and pull again to continue (a token in HF_TOKEN raises the limit)"
    )]
    RateLimited {
        /// URL of the hub.
        endpoint: String,
    },
    /// The server responded with an unexpected status.
    #[error(
        "{url} responded with status {status}: pull again to continue; if the error persists, the server has a problem"
    )]
    Status {
        /// Requested URL, without its query.
        url: String,
        /// HTTP status.
        status: u16,
    },
    /// The connection failed or ended early.
    #[error("cannot reach {url}: {reason}; pull again to continue")]
    Network {
        /// Requested URL, without its query.
        url: String,
        /// Error of the connection.
        reason: String,
    },
    /// The certificate of the server is not trusted.
    #[error(
        "cannot trust {url}: {reason}; behind a proxy with its own certificates, set SSL_CERT_FILE to them"
    )]
    Untrusted {
        /// Requested URL, without its query.
        url: String,
        /// Error of TLS.
        reason: String,
    },
    /// The response does not follow the interface of the hub.
    #[error("{url} does not respond like a hub ({problem}): check HF_ENDPOINT")]
    BadResponse {
        /// Requested URL, without its query.
        url: String,
        /// Problem with the response.
        problem: ResponseProblem,
    },

    /// The repository has no checkpoint in a format that Djinn reads.
    #[error(
        "{id} has no {missing} (it has {found}): Djinn reads config.json with safetensors; look for a conversion of this model"
    )]
    NotACheckpoint {
        /// Name of the model.
        id: String,
        /// Name of the missing file.
        missing: &'static str,
        /// Weights that the repository has.
        found: String,
    },
    /// The index of shards cannot be used.
    #[error("{path} is not a valid index of shards: {reason}; pull the model again", path = path.display())]
    BadIndex {
        /// Path of the index.
        path: PathBuf,
        /// Problem with the index.
        reason: String,
    },
    /// The index names a shard that the repository does not have.
    #[error(
        "the index of {id} lists the shard {shard}, which the repository does not have: look for another conversion of this model"
    )]
    MissingShard {
        /// Name of the model.
        id: String,
        /// Name of the shard.
        shard: String,
    },
    /// The name of a file would lead out of the model folder.
    #[error(
        "{id} has a file named `{name}`, which leads out of the model folder: do not trust this repository"
    )]
    UnsafeName {
        /// Name of the model.
        id: String,
        /// Name of the file, as in the repository.
        name: String,
    },
    /// The size of a file differs from the listing.
    #[error(
        "{file} has {got_bytes} bytes, but the hub lists {want_bytes}: pull again; if the error persists, the copy on the hub is damaged"
    )]
    WrongSize {
        /// Name of the file.
        file: String,
        /// Size in the listing.
        want_bytes: u64,
        /// Size that the server offered or sent.
        got_bytes: u64,
    },
    /// The hash of a file differs from the listing. The pull removes the downloaded file.
    #[error("{file} arrived damaged (sha256 {got}, listed {want}) and was removed: pull again")]
    WrongHash {
        /// Name of the file.
        file: String,
        /// Hash in the listing.
        want: String,
        /// Hash of the downloaded file.
        got: String,
    },
    /// The disk has too little free space.
    #[error("{path} has {free_bytes} bytes free, but the download needs {need_bytes}: free some space, or set DJINN_HOME to another disk", path = path.display())]
    NoSpace {
        /// Path of the model folder.
        path: PathBuf,
        /// Number of bytes still to download.
        need_bytes: u64,
        /// Number of bytes free on the disk.
        free_bytes: u64,
    },
    /// Another process is downloading into the folder.
    #[error("another djinn process is pulling into {path}: wait until it ends, or stop it and pull again to continue", path = path.display())]
    Busy {
        /// Path of the model folder.
        path: PathBuf,
    },
    /// A file operation failed.
    #[error("cannot {doing} {path}: {source}", path = path.display())]
    Io {
        /// Operation, as a verb.
        doing: &'static str,
        /// Path of the file or folder.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
}

/// Problem with a response of the hub.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResponseProblem {
    /// The redirects do not end.
    #[error("too many redirects")]
    TooManyRedirects,
    /// A redirect does not lead to a URL.
    #[error("a redirect without a valid address")]
    InvalidRedirect,
    /// A redirect leads from https to http.
    #[error("a redirect from https to http")]
    InsecureRedirect,
    /// The listing is not the expected JSON.
    #[error("{0}")]
    NotAListing(String),
    /// The listing does not name a commit.
    #[error("the listing has no valid commit")]
    NoCommit,
    /// The hash of a file is malformed.
    #[error("the sha256 of {file} is malformed")]
    BadHash {
        /// Name of the file.
        file: String,
    },
}

impl HubError {
    /// Returns a function for `map_err` that adds operation and path to an I/O error.
    pub(crate) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io {
            doing,
            path,
            source,
        }
    }
}
