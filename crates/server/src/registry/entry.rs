//! Entry of a model in the registry, and its description for clients.

use std::sync::Arc;

use djinn_engine::LoadProgress;
use djinn_wire::v1;
use tokio::sync::watch;

use crate::{
    config::ServedModel,
    engine_thread::{LoadedModel, facts},
};

/// A model that the server knows.
#[derive(Clone)]
pub struct ModelEntry {
    /// Name, reference and load options.
    pub config: ServedModel,
    /// Whether the operator configured the model. If not, a client registered it.
    pub trusted: bool,
    /// Whether the model is loaded.
    pub state: LoadState,
}

/// Load state of a model.
#[derive(Clone)]
pub enum LoadState {
    /// The model is known and not loaded.
    Unloaded,
    /// The model is being loaded. The channel reports the progress.
    Loading(watch::Receiver<LoadProgress>),
    /// The model is loaded.
    Ready(Arc<LoadedModel>),
    /// The model is being stopped. Its memory is free when its thread has ended.
    Stopping(Arc<LoadedModel>),
    /// The load or the engine failed with this message.
    Failed(String),
}

impl ModelEntry {
    /// Describes the model for clients. Only admins see where the operator's files are. Never waits for the
    /// engine.
    pub fn describe(self, for_admin: bool) -> v1::Model {
        let reference = match for_admin || !self.trusted {
            true => self.config.reference,
            false => last_part(&self.config.reference),
        };
        let mut model = v1::Model {
            name: self.config.name,
            reference,
            ..v1::Model::default()
        };
        let state = match self.state {
            LoadState::Unloaded => v1::ModelState::Unloaded,
            LoadState::Loading(progress) => {
                let LoadProgress { loaded, total } = *progress.borrow();
                model.routing = format!("loading: {loaded} of {total} bytes");
                v1::ModelState::Loading
            }
            LoadState::Stopping(loaded) => {
                describe_loaded(&mut model, &loaded);
                model.routing = "being unloaded: its memory is not free yet".to_owned();
                v1::ModelState::Failed
            }
            LoadState::Failed(failure) => {
                model.routing = failure;
                v1::ModelState::Failed
            }
            LoadState::Ready(loaded) => {
                describe_loaded(&mut model, &loaded);
                model.sessions = loaded.snapshot().sessions.values().sum();
                match loaded.is_swapped_out() {
                    true => {
                        if let Some(failure) = loaded.return_failure() {
                            model.routing = failure;
                        }
                        v1::ModelState::SwappedOut
                    }
                    false => v1::ModelState::Ready,
                }
            }
        };
        model.state = state.into();
        model
    }
}

/// Last part of a path; a reference that is not a path stays whole.
fn last_part(reference: &str) -> String {
    match reference.starts_with(['/', '.']) {
        true => reference
            .trim_end_matches('/')
            .rsplit('/')
            .next()
            .unwrap_or_default()
            .to_owned(),
        false => reference.to_owned(),
    }
}

fn describe_loaded(model: &mut v1::Model, loaded: &LoadedModel) {
    let (facts, tokenizer) = (&loaded.facts, &loaded.tokenizer);
    model.family = facts.family.to_owned();
    model.routing.clone_from(&facts.routing);
    model.dims = Some(facts::dims(&facts.dims));
    model.memory = Some(facts::memory_now(facts.memory, &loaded.snapshot().split));
    model.limits = Some(facts.limits);
    model.has_text = tokenizer.text.is_some();
    model.has_chat = tokenizer.chat.is_some();
    model.idle_s = loaded.last_used().elapsed().as_secs_f64();
    model.eos.clone_from(&tokenizer.generation.eos);
    model.max_new_tokens = tokenizer.generation.max_new_tokens.unwrap_or(0) as u64;
}
