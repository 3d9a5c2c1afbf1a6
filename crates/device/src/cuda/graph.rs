//! CUDA graphs: recorded operations that run again as one launch.

use std::collections::HashMap;

use cudarc::driver::{result, sys};

use super::driver::DriverContext;
use crate::Result;

/// Recordings of operations by number.
#[derive(Default)]
pub(super) struct Graphs {
    /// State of each number, with the time of its last use.
    known: HashMap<u64, (GraphState, u64)>,
    /// Number of uses so far.
    time: u64,
}

/// State of the recording with one number.
enum GraphState {
    /// The operations ran once: every kernel is compiled and loaded.
    Ran,
    /// The operations are recorded.
    Recorded(Graph),
    /// The operations cannot be recorded and always run as they are.
    Unrecordable,
}

/// Next step of a replay.
pub(super) enum ReplayStep {
    /// Run the operations.
    Run,
    /// Record the operations.
    Record,
    /// Do nothing: the recording is already on the stream.
    Replayed,
}

struct Graph(sys::CUgraphExec);

// SAFETY: the field is a handle of the driver, which allows its use from any thread.
unsafe impl Send for Graph {}

/// Largest number of recordings, because each takes driver memory. The least recently used ones
/// are dropped. A pass that streams weights has one recording for every region between arrivals.
const MAX_GRAPHS: usize = 128;

impl Graphs {
    /// Replays a recording, or returns the step that the caller must do instead.
    pub(super) fn next(&mut self, number: u64, stream: sys::CUstream) -> Result<ReplayStep> {
        self.time += 1;
        let Some((known, used)) = self.known.get_mut(&number) else {
            return Ok(ReplayStep::Run);
        };
        *used = self.time;
        match known {
            GraphState::Recorded(graph) => {
                // SAFETY: the graph belongs to this device and works on the slab, which outlives
                // the graph.
                unsafe { result::graph::launch(graph.0, stream) }
                    .context("replaying recorded operations")?;
                Ok(ReplayStep::Replayed)
            }
            GraphState::Ran => Ok(ReplayStep::Record),
            GraphState::Unrecordable => Ok(ReplayStep::Run),
        }
    }

    /// Marks the operations of a number as run. Drops the least recently used recording if there
    /// are too many; the driver keeps a dropped recording until it has ended.
    pub(super) fn ran(&mut self, number: u64) {
        if self.known.contains_key(&number) {
            return;
        }
        if self.known.len() == MAX_GRAPHS {
            let oldest = self.known.iter().min_by_key(|(_, (_, used))| *used);
            let oldest = oldest.map(|(number, _)| *number);
            oldest.and_then(|number| self.known.remove(&number));
        }
        self.know(number, GraphState::Ran);
    }

    fn know(&mut self, number: u64, known: GraphState) {
        self.known.insert(number, (known, self.time));
    }

    /// Records the operations that `work` puts on a stream, and runs the recording. Returns
    /// `false`, without running anything, if they cannot be recorded.
    pub(super) fn record(
        &mut self,
        number: u64,
        stream: sys::CUstream,
        work: &mut dyn FnMut() -> Result<()>,
    ) -> Result<bool> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: a stream of this device that is not recording.
        unsafe { result::stream::begin_capture(stream, mode) }.context("recording operations")?;
        let worked = work();
        // SAFETY: the same stream, which has been recording since.
        let drawn = unsafe { result::stream::end_capture(stream) };
        let made = drawn.and_then(|graph| {
            let flags = sys::CUgraphInstantiate_flags(0);
            // SAFETY: a graph just recorded.
            let made = unsafe { result::graph::instantiate(graph, flags) }.map(Graph);
            // SAFETY: not used afterwards, instantiated or not.
            let _ = unsafe { result::graph::destroy(graph) };
            made
        });
        worked?;
        let Ok(graph) = made else {
            self.know(number, GraphState::Unrecordable);
            return Ok(false);
        };
        // SAFETY: the graph belongs to this device and works on the slab, which outlives the
        // graph.
        unsafe { result::graph::launch(graph.0, stream) }
            .context("replaying recorded operations")?;
        self.know(number, GraphState::Recorded(graph));
        Ok(true)
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: created once; the driver keeps it until a running replay has ended.
        let _ = unsafe { result::graph::exec_destroy(self.0) };
    }
}
