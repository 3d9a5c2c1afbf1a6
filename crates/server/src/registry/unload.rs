//! Unloading of models, at the request of an admin or because host memory is short.

use std::sync::{Arc, PoisonError};

use futures_util::future::join_all;

use super::{Registry, entry::LoadState};
use crate::{ServeError, engine_thread::LoadedModel};

impl Registry {
    /// Stops a model. The model is unloaded when its thread has ended, because its memory is free then.
    async fn stop(&self, model: Arc<LoadedModel>) -> Result<(), ServeError> {
        let name = model.name.clone();
        self.set_state(&name, LoadState::Stopping(Arc::clone(&model)));
        let stopped = tokio::task::spawn_blocking(move || model.stop()).await;
        if stopped.unwrap_or(false) {
            self.set_state(&name, LoadState::Unloaded);
            return Ok(());
        }
        Err(ServeError::unavailable(format!(
            "The engine thread of {name} does not end, and holds its memory until then; retry later, or \
             restart the server"
        )))
    }

    /// Unloads a model. Fails without `force` if open sessions would be lost. `forget` also removes the
    /// model from the registry.
    pub async fn unload(&self, name: &str, force: bool, forget: bool) -> Result<(), ServeError> {
        let name = self.known(name)?;
        let lock = self.lock_of(&name);
        let _one_at_a_time = lock.lock().await;
        if let Some(model) = self.ready(&name) {
            if self.config.state.is_none() && !force {
                let open = model.call_as_server(|worker| Ok(worker.engine.list(None).len()));
                let open = open.await?;
                if open > 0 {
                    return Err(ServeError::Conflict(format!(
                        "Unloading {name} would lose {open} open sessions: close them, or pass force"
                    )));
                }
            }
            self.stop(model).await?;
        } else if let Some(model) = self.stopping(&name) {
            self.stop(model).await?;
        }
        if !forget {
            self.set_state(&name, LoadState::Unloaded);
            return Ok(());
        }
        let next = {
            let mut entries = self.entries();
            entries.remove(&name);
            entries.keys().next().cloned()
        };
        let mut default = self.default.lock().unwrap_or_else(PoisonError::into_inner);
        if default.as_ref() == Some(&name) {
            *default = next;
        }
        Ok(())
    }

    /// Ends the loads that wait for memory, and unloads every model, before the server ends.
    pub async fn stop_all(&self) {
        self.pool.close();
        // The process ends in any case. Models save their prefix caches at the same time.
        let names: Vec<String> = self.entries().keys().cloned().collect();
        let stopping = names.iter().filter_map(|name| self.stopping(name));
        let models = self.loaded().into_iter().chain(stopping);
        join_all(models.map(|model| self.stop(model))).await;
    }

    /// Unloads an idle model to free host memory for `name`: one that is swapped out before the others,
    /// and the least recently used one first. Returns whether one was unloaded.
    pub(super) async fn evict_idle(&self, name: &str) -> bool {
        let durable = self.config.state.is_some();
        let mut idle = Vec::new();
        for model in self.loaded() {
            let can_unload = model.call_as_server(move |worker| Ok(worker.can_unload(durable)));
            if model.name != name && can_unload.await.unwrap_or(false) {
                idle.push(((!model.is_swapped_out(), model.last_used()), model));
            }
        }
        idle.sort_by_key(|(order, _)| *order);
        for (_, model) in idle {
            // No other task loads or unloads the model meanwhile.
            let lock = self.lock_of(&model.name);
            let Ok(_alone) = lock.try_lock() else {
                continue;
            };
            // The model may have become busy since. The job checks again, and rejects further
            // jobs if the model is idle.
            let closed = model.call_as_server(move |worker| Ok(worker.close_for_unload(durable)));
            if closed.await.unwrap_or(false) {
                tracing::info!(model = model.name, for_model = name, "idle model unloaded");
                if self.stop(model).await.is_ok() {
                    return true;
                }
            }
        }
        false
    }

    /// Returns a model whose thread did not end when it was stopped.
    fn stopping(&self, name: &str) -> Option<Arc<LoadedModel>> {
        match &self.entries().get(name)?.state {
            LoadState::Stopping(model) => Some(Arc::clone(model)),
            _ => None,
        }
    }
}
