//! What can go wrong between a model's name and its files.

use std::io;
use std::path::{Path, PathBuf};

/// A model that was not found, or not downloaded.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// Not a name a model can have.
    #[error(
        "`{given}` is no model's name: write org/name as on the hub (or, to run one, a folder's path or shape:NAME)"
    )]
    BadId {
        /// As it was given.
        given: String,
    },
    /// Not a name a revision can have.
    #[error("`{given}` is not a revision: write a branch, a tag or a commit")]
    BadRevision {
        /// As it was given.
        given: String,
    },
    /// Not an address.
    #[error("`{given}` is not an endpoint: set HF_ENDPOINT to https://HOST")]
    BadEndpoint {
        /// As it was given.
        given: String,
    },
    /// A token that no request can carry. It is not shown, since it may be nearly right.
    #[error("the token holds characters no token has: copy it again into HF_TOKEN")]
    BadToken,
    /// Certificates that cannot be used.
    #[error("cannot use the certificates in {path} (from SSL_CERT_FILE): {reason}", path = path.display())]
    BadCertificates {
        /// The bundle.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Nowhere to keep models.
    #[error(
        "there is no folder for models: set DJINN_HOME (HOME and XDG_CACHE_HOME are unset too)"
    )]
    NoHome,

    /// A path with nothing behind it.
    #[error("there is no folder {path}: give the folder that holds config.json", path = path.display())]
    NoSuchPath {
        /// As it was given.
        path: PathBuf,
    },
    /// A path to a file.
    #[error("{path} is a file: give the folder that holds config.json", path = path.display())]
    NotAFolder {
        /// As it was given.
        path: PathBuf,
    },
    /// A model that is not on this machine.
    #[error("{id} is not on this machine (looked in {looked}): run `djinn pull {id}`")]
    NotHere {
        /// The model.
        id: String,
        /// Where, and what was there.
        looked: String,
    },

    /// The hub does not know the model.
    #[error("there is no model {id} at {endpoint}: check its spelling, org/name")]
    NoSuchModel {
        /// The model.
        id: String,
        /// The hub.
        endpoint: String,
    },
    /// The hub knows the model, not the revision.
    #[error("{id} has no revision {revision}: see {endpoint}/{id}/tree/main for those it has")]
    NoSuchRevision {
        /// The model.
        id: String,
        /// As it was asked for.
        revision: String,
        /// The hub.
        endpoint: String,
    },
    /// A file the hub listed, and then did not have.
    #[error("{endpoint} lists {file} in {id} but does not have it: pull again later")]
    NoSuchFile {
        /// The model.
        id: String,
        /// The file.
        file: String,
        /// The hub.
        endpoint: String,
    },
    /// The hub does not say whether there is such a model.
    #[error(
        "{endpoint} does not show {id} to strangers: check its spelling; if it is private or gated, set HF_TOKEN to a token from {endpoint}/settings/tokens"
    )]
    TokenNeeded {
        /// The model.
        id: String,
        /// The hub.
        endpoint: String,
    },
    /// The hub does not take the token.
    #[error(
        "{endpoint} does not accept the token for {id}: set HF_TOKEN to a valid one from {endpoint}/settings/tokens"
    )]
    TokenRefused {
        /// The model.
        id: String,
        /// The hub.
        endpoint: String,
    },
    /// A model whose terms must be accepted first.
    #[error(
        "{id} is gated: accept its terms at {endpoint}/{id}, then set HF_TOKEN to a token of the same account that may read gated models"
    )]
    Gated {
        /// The model.
        id: String,
        /// The hub.
        endpoint: String,
    },
    /// Too many requests from here.
    #[error(
        "{endpoint} limits the requests from here: wait some minutes and pull again to continue (a token in HF_TOKEN raises the limit)"
    )]
    RateLimited {
        /// The hub.
        endpoint: String,
    },
    /// An answer with no other meaning here.
    #[error(
        "{url} answered {status}: pull again to continue; if it stays so, the server is at fault"
    )]
    Status {
        /// What was asked, without its query.
        url: String,
        /// The HTTP status.
        status: u16,
    },
    /// No answer, or half of one.
    #[error("cannot reach {url}: {reason}; pull again to continue")]
    Network {
        /// What was asked, without its query.
        url: String,
        /// As the network put it.
        reason: String,
    },
    /// A server that does not prove who it is.
    #[error(
        "cannot trust {url}: {reason}; behind a proxy that signs for itself, set SSL_CERT_FILE to its certificates"
    )]
    Untrusted {
        /// What was asked, without its query.
        url: String,
        /// As TLS put it.
        reason: String,
    },
    /// An answer that does not follow the hub's interface.
    #[error("{url} does not answer as a hub does ({reason}): check HF_ENDPOINT")]
    BadAnswer {
        /// What was asked, without its query.
        url: String,
        /// What is wrong with it.
        reason: String,
    },

    /// A repository without a model that Djinn reads.
    #[error(
        "{id} has no {missing} (it has {found}): Djinn reads config.json with safetensors; look for a conversion of this model"
    )]
    NotACheckpoint {
        /// The model.
        id: String,
        /// What it should have.
        missing: &'static str,
        /// What it has.
        found: String,
    },
    /// An index of shards that cannot be followed.
    #[error("{path} is not a usable index of shards: {reason}", path = path.display())]
    BadIndex {
        /// The index.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// An index that names a shard the repository has not.
    #[error(
        "{id} lists the shard {shard} in its index but does not have it: look for another conversion of this model"
    )]
    MissingShard {
        /// The model.
        id: String,
        /// The shard.
        shard: String,
    },
    /// A name that would be written outside the model's folder.
    #[error(
        "{id} has a file named `{name}`, which would leave the model's folder: do not trust this repository"
    )]
    UnsafeName {
        /// The model.
        id: String,
        /// As the server spelled it.
        name: String,
    },
    /// A file of another size than the hub said.
    #[error(
        "{file} has {got_bytes} bytes where the hub lists {want_bytes}: pull again; if it stays so, the hub's copy is damaged"
    )]
    WrongSize {
        /// The file.
        file: String,
        /// As listed.
        want_bytes: u64,
        /// As offered or received.
        got_bytes: u64,
    },
    /// A file of the right size with other bytes. What was downloaded of it is gone.
    #[error("{file} arrived damaged (sha256 {got}, listed {want}) and was removed: pull again")]
    WrongHash {
        /// The file.
        file: String,
        /// As listed.
        want: String,
        /// Of what arrived.
        got: String,
    },
    /// A disk that cannot hold the model.
    #[error("{path} has {free_bytes} bytes free and the download needs {need_bytes}: make room, or set DJINN_HOME to another disk", path = path.display())]
    NoSpace {
        /// The model's folder.
        path: PathBuf,
        /// Still to be downloaded.
        need_bytes: u64,
        /// On that disk.
        free_bytes: u64,
    },
    /// The folder is being written by someone else.
    #[error("another djinn is pulling into {path}: wait for it, or end it and pull again to continue", path = path.display())]
    Busy {
        /// The model's folder.
        path: PathBuf,
    },
    /// The disk would not do it.
    #[error("cannot {doing} {path}: {source}", path = path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// As the system put it.
        source: io::Error,
    },
}

impl HubError {
    /// For `map_err`: an I/O error with what was tried on what.
    pub(crate) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io {
            doing,
            path,
            source,
        }
    }
}
