//! KV region: the part of a slab that holds page frames and the KV window.
//!
//! The KV window holds the slices of pages that are not on the device: of two blocks at a time,
//! so that the slices of one block arrive while another block computes. Slices of even blocks lie
//! in the first half of the window, slices of odd blocks in the second. Each block begins one
//! slice behind the block before it. The addresses within a layer then depend only on the half,
//! so a pass needs two block tables, however many blocks the model has.

use djinn_device::{KvLayer, Span};
use djinn_types::DType;

use crate::frames::Frame;

/// Number of halves of the KV window.
pub const WINDOW_HALVES: usize = 2;

/// Page frames and the KV window of a slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvRegion {
    /// Layer of the first block in all page frames.
    frames: KvLayer,
    /// Number of blocks of the model.
    blocks: usize,
    /// Number of pages that stream through the window in one pass.
    window: usize,
}

impl KvRegion {
    /// Lays out a region at `layer.offset`: `layer.pages` frames of pages with `blocks` layers,
    /// and a window for `window` pages. A page has no gaps between its layers, so that a slice
    /// of any page starts a whole number of slices behind the start of the region.
    pub fn new(layer: KvLayer, blocks: usize, window: usize) -> Self {
        let page_bytes = layer.layer_bytes().saturating_mul(blocks as u64);
        KvRegion {
            frames: KvLayer {
                page_bytes,
                ..layer
            },
            blocks,
            window,
        }
    }

    /// Number of bytes of the region.
    pub fn bytes(&self) -> u64 {
        let frames = self.page_bytes().saturating_mul(self.frames.pages as u64);
        frames.saturating_add(self.window_bytes())
    }

    /// Number of bytes of the window.
    pub fn window_bytes(&self) -> u64 {
        let slices = (WINDOW_HALVES as u64).saturating_mul(self.half() as u64);
        self.slice_bytes().saturating_mul(slices)
    }

    /// Number of bytes of a page.
    pub fn page_bytes(&self) -> u64 {
        self.frames.page_bytes
    }

    /// Number of bytes of one layer of a page.
    pub fn slice_bytes(&self) -> u64 {
        self.frames.layer_bytes()
    }

    /// Element type of keys and values.
    pub fn dtype(&self) -> DType {
        self.frames.dtype
    }

    /// Number of blocks of the model.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Number of page frames.
    pub fn frames(&self) -> usize {
        self.frames.pages
    }

    /// Number of pages that stream through the window in one pass.
    pub fn window(&self) -> usize {
        self.window
    }

    /// Number of slices of one half of the window.
    fn half(&self) -> usize {
        match self.window {
            0 => 0,
            pages => pages.saturating_add(self.blocks),
        }
    }

    /// Number of slices of the region.
    pub fn slices(&self) -> usize {
        let window = WINDOW_HALVES.saturating_mul(self.half());
        let frames = self.frames.pages.saturating_mul(self.blocks);
        frames.saturating_add(window)
    }

    /// Layer of a block in the page frames. A frame is a page of this layer.
    pub fn layer(&self, block: usize) -> KvLayer {
        KvLayer {
            offset: self.frames.offset + block as u64 * self.slice_bytes(),
            ..self.frames
        }
    }

    /// Layer of a block in the whole region. Each slice of the region is a page of this layer;
    /// [`KvRegion::frame_index`] and [`KvRegion::window_index`] return the numbers of pages.
    pub fn layer_with_window(&self, block: usize) -> KvLayer {
        KvLayer {
            page_bytes: self.slice_bytes(),
            pages: self.slices() - block,
            ..self.layer(block)
        }
    }

    /// Number of the page in a frame, in any [`KvRegion::layer_with_window`].
    pub fn frame_index(&self, frame: Frame) -> usize {
        frame.index() * self.blocks
    }

    /// Number of the page at place `at` of the window, in the layers of the blocks of a half.
    pub fn window_index(&self, half: usize, at: usize) -> usize {
        self.frames.pages * self.blocks + half * self.half() + at
    }

    /// Half of the window that holds the slices of a block.
    pub fn half_of(block: usize) -> usize {
        block % WINDOW_HALVES
    }

    /// Span of a frame in the slab.
    pub fn frame_span(&self, frame: Frame) -> Span {
        Span {
            offset: self.frames.offset + self.page_bytes() * u64::from(frame.0),
            bytes: self.page_bytes(),
        }
    }

    /// Span of the slice of a block at place `at` of the window.
    pub fn window_span(&self, block: usize, at: usize) -> Span {
        let slice = self.window_index(Self::half_of(block), at) + block;
        Span {
            offset: self.frames.offset + self.slice_bytes() * slice as u64,
            bytes: self.slice_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use djinn_device::KvLayer;
    use djinn_types::DType;
    use proptest::prelude::*;

    use super::KvRegion;
    use crate::frames::Frame;

    proptest! {
        /// Checks that the numbers of pages name the bytes that the pager copies to, that frames
        /// and slices of neighboring blocks are apart, and that all lie in the region.
        #[test]
        fn indexes_name_the_copied_spans(
            pages in 1usize..9, blocks in 1usize..7, window in 1usize..9, offset in 0u64..3,
        ) {
            let layer = KvLayer {
                offset: 256 * offset,
                page_bytes: 0,
                pages,
                page_tokens: 2,
                kv_heads: 3,
                d_head: 4,
                dtype: DType::F32,
            };
            let region = KvRegion::new(layer, blocks, window);
            let end = layer.offset + region.bytes();
            let bytes = region.slice_bytes();
            for block in 0..blocks {
                let layer = region.layer_with_window(block);
                let address = |index: usize| layer.offset + index as u64 * layer.page_bytes;
                prop_assert_eq!(address(layer.pages), end);
                for frame in (0..pages as u32).map(Frame) {
                    let there = region.frame_span(frame).offset + block as u64 * bytes;
                    prop_assert_eq!(address(region.frame_index(frame)), there);
                    let plain = region.layer(block);
                    let same = plain.offset + u64::from(frame.0) * plain.page_bytes;
                    prop_assert_eq!(same, there);
                }
                let frames_end = region.frame_span(Frame(pages as u32)).offset;
                for at in 0..window {
                    let span = region.window_span(block, at);
                    let index = region.window_index(KvRegion::half_of(block), at);
                    prop_assert_eq!(address(index), span.offset);
                    prop_assert!(index < layer.pages);
                    prop_assert!(frames_end <= span.offset && span.end() <= end);
                    // All slices of the next block are apart from this slice.
                    for other in 0..window * usize::from(block + 1 < blocks) {
                        let next = region.window_span(block + 1, other);
                        prop_assert!(next.end() <= span.offset || span.end() <= next.offset);
                    }
                }
            }
        }
    }
}
