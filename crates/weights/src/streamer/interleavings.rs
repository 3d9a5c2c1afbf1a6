//! Tests of the queue under a model checker: random and prioritised interleavings of workers and
//! pass, with a memory that records which copy wrote each byte.

use std::collections::BTreeMap;
use std::sync::Arc;

use djinn_device::DeviceError;
use djinn_model::Extent;
use shuttle::sync::Mutex;
use shuttle::thread;

use super::queue::CopyQueue;
use super::transfers::{ChunkedCopy, RingCopy};
use super::workers::work;
use crate::{CopyOp, Placement, Region, Ring};

/// Size of a chunk. Every piece has several chunks.
const CHUNK: u64 = 4;
const PASSES: u64 = 2;
const ITERATIONS: usize = 300;

/// Content of each byte of the ring: its piece, and the number of copies of that piece so far;
/// `None` while a copy writes the byte.
type RingBytes = Mutex<BTreeMap<u64, Option<(u32, u64)>>>;

/// Number of copies of each byte of each piece.
type CopyCounts = Mutex<BTreeMap<(u32, u64), u64>>;

fn pieces(ring_bytes: u64, sizes: &[u64]) -> Vec<RingCopy<ChunkedCopy>> {
    let pieces: Vec<(usize, u64)> = sizes.iter().copied().enumerate().collect();
    let ring = Ring::lay(0, ring_bytes, &pieces).expect("the pieces fit");
    ring.slots
        .iter()
        .map(|slot| {
            let extent = Extent {
                file: 0,
                offset: 0,
                bytes: slot.placement.bytes,
            };
            RingCopy {
                copy: ChunkedCopy::new(&[extent], slot.placement, CHUNK, slot.piece as u32),
                after: slot.after as u64,
            }
        })
        .collect()
}

/// A slab that records which copy wrote each byte.
#[derive(Default)]
struct TracedMemory {
    bytes: RingBytes,
    counts: CopyCounts,
}

impl TracedMemory {
    /// Copies in two steps, so that other threads run between them.
    fn copy(&self, chunk: &CopyOp<Extent>) {
        let span = chunk.to.offset..chunk.to.end();
        for at in span.clone() {
            let before = self.bytes.lock().unwrap().insert(at, None);
            assert_ne!(before, Some(None), "two copies write byte {at} at once");
        }
        thread::yield_now();
        for at in span {
            let mut counts = self.counts.lock().unwrap();
            let count = counts.entry((chunk.label, at)).or_default();
            *count += 1;
            let written = Some((chunk.label, *count));
            self.bytes.lock().unwrap().insert(at, written);
        }
    }

    /// Panics unless all bytes of a piece are in memory, and from copy number `copy` if given.
    fn check(&self, piece: &RingCopy<ChunkedCopy>, copy: Option<u64>) {
        let bytes = self.bytes.lock().unwrap();
        for chunk in piece.copy.chunks() {
            for at in chunk.to.offset..chunk.to.end() {
                let Some(Some((label, count))) = bytes.get(&at) else {
                    panic!("byte {at} is not in memory");
                };
                assert_eq!(*label, chunk.label, "byte {at}");
                assert_eq!(*count, copy.unwrap_or(*count), "byte {at}");
            }
        }
    }
}

/// Runs workers in parallel with a pass, and stops them afterwards.
fn beside_workers(
    pieces: &[RingCopy<ChunkedCopy>],
    workers: usize,
    copy: impl Fn(&TracedMemory, &CopyOp<Extent>) -> Result<(), DeviceError> + Send + Clone + 'static,
    pass: impl FnOnce(&CopyQueue, &TracedMemory),
) {
    let queue = Arc::new(CopyQueue::new(pieces.into()));
    let memory = Arc::new(TracedMemory::default());
    let threads: Vec<_> = (0..workers)
        .map(|_| {
            let (queue, memory, copy) = (Arc::clone(&queue), Arc::clone(&memory), copy.clone());
            thread::spawn(move || work(&queue, |chunk| copy(&memory, chunk)))
        })
        .collect();
    pass(&queue, &memory);
    assert!(queue.stop(), "nothing is stuck");
    for worker in threads {
        worker.join().unwrap();
    }
}

fn explore(test: impl Fn() + Send + Sync + Clone + 'static) {
    shuttle::check_random(test.clone(), ITERATIONS);
    shuttle::check_pct(test, ITERATIONS, 3);
}

/// Rings from one piece at a time to all pieces at once.
const RINGS: [(u64, &[u64]); 4] = [
    (8, &[8, 5, 8]),
    (14, &[8, 5, 8, 3]),
    (20, &[8, 5, 8, 3, 6]),
    (24, &[8, 5, 8]),
];

/// Copies a chunk without failure.
fn copy(memory: &TracedMemory, chunk: &CopyOp<Extent>) -> Result<(), DeviceError> {
    memory.copy(chunk);
    Ok(())
}

