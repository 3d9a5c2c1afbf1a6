//! Plan of all models of a configuration.

use std::sync::Arc;

use djinn_wire::v1;

use super::{Registry, plan};
use crate::{
    ServeError, auth::KeyStore, config::ServerConfig, fatal::FatalSignal, metrics::Metrics,
};

/// Plans all models of a configuration as a server loads them, one after the other, without loading
/// them. Returns the plan of each by its name.
pub async fn plan_configured(
    config: ServerConfig,
    request: v1::PlanRequest,
) -> Result<Vec<(String, v1::PlanReply)>, ServeError> {
    let registry = Registry::new(
        &Arc::new(config),
        &Arc::new(KeyStore::open(None, "")?),
        &Metrics::new(),
        &FatalSignal::new(),
        None,
    )?;
    let mut plans: Vec<(String, v1::PlanReply)> = Vec::new();
    for model in &registry.config.models {
        let mut loader = registry.loader(model, true)?;
        // Models that are planned hold memory as models that are loaded do.
        let memory = plans.iter().filter_map(|(_, plan)| plan.memory);
        for planned in memory {
            loader.free = loader.free.saturating_sub(planned.total_bytes);
            loader.host_taken += planned.host_bytes;
        }
        loader
            .sharers
            .retain(|sharer| plans.iter().all(|(name, _)| *name != sharer.name));
        let request = request.clone();
        let planned = tokio::task::spawn_blocking(move || plan::plan(loader, &request)).await;
        let planned = planned.map_err(|error| ServeError::Internal(error.to_string()))?;
        let planned =
            planned.map_err(|error| ServeError::Conflict(format!("{}: {error}", model.name)))?;
        plans.push((model.name.clone(), planned));
    }
    Ok(plans)
}
