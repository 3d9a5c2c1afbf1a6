//! Measurements of the link between host and card, and of the card's memory. They bound the speed
//! of streaming and computing.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::{result, sys};

use super::card::Card;
use super::driver::DriverContext;
use super::event::{Events, Mark};
use super::memory::{CudaStream, DeviceMemory};
use super::pinned::Pinned;
use crate::host::{self, Buffer};
use crate::{DeviceError, Result};

/// Direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the host to the card.
    In,
    /// From the card to the host.
    Out,
    /// Half of the bytes in and half of them out, at the same time.
    Both,
}

/// Kind of host memory of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostMemory {
    /// Pinned memory, which the card accesses directly.
    Pinned,
    /// Ordinary memory, which the driver stages through pinned memory.
    Pageable,
}

/// A transfer in copies of equal size, all enqueued at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Direction of the copies.
    pub direction: Direction,
    /// Host memory to copy from or to.
    pub memory: HostMemory,
    /// Total number of bytes.
    pub bytes: u64,
    /// Bytes of one copy.
    pub chunk: u64,
}

/// Buffers on both sides of a link, and a clock to time copies.
pub struct LinkBench {
    // Fields drop in this order.
    clock: LinkClock,
    there: DeviceMemory,
    pinned: Pinned,
    /// Pageable buffer, allocated on first use.
    pageable: Option<Buffer>,
    /// Card of the buffers. Its context must outlive the device memory.
    _card: Arc<Card>,
}

/// Largest number of bytes worth measuring with.
const MAX_BYTES: u64 = 4 << 30;
/// Granularity of sizes in bytes.
const STEP: u64 = 16 << 20;

impl LinkBench {
    /// Number of bytes to measure with: at most `most`, a quarter of the host's free memory, and
    /// half of the card's free memory.
    pub fn usable_bytes(card: &Card, most: u64) -> Result<u64> {
        let (free, _) = card.memory()?;
        let room = (host::available_memory() / 4).min(free / 2);
        match room.min(most).min(MAX_BYTES) / STEP * STEP {
            0 => Err(card.too_little(STEP, free)),
            bytes => Ok(bytes),
        }
    }

    /// Allocates buffers of `bytes` on both sides. Pinning takes about a second for 2 GB.
    pub fn new(card: &Arc<Card>, bytes: u64) -> Result<Self> {
        card.enter()?;
        Ok(LinkBench {
            there: DeviceMemory::new(card, bytes)?,
            pinned: Pinned::new(bytes as usize)?,
            pageable: None,
            clock: LinkClock::new(card)?,
            _card: Arc::clone(card),
        })
    }

    /// Runs a transfer and returns the seconds from the start of the first copy to the end of
    /// the last.
    pub fn measure(&mut self, how: Transfer) -> Result<f64> {
        if how.bytes > self.there.bytes || how.chunk == 0 {
            return Err(DeviceError::Setup(format!(
                "link measurement: a transfer of {} bytes in copies of {} does not fit the buffers of {} bytes",
                how.bytes, how.chunk, self.there.bytes
            )));
        }
        let here = match how.memory {
            HostMemory::Pinned => self.pinned.start,
            HostMemory::Pageable => self.pageable(how.bytes)?,
        };
        let lane = |inwards, queue: usize, from: u64, bytes: u64| CopyLane {
            inwards,
            here: here.wrapping_add(from as usize),
            there: self.there.address() + from,
            bytes,
            chunk: how.chunk,
            stream: self.clock.queues[queue].stream,
        };
        let half = how.bytes / 2;
        let lanes = match how.direction {
            Direction::In => vec![lane(true, 0, 0, how.bytes)],
            Direction::Out => vec![lane(false, 0, 0, how.bytes)],
            Direction::Both => vec![
                lane(true, 0, 0, half),
                lane(false, 1, half, how.bytes - half),
            ],
        };
        let card = &self.clock.card;
        let timed = self.clock.time(|| match how.memory {
            HostMemory::Pinned => queue_in_turns(&lanes),
            HostMemory::Pageable => queue_at_once(card, &lanes),
        });
        // The next measurement may replace a buffer, so no copy may stay in flight.
        timed.inspect_err(|_| self.clock.settle())
    }

