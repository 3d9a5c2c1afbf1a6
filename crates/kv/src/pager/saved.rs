//! Bytes of cached pages that outlive the process: read from every tier, and written to it again.

use djinn_device::{HostSlab, Span, Stream};

use super::Pager;
use crate::error::{KvError, Result};
use crate::page::PageId;
use crate::pages::PlacedFrame;
use crate::prefix_index::PageContent;

/// Reads the bytes of pages, between two passes.
pub struct PageReader<'p> {
    pager: &'p Pager,
    /// Host memory for one page: a copy from the device arrives in it.
    staging: HostSlab,
    /// Memory for a page from disk.
    bytes: Vec<u8>,
}

impl PageReader<'_> {
    /// Calls `work` with the bytes of a page of the prefix index.
    pub fn read<T>(&mut self, page: PageId, work: impl FnOnce(&[u8]) -> T) -> Result<T> {
        let Pager {
            copier,
            region,
            spill,
            ..
        } = self.pager;
        let frame = self.pager.pages.fastest_frame(page);
        match frame.expect("a page of the prefix index has a frame") {
            PlacedFrame::Device(frame) => {
                let (device, span) = (copier.device(), region.frame_span(frame));
                device.copy_out(Stream::PageOut, span, &self.staging, 0)?;
                device.synchronize(Stream::PageOut)?;
                let all = Span { offset: 0, ..span };
                Ok(self.staging.show(all, work)?)
            }
            PlacedFrame::Host(frame) => {
                let host = copier.host_slab().expect("the page has a host frame");
                Ok(host.show(copier.host_span(frame), work)?)
            }
            PlacedFrame::Disk(frame) => {
                let file = spill.as_ref().expect("the page has a disk frame").file();
                self.bytes.resize(region.page_bytes() as usize, 0);
                file.read(frame.0, &mut self.bytes)?;
                Ok(work(&self.bytes))
            }
        }
    }
}

impl Pager {
    /// Waits for all copies, and returns a reader of pages.
    pub fn page_reader(&mut self) -> Result<PageReader<'_>> {
        self.drain();
        while self.disk_transfers_in_flight() > 0 {
            // A page whose transfer failed keeps its frames.
            self.finish_disk_transfers(true);
        }
        let staging = self.copier.device().host_slab(self.region.page_bytes())?;
        staging.seal()?;
        Ok(PageReader {
            pager: self,
            staging,
            bytes: Vec::new(),
        })
    }

    /// Adds saved pages to the prefix cache as far as frames are free, before the first session runs.
    /// Each page names the page before it by its number in `pages`, and `read` reads the bytes of a page
    /// by its number. Stops at the first page that cannot be read. Returns the number of pages that were
    /// added, and the error.
    pub fn add_saved<E: From<KvError>>(
        &mut self,
        pages: impl IntoIterator<Item = (Option<usize>, PageContent)>,
        mut read: impl FnMut(usize, &mut [u8]) -> std::result::Result<(), E>,
    ) -> (usize, std::result::Result<(), E>) {
        let mut places = Vec::new();
        let mut outcome = Ok(());
        let mut bytes = vec![0; self.region.page_bytes() as usize];
        let most = self.pages.cache_limit();
        for (number, (previous, content)) in pages.into_iter().take(most).enumerate() {
            let previous = previous.map(|previous| places.get(previous).copied().flatten());
            // A page is found through the page before it, so it is of no use without that page.
            let added = match previous {
                Some(None) => None,
                found => self.pages.add_indexed(found.flatten(), content),
            };
            places.push(added.map(|(page, _)| page));
            let Some((page, frame)) = added else { continue };
            let filled = read(number, &mut bytes);
            outcome = filled.and_then(|()| Ok(self.fill_frame(frame, &bytes)?));
            if outcome.is_err() {
                self.pages.drop_unread(page);
                places.pop();
                break;
            }
        }
        let added: Vec<PageId> = places.into_iter().flatten().collect();
        self.pages.keep_cached(&added);
        self.copier.device().release_staging();
        self.update_peaks();
        (added.len(), outcome)
    }

    /// Fills a frame in the calling thread.
    fn fill_frame(&self, frame: PlacedFrame, bytes: &[u8]) -> Result<()> {
        match frame {
            PlacedFrame::Device(frame) => {
                let (device, span) = (self.copier.device(), self.region.frame_span(frame));
                device.load(span, &mut |to: &mut [u8]| {
                    to.copy_from_slice(bytes);
                    Ok(())
                })?;
            }
            PlacedFrame::Host(frame) => {
                let host = self.copier.host_slab().expect("the page has a host frame");
                let span = self.copier.host_span(frame);
                host.lend(span, |to| to.copy_from_slice(bytes))?;
            }
            PlacedFrame::Disk(frame) => {
                let file = self.spill.as_ref().expect("there is a disk tier").file();
                file.write(frame.0, bytes)?;
            }
        }
        Ok(())
    }
}
