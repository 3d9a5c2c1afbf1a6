//! Carving one slab into regions before it exists.

/// Hands out offsets of a slab one after another; at the end it knows how large the
/// slab must be.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    bytes: u64,
}

impl Layout {
    /// Regions start at multiples of this: no two share a cache line, and whatever reads
    /// memory in wide runs finds the start of one.
    pub const ALIGN: u64 = 256;

    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next region and returns where it starts.
    pub fn take(&mut self, bytes: u64) -> u64 {
        let offset = self.bytes;
        let end = offset.saturating_add(bytes);
        // What cannot be counted cannot be had: the largest number says so.
        self.bytes = end
            .checked_next_multiple_of(Self::ALIGN)
            .unwrap_or(u64::MAX);
        offset
    }

    /// Bytes of all regions.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Layout;

    proptest! {
        #[test]
        fn regions_are_aligned_and_apart(sizes in prop::collection::vec(0u64..10_000, 0..50)) {
            let mut layout = Layout::new();
            let mut end = 0;
            for bytes in sizes {
                let offset = layout.take(bytes);
                prop_assert!(offset >= end);
                prop_assert_eq!(offset % Layout::ALIGN, 0);
                end = offset + bytes;
            }
            prop_assert!(layout.bytes() >= end);
            prop_assert!(layout.bytes() < end + Layout::ALIGN);
        }
    }
}
