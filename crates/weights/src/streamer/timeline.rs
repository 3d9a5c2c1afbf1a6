//! Timeline of copies, waits and computation.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Activity that an event of the timeline belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TimelineLane {
    /// Operations of a segment, without the time in which they wait for weights.
    Compute,
    /// Wait of a pass for weights.
    Wait,
    /// Copy of a chunk by the link's worker with this number. A copy engine is worker 0.
    Link(usize),
}

/// One activity with its start and duration.
#[derive(Clone, Debug, PartialEq)]
pub struct TimelineEvent {
    /// Kind of activity.
    pub lane: TimelineLane,
    /// Name of the piece or segment.
    pub name: String,
    /// Start, in seconds since loading began.
    pub start_s: f64,
    /// Duration in seconds.
    pub seconds: f64,
    /// Bytes copied; 0 if nothing was copied.
    pub bytes: u64,
}

/// Recorded events.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timeline {
    /// Events in order of their start.
    pub events: Vec<TimelineEvent>,
    /// Number of events that were dropped because the record was full.
    pub left_out: u64,
}

/// Largest number of events that a trace viewer opens.
const EVENTS_MAX: usize = 1 << 20;

/// Recorder of events. It starts switched off.
pub struct Recorder {
    on: AtomicBool,
    zero: Instant,
    /// Names of the labels `0..`.
    names: Vec<String>,
    events: Mutex<Vec<RecordedEvent>>,
    left_out: AtomicU64,
}

struct RecordedEvent {
    lane: TimelineLane,
    label: u32,
    bytes: u64,
    began: Instant,
    ended: Instant,
}

impl Recorder {
    /// Creates a recorder that is off, with names for the labels `0..`.
    pub fn new(names: Vec<String>) -> Self {
        Recorder {
            on: AtomicBool::new(false),
            zero: Instant::now(),
            names,
            events: Mutex::default(),
            left_out: AtomicU64::new(0),
        }
    }

    /// Clears the record and starts recording.
    pub fn turn_on(&self) {
        self.clear();
        self.on.store(true, Ordering::Relaxed);
    }

    /// Stops recording and returns the record.
    pub fn turn_off(&self) -> Timeline {
        self.on.store(false, Ordering::Relaxed);
        let timeline = self.timeline();
        self.clear();
        timeline
    }

    fn clear(&self) {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        *events = Vec::new();
        self.left_out.store(0, Ordering::Relaxed);
    }

    /// Whether events are recorded.
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Records an activity that began at `began` and ends now.
    pub fn note(&self, lane: TimelineLane, label: u32, bytes: u64, began: Instant) {
        self.note_past(lane, label, bytes, began..Instant::now());
    }

    /// Records an activity that is over.
    pub fn note_past(&self, lane: TimelineLane, label: u32, bytes: u64, time: Range<Instant>) {
        if self.is_on() {
            let (began, ended) = (time.start, time.end);
            let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
            if events.len() < EVENTS_MAX {
                events.push(RecordedEvent {
                    lane,
                    label,
                    bytes,
                    began,
                    ended,
                });
            } else {
                self.left_out.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Returns the events recorded so far.
    pub fn timeline(&self) -> Timeline {
        let recorded = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let mut events: Vec<TimelineEvent> = recorded
            .iter()
            .map(|event| TimelineEvent {
                lane: event.lane,
                name: self.names[event.label as usize].clone(),
                start_s: event
                    .began
                    .saturating_duration_since(self.zero)
                    .as_secs_f64(),
                seconds: event
                    .ended
                    .saturating_duration_since(event.began)
                    .as_secs_f64(),
                bytes: event.bytes,
            })
            .collect();
        events.sort_by(|a, b| a.start_s.total_cmp(&b.start_s));
        Timeline {
            events,
            left_out: self.left_out.load(Ordering::Relaxed),
        }
    }
}
