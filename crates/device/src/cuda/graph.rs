//! Operations that are put on the card again without asking for each.

use std::collections::HashMap;

use cudarc::driver::{result, sys};

use super::card::Said;
use crate::Result;

/// What was recorded, by number.
#[derive(Default)]
pub(super) struct Graphs {
    /// Each with the time of its last use.
    known: HashMap<u64, (Known, u64)>,
    /// Uses so far.
    time: u64,
}

/// How far a number has come.
enum Known {
    /// It ran once: everything it needs is compiled and loaded.
    Ran,
    /// It can be run again.
    Recorded(Graph),
    /// It could not be recorded, and is run as it is.
    Never,
}

/// What to do about a number.
pub(super) enum Next {
    /// Run it as it is.
    Run,
    /// Run it under a recorder.
    Record,
    /// It was put on the stream again.
    Done,
}

struct Graph(sys::CUgraphExec);

// SAFETY: a handle of the driver.
unsafe impl Send for Graph {}

/// Numbers that are remembered at most, those used last: each takes some memory of the
/// driver's. A pass that streams has one for every stretch between arrivals.
const MOST: usize = 128;

impl Graphs {
    /// Says what is to be done, or does it.
    pub(super) fn next(&mut self, number: u64, stream: sys::CUstream) -> Result<Next> {
        self.time += 1;
        let Some((known, used)) = self.known.get_mut(&number) else {
            return Ok(Next::Run);
        };
        *used = self.time;
        match known {
            Known::Recorded(graph) => {
                // SAFETY: a graph of this device; what it works on is the slab, which
                // outlives it.
                unsafe { result::graph::launch(graph.0, stream) }.said("replaying")?;
                Ok(Next::Done)
            }
            Known::Ran => Ok(Next::Record),
            Known::Never => Ok(Next::Run),
        }
    }

    /// A number was run as it is. It takes the place of the one that was not used for
    /// longest; the driver keeps what of that is still under way.
    pub(super) fn ran(&mut self, number: u64) {
        if self.known.contains_key(&number) {
            return;
        }
        if self.known.len() == MOST {
            let oldest = self.known.iter().min_by_key(|(_, (_, used))| *used);
            let oldest = oldest.map(|(number, _)| *number);
            oldest.and_then(|number| self.known.remove(&number));
        }
        self.know(number, Known::Ran);
    }

    fn know(&mut self, number: u64, known: Known) {
        self.known.insert(number, (known, self.time));
    }

    /// Records what `work` puts on a stream, and puts it there. `false` where that cannot be
    /// recorded, now or later; nothing was put there then.
    pub(super) fn record(
        &mut self,
        number: u64,
        stream: sys::CUstream,
        work: impl FnOnce() -> Result<()>,
    ) -> Result<bool> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: a stream of this device, on which nothing is being recorded.
        unsafe { result::stream::begin_capture(stream, mode) }.said("beginning to record")?;
        let worked = work();
        // SAFETY: the same stream, which has been recording since.
        let drawn = unsafe { result::stream::end_capture(stream) };
        let made = drawn.and_then(|graph| {
            let flags = sys::CUgraphInstantiate_flags(0);
            // SAFETY: a graph just recorded.
            let made = unsafe { result::graph::instantiate(graph, flags) }.map(Graph);
            // SAFETY: no longer needed, instantiated or not.
            let _ = unsafe { result::graph::destroy(graph) };
            made
        });
        worked?;
        let Ok(graph) = made else {
            self.know(number, Known::Never);
            return Ok(false);
        };
        // SAFETY: as in `next`.
        unsafe { result::graph::launch(graph.0, stream) }.said("replaying")?;
        self.know(number, Known::Recorded(graph));
        Ok(true)
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made once; what of it is under way the driver keeps until it has ended.
        let _ = unsafe { result::graph::exec_destroy(self.0) };
    }
}