    /// Returns a pageable buffer of at least `bytes`.
    fn pageable(&mut self, bytes: u64) -> Result<*mut u8> {
        let bytes = bytes as usize;
        if let Some(buffer) = &mut self.pageable
            && buffer.bytes().len() >= bytes
        {
            return Ok(buffer.bytes().as_mut_ptr());
        }
        let buffer = self.pageable.insert(Buffer::new(bytes)?);
        // Untouched pages all map to the same zero page.
        buffer.bytes().fill(1);
        Ok(buffer.bytes().as_mut_ptr())
    }
}

/// Copies in one direction.
struct CopyLane {
    inwards: bool,
    here: *mut u8,
    there: sys::CUdeviceptr,
    bytes: u64,
    chunk: u64,
    stream: sys::CUstream,
}

// SAFETY: no other lane uses the memory, and the handle belongs to the driver.
unsafe impl Sync for CopyLane {}

impl CopyLane {
    fn copies(&self) -> u64 {
        self.bytes.div_ceil(self.chunk)
    }

    fn queue(&self, number: u64) -> Result<()> {
        let from = number * self.chunk;
        let bytes = self.chunk.min(self.bytes - from) as usize;
        let here = self.here.wrapping_add(from as usize).cast();
        let there = self.there + from;
        // SAFETY: both sides have `bytes` bytes that no other copy uses, and live until the
        // clock's streams have been waited for.
        let queued = unsafe {
            match self.inwards {
                true => sys::cuMemcpyHtoDAsync_v2(there, here, bytes, self.stream),
                false => sys::cuMemcpyDtoHAsync_v2(here, there, bytes, self.stream),
            }
        };
        queued.result().context("copying over the link")
    }
}

/// Enqueues the copies of all lanes in turn, so that no lane starts late.
fn queue_in_turns(lanes: &[CopyLane]) -> Result<()> {
    let copies = lanes.iter().map(CopyLane::copies).max().unwrap_or(0);
    for number in 0..copies {
        for lane in lanes.iter().filter(|lane| number < lane.copies()) {
            lane.queue(number)?;
        }
    }
    Ok(())
}

