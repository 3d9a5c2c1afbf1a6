//! How fast bytes reach a card and leave it, and how fast it moves its own: what streaming
//! and computing are held against.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::{result, sys};

use super::card::Card;
use super::driver::DriverContext;
use super::event::{Events, Mark};
use super::memory::{DeviceMemory, Queue};
use super::pinned::Pinned;
use crate::host::{self, Buffer};
use crate::{DeviceError, Result};

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the host to the card.
    In,
    /// From the card to the host.
    Out,
    /// Half of them in and half of them out, at the same time.
    Both,
}

/// What kind of memory they have on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostMemory {
    /// Pinned: the card reads it by itself.
    Pinned,
    /// As any program has it: the driver copies it first.
    Pageable,
}

/// Bytes to be moved, so many at a time, all queued at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Which way.
    pub direction: Direction,
    /// From or to what.
    pub memory: HostMemory,
    /// All of them.
    pub bytes: u64,
    /// Bytes of a copy.
    pub chunk: u64,
}

/// DeviceMemory on both sides of a link, and what measures it.
pub struct LinkBench {
    // In the order in which they are given back.
    clock: Clock,
    there: DeviceMemory,
    pinned: Pinned,
    /// Taken when it is first asked for.
    pageable: Option<Buffer>,
    /// DeviceMemory on it lives no longer than its context.
    _card: Arc<Card>,
}

/// More is not needed to see what a link gives.
const MOST: u64 = 4 << 30;
/// Sizes are multiples of this.
const STEP: u64 = 16 << 20;

impl LinkBench {
    /// The most bytes that can be measured with now, `most` or less: a quarter of the
    /// host's free memory and half of the card's.
    pub fn room(card: &Card, most: u64) -> Result<u64> {
        let (free, _) = card.memory()?;
        let room = (host::available_memory() / 4).min(free / 2);
        match room.min(most).min(MOST) / STEP * STEP {
            0 => Err(card.too_little(STEP, free)),
            bytes => Ok(bytes),
        }
    }

    /// Takes so many bytes on either side. Pinning takes a second for every 2 GB or so.
    pub fn new(card: &Arc<Card>, bytes: u64) -> Result<Self> {
        card.enter()?;
        Ok(LinkBench {
            there: DeviceMemory::new(card, bytes)?,
            pinned: Pinned::new(bytes as usize)?,
            pageable: None,
            clock: Clock::new(card)?,
            _card: Arc::clone(card),
        })
    }

    /// Seconds from the start of the first copy to the end of the last.
    pub fn measure(&mut self, how: Transfer) -> Result<f64> {
        if how.bytes > self.there.bytes || how.chunk == 0 {
            return Err(DeviceError::Setup(format!(
                "the link: {} bytes in copies of {} were asked for, there is room for {}",
                how.bytes, how.chunk, self.there.bytes
            )));
        }
        let here = match how.memory {
            HostMemory::Pinned => self.pinned.start,
            HostMemory::Pageable => self.pageable(how.bytes)?,
        };
        let lane = |inwards, queue: usize, from: u64, bytes: u64| Lane {
            inwards,
            here: here.wrapping_add(from as usize),
            there: self.there.address + from,
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
        self.clock.time(|| match how.memory {
            HostMemory::Pinned => queue_in_turns(&lanes),
            HostMemory::Pageable => queue_at_once(card, &lanes),
        })
    }

    /// DeviceMemory that was not pinned, of at least so many bytes.
    fn pageable(&mut self, bytes: u64) -> Result<*mut u8> {
        let bytes = bytes as usize;
        if let Some(buffer) = &mut self.pageable
            && buffer.bytes().len() >= bytes
        {
            return Ok(buffer.bytes().as_mut_ptr());
        }
        let buffer = self.pageable.insert(Buffer::new(bytes)?);
        // Pages that were never written are all the same one.
        buffer.bytes().fill(1);
        Ok(buffer.bytes().as_mut_ptr())
    }
}

/// Copies that go one way.
struct Lane {
    inwards: bool,
    here: *mut u8,
    there: sys::CUdeviceptr,
    bytes: u64,
    chunk: u64,
    stream: sys::CUstream,
}

// SAFETY: a place in memory that is no other lane's, and a handle of the driver.
unsafe impl Sync for Lane {}

impl Lane {
    fn copies(&self) -> u64 {
        self.bytes.div_ceil(self.chunk)
    }

