//! The pager's way to disk.

use djinn_memory::{Frame, PageId};
use djinn_store::StoreError;

use super::{
    Copies, Pager, Result,
    spiller::{Arrived, Spiller, Way},
};

impl<C: Copies> Pager<C> {
    /// Whether there is a disk behind the host's memory.
    pub fn has_disk(&self) -> bool {
        self.spiller.is_some()
    }

    /// Pages on their way between host and disk.
    pub fn under_way(&self) -> usize {
        self.spiller.as_ref().map_or(0, Spiller::under_way)
    }

    /// Lets a page that is on the host alone go to disk, and says whether it does. One that
    /// the host is only just getting stays for now.
    pub fn spill(&mut self, page: PageId) -> Result<bool> {
        let Some(host) = self.pages.host_frame(page) else {
            return Ok(false);
        };
        if !self.is_done(host)? {
            return Ok(false);
        }
        let going = self.pages.spill(page);
        if let (Some(going), Some(spiller)) = (going, &mut self.spiller) {
            spiller.put(going, Way::Out);
        }
        self.note_peaks();
        Ok(going.is_some())
    }

    /// Has a page that is on disk alone read, if a frame of the host is free, and says
    /// whether it is.
    pub fn fetch(&mut self, page: PageId) -> Result<bool> {
        let coming = self.pages.fetch(page);
        if let Some(coming) = coming {
            if let Some(trip) = self.host_after[coming.to.0 as usize].take()
                && let Err(error) = self.copies.wait_here(trip.ended())
            {
                self.pages.arrived(page, false);
                return Err(error);
            }
            let spiller = self.spiller.as_mut().expect("what is on disk went there");
            spiller.put(coming, Way::Back);
        }
        self.note_peaks();
        Ok(coming.is_some())
    }

    /// Whether no copy from or to a frame of the host is under way.
    fn is_done(&mut self, host: Frame) -> Result<bool> {
        let after = &mut self.host_after[host.0 as usize];
        let Some(trip) = after else { return Ok(true) };
        let is_past = trip.is_over(&self.copies)?;
        if is_past {
            *after = None;
        }
        Ok(is_past)
    }

    /// Takes in what arrived from disk or there, and tells of pages that did not; where
    /// nothing has arrived yet, waits if told to.
    pub fn take_arrived(&mut self, wait: bool) -> Vec<(PageId, Way, StoreError)> {
        let Some(spiller) = &mut self.spiller else {
            return Vec::new();
        };
        let mut failed = Vec::new();
        for arrived in spiller.arrived(wait) {
            let Arrived {
                page,
                way,
                seconds,
                result,
            } = arrived;
            let traffic = match way {
                Way::Out => &mut self.paged.spilled,
                Way::Back => &mut self.paged.fetched,
            };
            traffic.bytes += self.bytes;
            traffic.seconds += seconds;
            self.pages.arrived(page, result.is_ok());
            failed.extend(result.err().map(|error| (page, way, error)));
        }
        failed
    }
}
