//! Slices of KV pages that are not on the device, copied to the KV window ahead of the blocks.

use djinn_device::{Event, KvLayer, Stream};
use djinn_kv::WINDOW_HALVES;

use super::pass::Pass;
use crate::{EngineError, session::Session};

impl Pass<'_> {
    /// Returns the layer of a block that the numbers in the block tables refer to.
    pub(super) fn kv_layer(&self, block: usize) -> KvLayer {
        match self.stream {
            Some(stream) => stream.region().layer_with_window(block),
            None => self.arena.kv.layer(block),
        }
    }

    /// Starts to copy the slices of the first blocks that need them.
    pub(super) fn copy_first_slices(&mut self) -> Result<(), EngineError> {
        let Some(stream) = self.stream else {
            return Ok(());
        };
        let streaming = self
            .members
            .iter()
            .filter(|m| stream.has_pages_of(&m.pages));
        let first = streaming.map(Session::first_block).min();
        self.progress.next_slices = first.unwrap_or(0);
        // The window is free: earlier passes have ended.
        let last = self.progress.next_slices + WINDOW_HALVES;
        while self.progress.next_slices < last.min(stream.region().blocks()) {
            self.copy_slices(None)?;
        }
        Ok(())
    }

    /// Makes the compute stream wait for the slices of a block.
    pub(super) fn wait_for_slices(&mut self, block: usize) -> Result<(), EngineError> {
        if self.stream.is_none() {
            return Ok(());
        }
        if let Some(event) = self.progress.window.remove(&block) {
            self.device.wait(Stream::Compute, &event)?;
        }
        Ok(())
    }

    /// Starts to copy the slices of the blocks for which the window has room after the attention
    /// of `block`.
    pub(super) fn copy_next_slices(&mut self, block: usize) -> Result<(), EngineError> {
        let Some(stream) = self.stream else {
            return Ok(());
        };
        let end = (block + 1 + WINDOW_HALVES).min(stream.region().blocks());
        if self.progress.next_slices < end {
            let attended = self.device.record(Stream::Compute)?;
            while self.progress.next_slices < end {
                self.copy_slices(Some(&attended))?;
            }
        }
        Ok(())
    }

    /// Copies the slices of the next block, once the compute stream has passed `after`.
    fn copy_slices(&mut self, after: Option<&Event>) -> Result<(), EngineError> {
        let block = self.progress.next_slices;
        if let Some(stream) = self.stream {
            let arrived = stream.copy_block(block, after)?;
            self.progress.window.insert(block, arrived);
        }
        self.progress.next_slices = block + 1;
        Ok(())
    }
}
