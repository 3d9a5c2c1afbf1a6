//! Request to download a model.

use std::path::PathBuf;

use super::retry::Retry;
use crate::env::HubEnvironment;
use crate::error::HubError;
use crate::id::ModelId;
use crate::token::HubToken;

/// Request to download a model.
#[derive(Debug, Clone)]
pub struct Pull {
    /// Name of the model.
    pub id: ModelId,
    /// Revision: a branch, a tag or a commit.
    pub revision: String,
    /// URL of the hub, `https://host`.
    pub endpoint: String,
    /// Access token, for private and gated models.
    pub token: Option<HubToken>,
    /// PEM file with the certificates to trust instead of the built-in ones.
    pub certificates: Option<PathBuf>,
    /// Djinn's home folder. The model is stored in `models/{id}` below it.
    pub home: PathBuf,
    /// Number of retries and the delay between them.
    pub retry: Retry,
}

impl Pull {
    /// Requests the main branch of a model, with settings from the environment: `HF_ENDPOINT`,
    /// `HF_TOKEN` (or the file `$HF_HOME/token`), `SSL_CERT_FILE` and `DJINN_HOME`.
    pub fn from_env(id: &str) -> Result<Self, HubError> {
        let env = HubEnvironment::process();
        Ok(Self {
            id: id.parse()?,
            revision: "main".to_owned(),
            endpoint: env.endpoint(),
            token: env.token()?,
            certificates: env.certificates(),
            home: env.paths()?.home,
            retry: Retry::default(),
        })
    }

    /// Returns the endpoint without a trailing slash.
    pub(super) fn base(&self) -> &str {
        self.endpoint.trim_end_matches('/')
    }
}
