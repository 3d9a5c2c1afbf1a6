//! The protocol over gRPC: a file for each service.

mod events;
mod models;
mod server;

mod sessions;
mod whitebox;

use std::{pin::Pin, sync::Arc};

use djinn_wire::{DESCRIPTORS, v1};
use futures_util::Stream;
use tonic::{Request, Status, service::Routes};

use crate::{
    ServeError,
    app::{App, Caller},
};

/// What every service is made of.
#[derive(Clone)]
pub struct Grpc(Arc<App>);

pub use server::capabilities;

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl Grpc {
    /// Whoever sent this.
    fn caller<T>(&self, request: &Request<T>) -> Result<Caller, Status> {
        let caller = request.extensions().get::<Caller>().cloned();
        caller.ok_or_else(|| ServeError::Unauthenticated.into())
    }
}

/// Every service, with reflection and health.
pub fn routes(app: &Arc<App>) -> Result<Routes, ServeError> {
    let grpc = Grpc(Arc::clone(app));
    let most = app.config.limits.message_bytes;
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let broken = |error: tonic_reflection::server::Error| ServeError::Internal(error.to_string());
    // Older clients know it by its first name.
    let (now, before) = (
        reflection().build_v1().map_err(broken)?,
        reflection().build_v1alpha().map_err(broken)?,
    );
    let (health, service) = tonic_health::server::health_reporter();
    let watched = Arc::clone(app);
    tokio::spawn(async move {
        loop {
            let status = match watched.is_ready() {
                true => tonic_health::ServingStatus::Serving,
                false => tonic_health::ServingStatus::NotServing,
            };
            health.set_service_status("", status).await;
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        }
    });
    let mut routes = Routes::builder();
    routes
        .add_service(now)
        .add_service(before)
        .add_service(service)
        .add_service(
            v1::models_server::ModelsServer::new(grpc.clone()).max_decoding_message_size(most),
        )
        .add_service(
            v1::sessions_server::SessionsServer::new(grpc.clone()).max_decoding_message_size(most),
        )
        .add_service(
            v1::white_box_server::WhiteBoxServer::new(grpc.clone()).max_decoding_message_size(most),
        )
        .add_service(v1::server_server::ServerServer::new(grpc));
    Ok(routes.routes())
}
