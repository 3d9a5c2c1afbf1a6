//! State that a pass carries from its first operation to its results.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use djinn_device::Event;
use djinn_model::{
    Site, StopPoint,
    program::{Buf, SegmentKind},
};

use crate::probe::staging::StagedRead;

/// Progress of a pass: the current segment, and what was read and paused so far.
#[derive(Default)]
pub(crate) struct PassProgress {
    /// Segment whose operations currently run.
    pub segment: Option<SegmentKind>,
    /// Operations at which a session reads, edits or enters in this pass.
    pub observed: BTreeSet<usize>,
    /// Whether a session may pause at some hook of this pass.
    pub may_pause: bool,
    /// Last block that ran.
    pub block: Option<usize>,
    /// By block: event after the copies of the block's slices to the KV window.
    pub window: BTreeMap<usize, Event>,
    /// First block whose slices are not copied to the KV window yet.
    pub next_slices: usize,
    /// Captures in flight to the host, in the order of their hooks.
    pub read: Vec<PendingCapture>,
    /// Rows that pass through the head for the logit lens.
    pub under: Vec<LensRows>,
    /// Rows that paused at a hook.
    pub stopped: Vec<PausedRows>,
    /// Host time spent on saving paused rows.
    pub stop_time: Duration,
}

/// Capture of one session at one hook, in flight to the host.
pub(crate) struct PendingCapture {
    pub member: usize,
    pub site: Site,
    pub sent: StagedRead,
    /// Number of rows summed so far, for captures that take a mean.
    pub summed: Option<usize>,
}

/// Rows of one session that pass through the head for the logit lens.
pub(crate) struct LensRows {
    pub member: usize,
    pub site: Site,
    pub first_row: usize,
    pub rows: usize,
}

/// Rows of one session that paused at a hook, and the buffers saved for them.
pub(crate) struct PausedRows {
    pub member: usize,
    /// First position that paused.
    pub position: usize,
    pub stop: Arc<StopPoint>,
    /// Saved buffers; one staged read for each row span of the session.
    pub live: Vec<(Buf, Vec<StagedRead>)>,
}
