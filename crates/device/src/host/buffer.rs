//! Memory as the system gives it, in huge pages where it has them.

use std::io;

use memmap2::MmapMut;

/// The size and alignment of a huge page.
const HUGE: usize = 2 << 20;

/// Zeroed memory, aligned to a huge page. Pages cost nothing until touched.
#[derive(Debug)]
pub struct Buffer {
    map: MmapMut,
    skip: usize,
    bytes: usize,
}

impl Buffer {
    /// Takes so many bytes of addresses.
    pub fn new(bytes: usize) -> io::Result<Self> {
        let length = bytes
            .checked_next_multiple_of(HUGE)
            .and_then(|length| length.checked_add(HUGE))
            .ok_or_else(|| io::Error::other("more than this machine can address"))?;
        let mut map = MmapMut::map_anon(length)?;
        // Fewer TLB misses, and fewer pages to pin for a read past the page cache.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        let skip = map.as_mut_ptr().align_offset(HUGE);
        Ok(Buffer { map, skip, bytes })
    }

    /// All of it.
    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.map[self.skip..self.skip + self.bytes]
    }
}

#[cfg(test)]
mod tests {
    use super::{Buffer, HUGE};

    #[test]
    fn aligned_and_zeroed() {
        for bytes in [0, 1, HUGE, HUGE + 4096] {
            let mut buffer = Buffer::new(bytes).unwrap();
            assert_eq!(buffer.bytes().as_ptr().addr() % HUGE, 0);
            assert_eq!(buffer.bytes(), vec![0; bytes]);
        }
        assert!(Buffer::new(usize::MAX).is_err());
    }
}
