//! How a piece is copied: in chunks, made as they are asked for.

use djinn_device::Span;

use crate::pieces::Run;

/// Which memory a chunk is copied into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// The device's slab.
    Slab,
    /// Host memory that the device copies from.
    Host,
}

/// A copy from a file into memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub file: usize,
    pub from: u64,
    pub target: Target,
    pub to: Span,
    /// Which piece it is of, for the record.
    pub label: u32,
}

/// All chunks of a piece that goes to one place.
#[derive(Clone, Debug)]
pub(crate) struct Copies {
    runs: Vec<Run>,
    at: u64,
    chunk: u64,
    target: Target,
    pub label: u32,
}

impl Copies {
    /// Copies runs, at most `chunk` bytes at a time, to `at` and on in the slab.
    pub fn new(runs: &[Run], at: u64, chunk: u64, label: u32) -> Self {
        assert!(chunk > 0, "a chunk has some bytes");
        Copies {
            runs: runs.to_vec(),
            at,
            chunk,
            target: Target::Slab,
            label,
        }
    }

    /// The same into host memory.
    pub fn for_host(self) -> Self {
        Copies {
            target: Target::Host,
            ..self
        }
    }

    /// The same piece elsewhere.
    pub fn moved(&self, by: u64) -> Self {
        Copies {
            at: self.at + by,
            ..self.clone()
        }
    }

    /// How many chunks.
    pub fn len(&self) -> usize {
        self.runs.iter().map(|run| self.chunks_of(run)).sum()
    }

    /// Bytes of all of them.
    pub fn bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.bytes).sum()
    }

    /// Where the piece goes, what lies between its runs included.
    pub fn span(&self) -> Span {
        Span {
            offset: self.at,
            bytes: self.runs.last().map_or(0, |run| run.to + run.bytes),
        }
    }

    fn chunks_of(&self, run: &Run) -> usize {
        run.bytes.div_ceil(self.chunk) as usize
    }

    /// One of them, by number.
    pub fn chunk(&self, mut number: usize) -> Chunk {
        for run in &self.runs {
            let count = self.chunks_of(run);
            if number < count {
                let start = number as u64 * self.chunk;
                return Chunk {
                    file: run.file,
                    from: run.from + start,
                    target: self.target,
                    to: Span {
                        offset: self.at + run.to + start,
                        bytes: self.chunk.min(run.bytes - start),
                    },
                    label: self.label,
                };
            }
            number -= count;
        }
        unreachable!("there are no more than `len` chunks")
    }

    /// All of them, in order.
    pub fn chunks(&self) -> impl Iterator<Item = Chunk> {
        (0..self.len()).map(|number| self.chunk(number))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Copies, Run};

    proptest! {
        #[test]
        fn chunks_cover_every_run_once(
            sizes in prop::collection::vec(1u64..50, 1..5), chunk in 1u64..60, at in 0u64..100,
        ) {
            let mut to = 0;
            let runs: Vec<Run> = sizes
                .iter()
                .enumerate()
                .map(|(file, &bytes)| {
                    to += bytes;
                    Run { file, from: 7 * bytes, to: to - bytes, bytes }
                })
                .collect();
            let copies = Copies::new(&runs, at, chunk, 3);
            prop_assert_eq!(copies.bytes(), to);
            prop_assert_eq!(copies.chunks().count(), copies.len());
            let mut end = at;
            for chunk_of in copies.chunks() {
                prop_assert_eq!(chunk_of.to.offset, end);
                prop_assert!(chunk_of.to.bytes <= chunk);
                let run = &runs[chunk_of.file];
                prop_assert_eq!(chunk_of.from - run.from, chunk_of.to.offset - at - run.to);
                end += chunk_of.to.bytes;
            }
            prop_assert_eq!(end, at + to);
            let moved = copies.moved(10).chunk(0);
            prop_assert_eq!(moved.to.offset, at + 10);
        }
    }
}
