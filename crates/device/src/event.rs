//! Points in a stream.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// A point in a stream that another stream, or the caller, can wait for, and that knows
/// when it was passed. Belongs to the device that recorded it.
#[derive(Clone)]
pub struct Event(Arc<dyn Any + Send + Sync>);

impl Event {
    pub(crate) fn new(mark: impl Any + Send + Sync) -> Self {
        Event(Arc::new(mark))
    }

    /// What the device keeps of it, if it is that device's.
    pub(crate) fn mark<T: Any>(&self) -> Option<&T> {
        self.0.downcast_ref()
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Event")
    }
}
