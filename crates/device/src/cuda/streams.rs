//! Events, waits and replays on the card's streams.

use std::sync::PoisonError;

use cudarc::driver::{result, sys};

use super::CudaDevice;
use super::driver::DriverContext;
use super::event::Mark;
use super::graph::ReplayStep;
use crate::{Event, Result, Stream, Streams};

impl Streams for CudaDevice {
    fn record(&self, stream: Stream) -> Result<Event> {
        if stream == Stream::Compute {
            self.state().interrupt();
        }
        self.card.enter()?;
        let mark = self.events.take()?;
        let stream = self.queue(stream).stream;
        // SAFETY: stream and event belong to this device.
        unsafe { result::event::record(mark.event(), stream) }.context("recording an event")?;
        Ok(Event::new(mark))
    }

    fn wait(&self, stream: Stream, event: &Event) -> Result<()> {
        if stream == Stream::Compute {
            self.state().interrupt();
        }
        self.card.enter()?;
        let event = self.mark(event)?.event();
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        let stream = self.queue(stream).stream;
        // SAFETY: stream and event belong to this device.
        unsafe { result::stream::wait_event(stream, event, flags) }.context("waiting for an event")
    }

    fn is_past(&self, event: &Event) -> Result<bool> {
        self.card.enter()?;
        // SAFETY: an event of this device.
        let found = unsafe { sys::cuEventQuery(self.mark(event)?.event()) };
        match found {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            other => other.result().context("querying an event").map(|()| true),
        }
    }

    fn wait_here(&self, event: &Event) -> Result<()> {
        self.card.enter()?;
        // SAFETY: an event of this device.
        unsafe { result::event::synchronize(self.mark(event)?.event()) }
            .context("waiting for an event")
    }

    fn seconds_between(&self, from: &Event, to: &Event) -> Result<f64> {
        self.card.enter()?;
        let (from, to) = (self.mark(from)?.event(), self.mark(to)?.event());
        // SAFETY: events of this device.
        let milliseconds = unsafe { result::event::elapsed(from, to) };
        Ok(f64::from(milliseconds.context("reading the time between events")?) / 1e3)
    }

    fn synchronize(&self, stream: Stream) -> Result<()> {
        // Waits for a pass that was abandoned. Its faults must not appear in the next pass.
        if stream == Stream::Compute {
            return self.finish();
        }
        self.card.enter()?;
        self.queue(stream).wait()
    }

    fn replay(&self, number: u64, work: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        self.card.enter()?;
        let mut graphs = self.graphs.lock().unwrap_or_else(PoisonError::into_inner);
        // A replay leaves no launch state behind, and a recording must not depend on launch
        // state.
        self.state().forget();
        let done = match graphs.next(number, self.compute.stream)? {
            ReplayStep::Replayed => Ok(()),
            ReplayStep::Run => work().map(|()| graphs.ran(number)),
            ReplayStep::Record => match graphs.record(number, self.compute.stream, &mut *work) {
                Ok(true) => Ok(()),
                Ok(false) => {
                    self.state().forget();
                    work()
                }
                Err(error) => Err(error),
            },
        };
        self.state().forget();
        done
    }
}

impl CudaDevice {
    /// Returns the driver's event behind an event of this device.
    fn mark<'e>(&self, event: &'e Event) -> Result<&'e Mark> {
        match event.mark() {
            Some(mark) => Ok(mark),
            None => self
                .op("event")
                .fail("the event belongs to another device".into()),
        }
    }
}
