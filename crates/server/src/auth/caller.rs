//! Authenticated sender of a request.

use std::sync::Arc;

use super::{key_file::KeyOwner, keys::RequestPermit};
use crate::ServeError;

/// Sender of a request, for as long as the request is in flight.
#[derive(Clone)]
pub struct Caller {
    /// Owner of the API key.
    pub owner: Arc<KeyOwner>,
    /// Permit that counts the request as in flight until the last clone is dropped.
    _permit: Arc<RequestPermit>,
}

impl Caller {
    /// Creates the caller of an admitted request.
    pub fn new(owner: Arc<KeyOwner>, permit: RequestPermit) -> Self {
        Caller {
            owner,
            _permit: Arc::new(permit),
        }
    }

    /// Returns an error unless the caller may load, push and unload models.
    pub fn check_admin(&self) -> Result<(), ServeError> {
        match self.owner.admin {
            true => Ok(()),
            false => Err(ServeError::Forbidden(format!(
                "Admin key required: the key of '{}' may not load, push or unload models; use a key with admin = true",
                self.owner.name
            ))),
        }
    }
}
