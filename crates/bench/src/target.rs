//! Device, memory and model that a benchmark measures.

use djinn_device::Backend;
use djinn_engine::{Blueprint, Engine, Request, SessionId, Settings};
use djinn_model::Model;
use djinn_weights::MemorySettings;

use crate::BenchError;

/// Caller of a benchmark: opens and loads the model, and shows progress.
pub trait BenchHost {
    /// Opens the model. Benchmarks that load two engines open the model twice.
    fn open(&self) -> Result<Model, BenchError>;

    /// Loads an engine.
    fn load(&self, model: Model, blueprint: Blueprint) -> Result<Engine, BenchError>;

    /// Replaces the progress line.
    fn progress(&self, text: &str);

    /// Prints a line that stays.
    fn note(&self, text: &str);
}

/// Device and memory that a benchmark runs with.
pub struct BenchTarget<'a> {
    /// Device that computes.
    pub backend: &'a dyn Backend,
    /// Threads of a processor, if the user set them.
    pub threads: Option<usize>,
    /// Memory of the device, and how weights stream into it.
    pub memory: MemorySettings,
    /// Whether the user set the memory budget.
    pub has_budget: bool,
    /// Tokens of a prompt that pass through the model together.
    pub rows: usize,
    /// Caller that opens and loads the model.
    pub host: &'a dyn BenchHost,
}

impl BenchTarget<'_> {
    /// Loads an engine laid out for these requests and opens a session for each.
    pub(crate) fn start(
        &self,
        model: Model,
        requests: Vec<Request>,
    ) -> Result<(Engine, Vec<SessionId>), BenchError> {
        let settings = Settings::for_requests(&model, &requests, self.rows)?;
        let blueprint = Blueprint::draw(&model, self.backend, settings, self.memory)?;
        let mut engine = self.host.load(model, blueprint)?;
        let ids = requests
            .into_iter()
            .map(|request| engine.open(request))
            .collect::<Result<_, _>>()?;
        Ok((engine, ids))
    }
}
