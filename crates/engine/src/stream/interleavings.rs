//! The queue under a model checker: random and prioritised interleavings of workers
//! and pass, with a memory that knows who wrote it.

use std::collections::BTreeMap;
use std::sync::Arc;

use djinn_device::{DeviceError, Span};
use djinn_memory::Ring;
use shuttle::sync::Mutex;
use shuttle::thread;

use super::link::work;
use super::queue::{Chunk, Lane, Queue};

/// Chunks are of so many bytes, so that there are several a piece.
const CHUNK: u64 = 4;
const PASSES: u64 = 2;
const ITERATIONS: usize = 300;

/// What each byte of the ring holds: the piece it came from and how often that was
/// copied; `None` while it is being written.
type Bytes = Mutex<BTreeMap<u64, Option<u32>>>;

fn lanes(ring_bytes: u64, sizes: &[u64]) -> Vec<Lane> {
    let segments: Vec<(usize, u64)> = sizes.iter().copied().enumerate().collect();
    let ring = Ring::lay(ring_bytes, &segments).expect("they fit");
    let chunks = |piece: usize, offset: u64, bytes: u64| {
        let starts = (0..bytes).step_by(CHUNK as usize);
        let chunk = |start: u64| Chunk {
            file: 0,
            from: 0,
            to: Span {
                offset: offset + start,
                bytes: CHUNK.min(bytes - start),
            },
            label: piece as u32,
        };
        starts.map(chunk).collect::<Vec<_>>()
    };
    ring.slots
        .iter()
        .map(|slot| Lane {
            chunks: chunks(slot.segment, slot.offset, slot.bytes),
            after: slot.after as u64,
        })
        .collect()
}

/// Copies into the checked memory in two steps, with everyone else between them.
fn copy(bytes: &Bytes, chunk: &Chunk) {
    let span = chunk.to.offset..chunk.to.end();
    for at in span.clone() {
        let before = bytes.lock().unwrap().insert(at, None);
        assert_ne!(before, Some(None), "two copies write byte {at} at once");
    }
    thread::yield_now();
    for at in span {
        bytes.lock().unwrap().insert(at, Some(chunk.label));
    }
}

/// All bytes of a piece are there, and of no other.
fn check(bytes: &Bytes, lane: &Lane) {
    let bytes = bytes.lock().unwrap();
    for chunk in &lane.chunks {
        for at in chunk.to.offset..chunk.to.end() {
            assert_eq!(bytes.get(&at), Some(&Some(chunk.label)), "byte {at}");
        }
    }
}

/// Runs workers beside a pass, and ends them.
fn beside_workers(
    lanes: &[Lane],
    workers: usize,
    copy: impl Fn(&Bytes, &Chunk) -> Result<(), DeviceError> + Send + Clone + 'static,
    pass: impl FnOnce(&Queue, &Bytes),
) {
    let queue = Arc::new(Queue::new(lanes.to_vec()));
    let bytes = Arc::new(Bytes::default());
    let threads: Vec<_> = (0..workers)
        .map(|_| {
            let (queue, bytes, copy) = (Arc::clone(&queue), Arc::clone(&bytes), copy.clone());
            thread::spawn(move || work(&queue, |chunk| copy(&bytes, chunk)))
        })
        .collect();
    pass(&queue, &bytes);
    queue.stop();
    for worker in threads {
        worker.join().unwrap();
    }
}

fn explore(test: impl Fn() + Send + Sync + Clone + 'static) {
    shuttle::check_random(test.clone(), ITERATIONS);
    shuttle::check_pct(test, ITERATIONS, 3);
}

/// Rings from one piece at a time to all at once.
const RINGS: [(u64, &[u64]); 4] = [
    (8, &[8, 5, 8]),
    (14, &[8, 5, 8, 3]),
    (20, &[8, 5, 8, 3, 6]),
    (24, &[8, 5, 8]),
];

#[test]
fn pieces_are_whole_while_in_use() {
    explore(|| {
        for (ring, sizes) in RINGS {
            let lanes = lanes(ring, sizes);
            let copy = |bytes: &Bytes, chunk: &Chunk| {
                copy(bytes, chunk);
                Ok(())
            };
            beside_workers(&lanes, 2, copy, |queue, bytes| {
                queue.run_ahead(true);
                for visit in 0..PASSES * lanes.len() as u64 {
                    let lane = &lanes[visit as usize % lanes.len()];
                    queue.wait_for_visit(visit).unwrap();
                    check(bytes, lane);
                    thread::yield_now();
                    check(bytes, lane);
                    queue.finish_visit(visit);
                }
                queue.check_integrity();
            });
        }
    });
}

#[test]
fn demands_and_skips_beside_the_ring() {
    explore(|| {
        let lanes = lanes(14, &[8, 5, 8, 3]);
        let apart = |label: u32| Chunk {
            file: 0,
            from: 0,
            to: Span {
                offset: 100 + 4 * u64::from(label),
                bytes: 4,
            },
            label,
        };
        let copy = |bytes: &Bytes, chunk: &Chunk| {
            copy(bytes, chunk);
            Ok(())
        };
        beside_workers(&lanes, 2, copy, |queue, bytes| {
            queue.run_ahead(true);
            let mut base = 0;
            for _ in 0..PASSES {
                let ticket = queue.demand([apart(7), apart(8)]);
                queue.wait_for_visit(base).unwrap();
                check(bytes, &lanes[0]);
                queue.wait_for(ticket).unwrap();
                assert_eq!(bytes.lock().unwrap().get(&132), Some(&Some(8)));
                check(bytes, &lanes[0]);
                queue.finish_visit(base);
                for skipped in 1..lanes.len() as u64 {
                    queue.skip_visit(base + skipped).unwrap();
                }
                base += lanes.len() as u64;
            }
            queue.check_integrity();
        });
    });
}

#[test]
fn a_failed_copy_fails_the_pass_and_the_next_one_works() {
    explore(|| {
        let lanes = lanes(14, &[8, 5, 8, 3]);
        let broken = Arc::new(Mutex::new(true));
        let disk = Arc::clone(&broken);
        let copy = move |bytes: &Bytes, chunk: &Chunk| {
            if chunk.label == 2 && *disk.lock().unwrap() {
                return Err(std::io::Error::other("unplugged").into());
            }
            copy(bytes, chunk);
            Ok(())
        };
        beside_workers(&lanes, 2, copy, |queue, bytes| {
            queue.run_ahead(true);
            let count = lanes.len() as u64;
            let failed = (0..count).find_map(|visit| {
                let error = queue.wait_for_visit(visit).err();
                if error.is_none() {
                    check(bytes, &lanes[visit as usize]);
                    queue.finish_visit(visit);
                }
                error
            });
            assert_eq!(failed.expect("it failed").to_string(), "unplugged");
            *broken.lock().unwrap() = false;
            queue.restart(count);
            queue.run_ahead(true);
            for visit in count..2 * count {
                queue.wait_for_visit(visit).unwrap();
                check(bytes, &lanes[(visit - count) as usize]);
                queue.finish_visit(visit);
            }
        });
    });
}
