//! Authenticated sender of a request.

use std::sync::Arc;

use super::{key_file::KeyOwner, keys::RequestPermit};
use crate::{ServeError, context::RequestContext};

/// Sender of a request, for as long as the request is in flight.
#[derive(Clone)]
pub struct Caller {
    /// Owner of the API key.
    pub owner: Arc<KeyOwner>,
    /// Context of the request.
    pub context: Arc<RequestContext>,
    /// Permit that counts the request as in flight until the last clone is dropped.
    _permit: Arc<RequestPermit>,
}

impl Caller {
    /// Creates the caller of an admitted request.
    pub fn new(owner: Arc<KeyOwner>, permit: RequestPermit, context: Arc<RequestContext>) -> Self {
        Caller {
            owner,
            context,
            _permit: Arc::new(permit),
        }
    }

    /// Name of the owner.
    pub fn name(&self) -> &str {
        &self.owner.name
    }

    /// Returns an error unless the caller is an admin, who may load, push and unload models, and see
    /// everything that the server measures.
    pub fn check_admin(&self) -> Result<(), ServeError> {
        match self.owner.admin {
            true => Ok(()),
            false => Err(ServeError::Forbidden(format!(
                "Admin key required: the key of '{}' may not do this; use a key with admin = true",
                self.owner.name
            ))),
        }
    }
}
