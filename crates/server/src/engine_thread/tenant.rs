//! An engine thread as the device pool sees it.

use std::{sync::Arc, time::Instant};

use super::{
    job_queue::{JobQueue, SERVER},
    shared::SharedState,
    worker::EngineJob,
};
use crate::device_pool::Tenant;

/// A model in the turns that models take on the device.
pub(super) struct ModelTenant {
    /// Name of the model.
    pub name: String,
    /// Jobs of the engine thread.
    pub jobs: Arc<JobQueue<EngineJob>>,
    /// State of the engine thread.
    pub shared: Arc<SharedState>,
}

impl Tenant for ModelTenant {
    fn name(&self) -> &str {
        &self.name
    }

    fn is_idle(&self) -> bool {
        !self.shared.is_busy() && self.jobs.len() == 0
    }

    fn last_used(&self) -> Instant {
        self.shared.last_used()
    }

    fn wake(&self) {
        self.jobs.push_unlimited(SERVER, Box::new(|_| {}));
    }
}