#[test]
fn pieces_are_whole_while_in_use() {
    explore(|| {
        for (ring, sizes) in RINGS {
            let pieces = pieces(ring, sizes);
            beside_workers(&pieces, 2, copy, |queue, memory| {
                queue.set_prefetch(true);
                let count = pieces.len() as u64;
                for visit in 0..PASSES * count {
                    let piece = &pieces[(visit % count) as usize];
                    let pass = visit / count;
                    queue.wait_for_visit(visit).unwrap();
                    memory.check(piece, Some(pass + 1));
                    thread::yield_now();
                    memory.check(piece, Some(pass + 1));
                    queue.finish_visit(visit);
                }
                queue.check_integrity();
            });
        }
    });
}

#[test]
fn requests_and_skips_work_beside_the_ring() {
    explore(|| {
        let pieces = pieces(14, &[8, 5, 8, 3]);
        let apart = |label: u32| CopyOp {
            from: Extent {
                file: 0,
                offset: 0,
                bytes: 4,
            },
            to: Placement {
                region: Region::Pool,
                offset: 100 + 4 * u64::from(label),
                bytes: 4,
            },
            label,
        };
        beside_workers(&pieces, 2, copy, |queue, memory| {
            queue.set_prefetch(true);
            let mut base = 0;
            for pass in 0..PASSES {
                let ticket = queue.request([apart(7), apart(8)]);
                queue.wait_for_visit(base).unwrap();
                memory.check(&pieces[0], Some(pass + 1));
                queue.wait_for(ticket).unwrap();
                let requested = memory.bytes.lock().unwrap().get(&132).copied();
                assert_eq!(requested, Some(Some((8, pass + 1))));
                memory.check(&pieces[0], Some(pass + 1));
                queue.finish_visit(base);
                for skipped in 1..pieces.len() as u64 {
                    queue.skip_visit(base + skipped).unwrap();
                }
                base += pieces.len() as u64;
            }
            queue.check_integrity();
        });
    });
}

#[test]
fn a_failed_copy_fails_the_pass_and_the_next_one_works() {
    explore(|| {
        let pieces = pieces(14, &[8, 5, 8, 3]);
        let broken = Arc::new(Mutex::new(true));
        let disk = Arc::clone(&broken);
        let copy = move |memory: &TracedMemory, chunk: &CopyOp<Extent>| {
            if chunk.label == 2 && *disk.lock().unwrap() {
                return Err(std::io::Error::other("unplugged").into());
            }
            copy(memory, chunk)
        };
        beside_workers(&pieces, 2, copy, |queue, memory| {
            queue.set_prefetch(true);
            let count = pieces.len() as u64;
            let failed = (0..count).find_map(|visit| {
                let error = queue.wait_for_visit(visit).err();
                if error.is_none() {
                    memory.check(&pieces[visit as usize], Some(1));
                    queue.finish_visit(visit);
                }
                error
            });
            assert_eq!(failed.expect("it failed").to_string(), "unplugged");
            *broken.lock().unwrap() = false;
            queue.restart(count);
            queue.set_prefetch(true);
            for visit in count..2 * count {
                queue.wait_for_visit(visit).unwrap();
                memory.check(&pieces[(visit - count) as usize], None);
                queue.finish_visit(visit);
            }
        });
    });
}

#[test]
fn another_ring_takes_over_between_two_passes() {
    explore(|| {
        let rings = [
            pieces(14, &[8, 5, 8, 3]),
            pieces(24, &[8, 5]),
            pieces(8, &[]),
            pieces(8, &[8, 5, 8]),
        ];
        beside_workers(&rings[0], 2, copy, |queue, memory| {
            for (number, ring) in rings.iter().enumerate() {
                if number > 0 {
                    queue.install(ring.as_slice().into()).unwrap();
                }
                queue.set_prefetch(true);
                for (visit, piece) in (0..).zip(ring) {
                    queue.wait_for_visit(visit).unwrap();
                    memory.check(piece, None);
                    thread::yield_now();
                    memory.check(piece, None);
                    queue.finish_visit(visit);
                }
                queue.check_integrity();
            }
        });
    });
}

#[test]
fn a_failed_copy_keeps_the_ring() {
    explore(|| {
        let (old, new) = (pieces(14, &[8, 5, 8, 3]), pieces(8, &[8]));
        let copy = |memory: &TracedMemory, chunk: &CopyOp<Extent>| match chunk.label {
            1 => Err(std::io::Error::other("unplugged").into()),
            _ => copy(memory, chunk),
        };
        beside_workers(&old, 2, copy, |queue, memory| {
            queue.set_prefetch(true);
            let failed = queue.wait_for_visit(1).is_err();
            assert!(failed && queue.install(new.as_slice().into()).is_err());
            queue.restart(4);
            queue.install(new.as_slice().into()).unwrap();
            queue.set_prefetch(true);
            queue.wait_for_visit(0).unwrap();
            memory.check(&new[0], None);
            queue.finish_visit(0);
        });
    });
}
