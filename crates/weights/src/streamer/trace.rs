//! What a device's events tell of a pass, once they are past.

use std::ops::Range;
use std::time::{Duration, Instant};

use djinn_device::{Device, Event};

use super::{
    PassStats, Result,
    copier::Copied,
    timeline::{Lane, Recorder},
};

/// A stretch of the compute stream.
#[derive(Debug)]
pub(super) struct StreamInterval {
    pub label: u32,
    pub from: Event,
    pub to: Event,
}

/// Events of one pass.
#[derive(Debug, Default)]
pub(super) struct PassTrace {
    pub copies: Vec<Copied>,
    /// Where the compute stream waited for a copy.
    pub stalls: Vec<StreamInterval>,
    /// Where it computed; kept only for the record.
    pub segments: Vec<StreamInterval>,
    /// Bytes that came with the pass's own work.
    pub row_bytes: u64,
}

impl PassTrace {
    /// What the pass cost, with the wall clock's part left open. All events are past.
    pub fn stats(&self, device: &dyn Device) -> Result<PassStats> {
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

    /// Puts all of it on the record. `end` comes after everything here, and was passed
    /// at `at`.
    pub fn record(
        &self,
        device: &dyn Device,
        recorder: &Recorder,
        end: &Event,
        at: Instant,
    ) -> Result<()> {
        let time = |from: &Event, to: &Event| -> Result<Range<Instant>> {
            let when = |event| -> Result<Instant> {
                let before = device.seconds_between(event, end)?.max(0.0);
                let before = Duration::try_from_secs_f64(before).unwrap_or_default();
                Ok(at.checked_sub(before).unwrap_or(at))
            };
            Ok(when(from)?..when(to)?)
        };
        for copy in &self.copies {
            let time = time(&copy.began, &copy.arrived)?;
            recorder.note_past(Lane::Link(0), copy.label, copy.bytes, time);
        }
        let stalls = self.stalls.iter().map(|stretch| (Lane::Wait, stretch));
        let segments = self.segments.iter().map(|s| (Lane::Compute, s));
        for (lane, stretch) in stalls.chain(segments) {
            let time = time(&stretch.from, &stretch.to)?;
            recorder.note_past(lane, stretch.label, 0, time);
        }
        Ok(())
    }
}
