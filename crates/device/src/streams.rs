//! Streams and events.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::Result;

/// An ordered queue of work on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stream {
    /// Operations.
    Compute,
    /// Copies of weights into the slab.
    Copy,
    /// Copies of KV pages into the slab.
    PageIn,
    /// Copies of KV pages out of the slab.
    PageOut,
}

impl Stream {
    /// Every stream of a device.
    pub const ALL: [Stream; 4] = [
        Stream::Compute,
        Stream::Copy,
        Stream::PageIn,
        Stream::PageOut,
    ];
}

/// A point in a stream that another stream or the host can wait for. An event belongs to the
/// device that recorded it, and holds the time at which the stream passed it.
#[derive(Clone)]
pub struct Event(Arc<dyn Any + Send + Sync>);

impl Event {
    pub(crate) fn new(mark: impl Any + Send + Sync) -> Self {
        Event(Arc::new(mark))
    }

    /// Returns the device's own record of the event, or `None` for another device's event.
    pub(crate) fn mark<T: Any>(&self) -> Option<&T> {
        self.0.downcast_ref()
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Event")
    }
}

/// Ordering of work between streams and the host.
pub trait Streams: Send + Sync {
    /// Records an event after the work that is on `stream` now.
    fn record(&self, stream: Stream) -> Result<Event>;
    /// Makes later work on `stream` wait for `event`.
    fn wait(&self, stream: Stream, event: &Event) -> Result<()>;
    /// Returns whether the stream has passed `event`.
    fn is_past(&self, event: &Event) -> Result<bool>;
    /// Blocks the caller until the stream has passed `event`.
    fn wait_here(&self, event: &Event) -> Result<()>;
    /// Seconds between two events that have both been passed.
    fn seconds_between(&self, from: &Event, to: &Event) -> Result<f64>;
    /// Blocks the caller until `stream` is idle.
    fn synchronize(&self, stream: Stream) -> Result<()>;
    /// Runs `work`, or replays the operations that `work` enqueued when it last ran under
    /// this number. A replay runs the same operations on the same views without the cost of
    /// launching each. `work` must only enqueue operations: no upload, download, event or
    /// wait.
    fn replay(&self, _number: u64, work: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        work()
    }
}