/// Enqueues each lane from its own thread, because copies of pageable memory block.
fn queue_at_once(card: &Card, lanes: &[CopyLane]) -> Result<()> {
    let queue = |lane: &CopyLane| {
        card.enter()?;
        (0..lane.copies()).try_for_each(|number| lane.queue(number))
    };
    thread::scope(|scope| {
        let others: Vec<_> = lanes[1..]
            .iter()
            .map(|lane| scope.spawn(|| queue(lane)))
            .collect();
        let first = queue(&lanes[0]);
        let others = others.into_iter().map(|other| match other.join() {
            Ok(queued) => queued,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        std::iter::once(first)
            .chain(others.collect::<Vec<_>>())
            .collect()
    })
}

/// Two streams, and the time of their work by the card's clock.
struct LinkClock {
    queues: [CudaStream; 2],
    events: Arc<Events>,
    card: Arc<Card>,
}

impl LinkClock {
    fn new(card: &Arc<Card>) -> Result<Self> {
        Ok(LinkClock {
            queues: [CudaStream::new(card, true)?, CudaStream::new(card, true)?],
            events: Events::new(card),
            card: Arc::clone(card),
        })
    }

    /// Seconds from now to the end of the work that `work` enqueues, by the card's clock.
    fn time(&self, work: impl FnOnce() -> Result<()>) -> Result<f64> {
        self.card.enter()?;
        let [first, second] = &self.queues;
        let start = self.mark(first)?;
        work()?;
        let joined = self.mark(second)?;
        // SAFETY: a stream and an event of this card.
        let joining = unsafe {
            let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
            result::stream::wait_event(first.stream, joined.event(), flags)
        };
        joining.context("waiting for another stream")?;
        let end = self.mark(first)?;
        first.wait()?;
        // SAFETY: both events are recorded and past.
        let ms = unsafe { result::event::elapsed(start.event(), end.event()) };
        Ok(f64::from(ms.context("reading the time between events")?) / 1e3)
    }

    fn mark(&self, queue: &CudaStream) -> Result<Mark> {
        let mark = self.events.take()?;
        // SAFETY: an event and a stream of this card.
        unsafe { result::event::record(mark.event(), queue.stream) }
            .context("recording an event")?;
        Ok(mark)
    }
}

impl LinkClock {
    /// Waits for all copies. A stream that cannot be waited for has failed, and its copies with it.
    fn settle(&self) {
        for queue in &self.queues {
            let _ = queue.wait();
        }
    }
}

impl Drop for LinkClock {
    fn drop(&mut self) {
        // The buffers are freed next, so every copy must end first.
        let _ = self.card.enter();
        self.settle();
    }
}

/// Bytes of one transfer that measures the link.
const LINK_BYTES: u64 = 256 << 20;

/// Measures bytes per second from pinned host memory to the card, in copies of `chunk`
/// bytes: the median of as many transfers as fit into `time`.
pub fn measure_link(card: &Arc<Card>, chunk: u64, time: Duration) -> Result<f64> {
    let bytes = LinkBench::usable_bytes(card, LINK_BYTES.max(chunk))?;
    let mut bench = LinkBench::new(card, bytes)?;
    let how = Transfer {
        direction: Direction::In,
        memory: HostMemory::Pinned,
        bytes,
        chunk: chunk.clamp(1, bytes),
    };
    let seconds = repeated(time, || bench.measure(how))?;
    Ok(bytes as f64 / seconds)
}

/// Bytes of one copy that measures the card's memory.
const MEMORY_BYTES: u64 = 2 << 30;
/// Least number of bytes of such a copy: smaller copies would measure the caches.
const MEMORY_BYTES_LEAST: u64 = 256 << 20;

/// Measures bytes per second of the card's memory, read plus written, by a copy within it.
/// Reads alone reach about the same rate, so this is the bound for reading weights.
pub fn measure_memory(card: &Arc<Card>) -> Result<f64> {
    let (free, _) = card.memory()?;
    let bytes = MEMORY_BYTES.min(free / 4);
    if bytes < MEMORY_BYTES_LEAST {
        return Err(card.too_little(4 * MEMORY_BYTES_LEAST, free));
    }
    let (from, to) = (
        DeviceMemory::new(card, bytes)?,
        DeviceMemory::new(card, bytes)?,
    );
    // The clock drops before the memory, because its drop waits for the last copy.
    let clock = LinkClock::new(card)?;
    let stream = clock.queues[0].stream;
    let copy = || {
        // SAFETY: both buffers have `bytes` bytes and outlive the clock.
        let queued = unsafe {
            result::memcpy_dtod_async(to.address(), from.address(), bytes as usize, stream)
        };
        queued.context("copying on the card")
    };
    let seconds = repeated(Duration::from_millis(100), || clock.time(copy))?;
    Ok(2.0 * bytes as f64 / seconds)
}

/// Median of a measurement that is repeated for `time`. The first two runs do not count, because
/// an idle card needs time to reach full speed.
fn repeated(time: Duration, mut measure: impl FnMut() -> Result<f64>) -> Result<f64> {
    for _ in 0..2 {
        measure()?;
    }
    let start = Instant::now();
    let mut all = Vec::new();
    while all.len() < 3 || start.elapsed() < time {
        all.push(measure()?);
    }
    all.sort_by(f64::total_cmp);
    Ok(all[all.len() / 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_cover_a_lane() {
        let lane = |bytes, chunk| CopyLane {
            inwards: true,
            here: std::ptr::null_mut(),
            there: 0,
            bytes,
            chunk,
            stream: std::ptr::null_mut(),
        };
        assert_eq!(lane(100, 30).copies(), 4);
        assert_eq!(lane(90, 30).copies(), 3);
        assert_eq!(lane(0, 30).copies(), 0);
    }

    #[test]
    fn medians_skip_the_first_two() {
        let mut given = [9.0, 9.0, 1.0, 3.0, 2.0].into_iter();
        let time = repeated(Duration::ZERO, || Ok(given.next().unwrap()));
        assert_eq!(time.unwrap(), 2.0);
    }
}
