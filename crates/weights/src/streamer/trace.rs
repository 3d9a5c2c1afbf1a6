//! Trace of a pass by events of the device. The times are read after the events are past.

use std::ops::Range;
use std::time::{Duration, Instant};

use djinn_device::{Device, DeviceError, Event};

use super::{
    copier::EnqueuedCopy,
    stats::PassStats,
    timeline::{Recorder, TimelineLane},
};

/// Part of the compute stream between two events.
#[derive(Debug)]
pub(super) struct StreamInterval {
    pub label: u32,
    pub from: Event,
    pub to: Event,
}

/// Events of one pass.
#[derive(Debug, Default)]
pub(super) struct PassTrace {
    /// Copies that the pass waited for.
    pub copies: Vec<EnqueuedCopy>,
    /// Waits of the compute stream for a copy.
    pub stalls: Vec<StreamInterval>,
    /// Computation of segments; collected only while the recorder is on.
    pub segments: Vec<StreamInterval>,
    /// Bytes of table rows that the pass itself uploaded.
    pub row_bytes: u64,
}

impl PassTrace {
    /// Returns the cost of the pass, except rows and duration. All events must be past.
    pub fn stats(&self, device: &dyn Device) -> Result<PassStats, DeviceError> {
        let mut stats = PassStats {
            link_bytes: self.row_bytes,
            ..PassStats::default()
        };
        for copy in &self.copies {
            stats.link_bytes += copy.bytes;
            stats.link_s += device.seconds_between(&copy.began, &copy.arrived)?;
        }
        for stall in &self.stalls {
            stats.stall_s += device.seconds_between(&stall.from, &stall.to)?;
        }
        Ok(stats)
    }

    /// Records all events. `end` is the last event of the pass. The pass reached `end` at `at`.
    pub fn record(
        &self,
        device: &dyn Device,
        recorder: &Recorder,
        end: &Event,
        at: Instant,
    ) -> Result<(), DeviceError> {
        let time = |from: &Event, to: &Event| -> Result<Range<Instant>, DeviceError> {
            let when = |event| -> Result<Instant, DeviceError> {
                let before = device.seconds_between(event, end)?.max(0.0);
                let before = Duration::try_from_secs_f64(before).unwrap_or_default();
                Ok(at.checked_sub(before).unwrap_or(at))
            };
            Ok(when(from)?..when(to)?)
        };
        for copy in &self.copies {
            let time = time(&copy.began, &copy.arrived)?;
            recorder.note_past(TimelineLane::Link(0), copy.label, copy.bytes, time);
        }
        let stalls = self.stalls.iter().map(|s| (TimelineLane::Wait, s));
        let segments = self.segments.iter().map(|s| (TimelineLane::Compute, s));
        for (lane, interval) in stalls.chain(segments) {
            let time = time(&interval.from, &interval.to)?;
            recorder.note_past(lane, interval.label, 0, time);
        }
        Ok(())
    }
}
