//! Layout of a slab: regions with offsets, computed before the slab is allocated.

/// Assigns regions of a slab one after another and sums up the size of the slab.
#[derive(Clone, Debug, Default)]
pub(crate) struct SlabLayout {
    bytes: u64,
}

impl SlabLayout {
    /// Alignment of regions: no two regions share a cache line, and wide loads are aligned.
    pub const ALIGN: u64 = 256;

    /// Creates an empty layout.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a region and returns its offset.
    pub fn take(&mut self, bytes: u64) -> u64 {
        let offset = self.bytes;
        let end = offset.saturating_add(bytes);
        // A sum that overflows becomes the largest number, which no device can allocate.
        self.bytes = end
            .checked_next_multiple_of(Self::ALIGN)
            .unwrap_or(u64::MAX);
        offset
    }

    /// Size of the slab: all regions, with alignment.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::SlabLayout;

    proptest! {
        #[test]
        fn regions_are_aligned_and_apart(sizes in prop::collection::vec(0u64..10_000, 0..50)) {
            let mut layout = SlabLayout::new();
            let mut end = 0;
            for bytes in sizes {
                let offset = layout.take(bytes);
                prop_assert!(offset >= end);
                prop_assert_eq!(offset % SlabLayout::ALIGN, 0);
                end = offset + bytes;
            }
            prop_assert!(layout.bytes() >= end);
            prop_assert!(layout.bytes() < end + SlabLayout::ALIGN);
        }
    }
}
