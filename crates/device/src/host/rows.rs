//! Rows of bytes at regular distances in host memory and in a slab.

use crate::Span;

/// Rows of bytes to copy from host memory to a slab, at regular distances on each side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostRows {
    /// Offset of the first row in host memory.
    pub from: u64,
    /// Span of the first row in the slab.
    pub first: Span,
    /// Bytes from one row to the next in host memory.
    pub stride: u64,
    /// Bytes from one row to the next in the slab.
    pub slab_stride: u64,
    /// Number of rows.
    pub count: usize,
}

impl HostRows {
    /// Offset in host memory and span in the slab of each row.
    pub(crate) fn each(self) -> impl Iterator<Item = (u64, Span)> {
        (0..self.count as u64).map(move |row| {
            let offset = self.first.offset + row * self.slab_stride;
            (
                self.from + row * self.stride,
                Span {
                    offset,
                    ..self.first
                },
            )
        })
    }

    /// Spans from the first byte to the last, in host memory and in the slab.
    pub(crate) fn spans(self) -> (Span, Span) {
        let bytes = |stride: u64| (self.count as u64 - 1) * stride + self.first.bytes;
        let from = Span {
            offset: self.from,
            bytes: bytes(self.stride),
        };
        let to = Span {
            bytes: bytes(self.slab_stride),
            ..self.first
        };
        (from, to)
    }

    /// Splits the rows into parts that each lie in one granule of host memory. A row that
    /// crosses a boundary is a part of its own.
    pub(crate) fn in_granules(self, granule: u64) -> Vec<HostRows> {
        let mut runs: Vec<HostRows> = Vec::new();
        let last = self.first.bytes.saturating_sub(1);
        let granules = |from: u64| (from / granule, (from + last) / granule);
        for (from, first) in self.each() {
            let here = granules(from);
            let joins = |run: &&mut HostRows| here.0 == here.1 && granules(run.from) == here;
            match runs.last_mut().filter(joins) {
                Some(run) => run.count += 1,
                None => runs.push(HostRows {
                    from,
                    first,
                    count: 1,
                    ..self
                }),
            }
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::HostRows;
    use crate::Span;

    #[test]
    fn parts_cover_all_rows_and_only_single_rows_cross_granules() {
        let rows = HostRows {
            from: 3,
            first: Span {
                offset: 1000,
                bytes: 4,
            },
            stride: 10,
            slab_stride: 6,
            count: 12,
        };
        for granule in [5, 25, 50, 1000] {
            let parts = rows.in_granules(granule);
            let each: Vec<_> = parts.iter().flat_map(|part| part.each()).collect();
            assert_eq!(each, rows.each().collect::<Vec<_>>());
            for part in parts.iter().filter(|part| part.count > 1) {
                let (from, to) = part.spans();
                assert_eq!(from.offset / granule, (from.end() - 1) / granule);
                let gaps = part.count as u64 - 1;
                assert_eq!(from.bytes - 10 * gaps, to.bytes - 6 * gaps);
            }
        }
        assert_eq!(rows.in_granules(1000).len(), 1);
        assert_eq!(rows.spans().1.end(), 1000 + 66 + 4);
    }
}