    fn queue(&self, number: u64) -> Result<()> {
        let from = number * self.chunk;
        let bytes = self.chunk.min(self.bytes - from) as usize;
        let here = self.here.wrapping_add(from as usize).cast();
        let there = self.there + from;
        // SAFETY: both sides have so many bytes from there on, which nobody else uses, and
        // stay until the clock's queues have been waited for.
        let queued = unsafe {
            match self.inwards {
                true => sys::cuMemcpyHtoDAsync_v2(there, here, bytes, self.stream),
                false => sys::cuMemcpyDtoHAsync_v2(here, there, bytes, self.stream),
            }
        };
        queued.result().context("copying over the link")
    }
}

/// A copy of each lane in turn, so that none starts late.
fn queue_in_turns(lanes: &[Lane]) -> Result<()> {
    let copies = lanes.iter().map(Lane::copies).max().unwrap_or(0);
    for number in 0..copies {
        for lane in lanes.iter().filter(|lane| number < lane.copies()) {
            lane.queue(number)?;
        }
    }
    Ok(())
}

/// A thread for each lane: copies of pageable memory keep their caller waiting.
fn queue_at_once(card: &Card, lanes: &[Lane]) -> Result<()> {
    let queue = |lane: &Lane| {
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

/// Two queues, and the time that work on them takes as the card counts it.
struct Clock {
    queues: [Queue; 2],
    events: Arc<Events>,
    card: Arc<Card>,
}

impl Clock {
    fn new(card: &Arc<Card>) -> Result<Self> {
        Ok(Clock {
            queues: [Queue::new(card, true)?, Queue::new(card, true)?],
            events: Events::new(card),
            card: Arc::clone(card),
        })
    }

    /// Seconds from now to the end of what `work` queues.
    fn time(&self, work: impl FnOnce() -> Result<()>) -> Result<f64> {
        self.card.enter()?;
        let [first, second] = &self.queues;
        let start = self.mark(first)?;
        work()?;
        let joined = self.mark(second)?;
        // SAFETY: a queue and an event of this card.
        let joining = unsafe {
            let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
            result::stream::wait_event(first.stream, joined.event(), flags)
        };
        joining.context("waiting for another stream")?;
        let end = self.mark(first)?;
        first.wait()?;
        // SAFETY: both have been recorded, and are past now.
        let ms = unsafe { result::event::elapsed(start.event(), end.event()) };
        Ok(f64::from(ms.context("asking for the time")?) / 1e3)
    }

    fn mark(&self, queue: &Queue) -> Result<Mark> {
        let mark = self.events.take()?;
        // SAFETY: an event and a queue of this card.
        unsafe { result::event::record(mark.event(), queue.stream) }.context("marking a stream")?;
        Ok(mark)
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        // DeviceMemory is given back after this, and nothing may still be copied then.
        let _ = self.card.enter();
        let _ = self.queues.iter().try_for_each(Queue::wait);
    }
}

/// Bytes moved to learn a link's rate.
const LINK_BYTES: u64 = 256 << 20;

/// Bytes a second from pinned host memory to the card, in copies of `chunk` bytes: the
/// median of as many transfers as `time` has room for.
pub fn measure_link(card: &Arc<Card>, chunk: u64, time: Duration) -> Result<f64> {
    let bytes = LinkBench::room(card, LINK_BYTES.max(chunk))?;
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

/// Bytes copied to learn what the card's own memory gives.
const MEMORY_BYTES: u64 = 2 << 30;
/// With less than this, caches are measured.
const MEMORY_BYTES_LEAST: u64 = 256 << 20;

/// Bytes a second that the card's memory gives: read plus written, by a copy within it.
/// Reads alone reach about the same, so this is what reading weights is held against.
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
    // Dropped before the memory: it waits for the last copy.
    let clock = Clock::new(card)?;
    let stream = clock.queues[0].stream;
    let copy = || {
        // SAFETY: both have so many bytes, and outlive the clock.
        let queued =
            unsafe { result::memcpy_dtod_async(to.address, from.address, bytes as usize, stream) };
        queued.context("copying on the card")
    };
    let seconds = repeated(Duration::from_millis(100), || clock.time(copy))?;
    Ok(2.0 * bytes as f64 / seconds)
}

/// The median of a measurement made again and again for so long. The first ones, while an
/// idle card wakes up, do not count.
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
        let lane = |bytes, chunk| Lane {
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
    fn medians_leave_out_the_first() {
        let mut given = [9.0, 9.0, 1.0, 3.0, 2.0].into_iter();
        let time = repeated(Duration::ZERO, || Ok(given.next().unwrap()));
        assert_eq!(time.unwrap(), 2.0);
    }
}
