//! State and helpers that all gRPC services share.

use std::{pin::Pin, sync::Arc};

use futures_util::Stream;
use tonic::{Request, Response, Status};

use crate::{ServeError, app::App, auth::Caller};

/// Implementation of all gRPC services.
#[derive(Clone)]
pub struct GrpcService(pub Arc<App>);

/// Stream of reply messages.
pub type GrpcStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Result of a gRPC method.
pub type GrpcResult<T> = Result<Response<T>, Status>;

impl GrpcService {
    /// Authenticated sender of a request, as the middleware found it.
    pub fn caller<T>(&self, request: &Request<T>) -> Result<Caller, Status> {
        let caller = request.extensions().get::<Caller>().cloned();
        caller.ok_or_else(|| ServeError::Unauthenticated.into())
    }
}
