//! What happened when: copies, waits and products, for those who want to look.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Who was at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    /// A segment's operations, as long as they do not wait.
    Compute,
    /// The pass waiting for a piece.
    Wait,
    /// A worker of the link, copying a chunk; of a copy engine there is one.
    Link(usize),
}

/// Something that took a while.
#[derive(Clone, Debug, PartialEq)]
pub struct TimelineEvent {
    /// Who.
    pub lane: Lane,
    /// Which piece or segment.
    pub name: String,
    /// Seconds since loading began.
    pub start_s: f64,
    /// How long.
    pub seconds: f64,
    /// Bytes copied; 0 for others.
    pub bytes: u64,
}

/// A record.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timeline {
    /// In order of time.
    pub events: Vec<TimelineEvent>,
    /// Events that came when there was no more room for them.
    pub left_out: u64,
}

/// Events kept at most: as many as a viewer still opens.
const EVENTS_MAX: usize = 1 << 20;

/// Keeps events once it is told to, until there are too many.
pub struct Recorder {
    on: AtomicBool,
    zero: Instant,
    /// What labels mean.
    names: Vec<String>,
    events: Mutex<Vec<Noted>>,
    left_out: AtomicU64,
}

struct Noted {
    lane: Lane,
    label: u32,
    bytes: u64,
    began: Instant,
    ended: Instant,
}

impl Recorder {
    /// Off, with names for the labels `0..`.
    pub fn new(names: Vec<String>) -> Self {
        Recorder {
            on: AtomicBool::new(false),
            zero: Instant::now(),
            names,
            events: Mutex::default(),
            left_out: AtomicU64::new(0),
        }
    }

    /// Keeps events from now on, and none of before.
    pub fn turn_on(&self) {
        self.clear();
        self.on.store(true, Ordering::Relaxed);
    }

    /// Keeps no more, and gives what was kept.
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

    /// Whether events are kept.
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Notes something that began then and ends now.
    pub fn note(&self, lane: Lane, label: u32, bytes: u64, began: Instant) {
        self.note_past(lane, label, bytes, began..Instant::now());
    }

    /// Notes something that is over.
    pub fn note_past(&self, lane: Lane, label: u32, bytes: u64, time: Range<Instant>) {
        if self.is_on() {
            let (began, ended) = (time.start, time.end);
            let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
            if events.len() < EVENTS_MAX {
                events.push(Noted {
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

    /// Everything noted so far, in order of time.
    pub fn timeline(&self) -> Timeline {
        let noted = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let mut events: Vec<TimelineEvent> = noted
            .iter()
            .map(|noted| TimelineEvent {
                lane: noted.lane,
                name: self.names[noted.label as usize].clone(),
                start_s: noted
                    .began
                    .saturating_duration_since(self.zero)
                    .as_secs_f64(),
                seconds: noted
                    .ended
                    .saturating_duration_since(noted.began)
                    .as_secs_f64(),
                bytes: noted.bytes,
            })
            .collect();
        events.sort_by(|a, b| a.start_s.total_cmp(&b.start_s));
        Timeline {
            events,
            left_out: self.left_out.load(Ordering::Relaxed),
        }
    }
}
