//! gRPC: one file for each service of the protocol.

mod events;
mod models_service;
mod server_service;
mod service;
mod session_info;
mod sessions_service;
mod white_box_service;

use std::{sync::Arc, time::Duration};

use djinn_wire::{DESCRIPTORS, v1};
use tonic::service::Routes;

use self::service::GrpcService;
use crate::{ServeError, app::App};

/// Interval at which the health service copies the server's readiness.
const HEALTH_POLL: Duration = Duration::from_millis(200);

/// Routes of all services, with reflection and health checks.
pub fn routes(app: &Arc<App>) -> Result<Routes, ServeError> {
    let service = GrpcService(Arc::clone(app));
    let message_bytes = app.config.limits.message_bytes;
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let failed = |error: tonic_reflection::server::Error| ServeError::Internal(error.to_string());
    let reflection_v1 = reflection().build_v1().map_err(failed)?;
    // Older clients use the first name of the reflection service.
    let reflection_alpha = reflection().build_v1alpha().map_err(failed)?;
    let (health, health_service) = tonic_health::server::health_reporter();
    let watched = Arc::clone(app);
    tokio::spawn(async move {
        loop {
            let status = match watched.not_ready() {
                None => tonic_health::ServingStatus::Serving,
                Some(_) => tonic_health::ServingStatus::NotServing,
            };
            health.set_service_status("", status).await;
            tokio::time::sleep(HEALTH_POLL).await;
        }
    });
    let models = v1::models_server::ModelsServer::new(service.clone());
    let sessions = v1::sessions_server::SessionsServer::new(service.clone());
    let white_box = v1::white_box_server::WhiteBoxServer::new(service.clone());
    let mut routes = Routes::builder();
    routes
        .add_service(reflection_v1)
        .add_service(reflection_alpha)
        .add_service(health_service)
        .add_service(models.max_decoding_message_size(message_bytes))
        .add_service(sessions.max_decoding_message_size(message_bytes))
        .add_service(white_box.max_decoding_message_size(message_bytes))
        .add_service(v1::server_server::ServerServer::new(service));
    Ok(routes.routes())
}
