//! Settings that only a program with a server in its process can give.

use djinn_engine::{Blueprint, LoadProgress, RestoreScope, StateFolder};
use djinn_model::Model;

use crate::ServeError;

/// Function that plans the layout of an engine for a model.
pub type DrawBlueprint = Box<dyn Fn(&Model) -> Result<Blueprint, ServeError> + Send + Sync>;
/// Function that opens a folder of saved sessions, and returns which of them to restore.
pub type OpenState = Box<dyn Fn() -> Result<(StateFolder, RestoreScope), ServeError> + Send + Sync>;

/// Settings of the models of a server in process, set by the program that starts the server.
pub struct Preset {
    /// Plans the layout, in place of [`LoadOptions`](crate::LoadOptions) and the server's limits.
    pub draw: DrawBlueprint,
    /// Opens the folder of saved sessions, in place of [`ServerConfig::state`](crate::ServerConfig::state).
    pub open_state: Option<OpenState>,
    /// Receives the progress of loading.
    pub progress: Box<dyn Fn(LoadProgress) + Send + Sync>,
    /// Whether the bandwidth of the link is measured before loading.
    pub measure_link: bool,
}
