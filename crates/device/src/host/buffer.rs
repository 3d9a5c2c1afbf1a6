//! Large buffers, in huge pages if the system has them.

use std::io;

use memmap2::MmapMut;

/// Size and alignment of a huge page in bytes.
const HUGE: usize = 2 << 20;

/// Zeroed memory, aligned to a huge page. Untouched pages take no memory.
#[derive(Debug)]
pub struct Buffer {
    map: MmapMut,
    skip: usize,
    bytes: usize,
}

impl Buffer {
    /// Reserves `bytes` of address space.
    pub fn new(bytes: usize) -> io::Result<Self> {
        let length = bytes
            .checked_next_multiple_of(HUGE)
            .and_then(|length| length.checked_add(HUGE))
            .ok_or_else(|| {
                io::Error::other(format!(
                    "a buffer of {bytes} bytes exceeds the address space"
                ))
            })?;
        let mut map = MmapMut::map_anon(length)?;
        // Huge pages reduce TLB misses, and the number of pages to pin for direct reads.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        let skip = map.as_mut_ptr().align_offset(HUGE);
        Ok(Buffer { map, skip, bytes })
    }

    /// Returns the whole buffer.
    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.map[self.skip..self.skip + self.bytes]
    }

    /// Gives the memory back to the system. The addresses stay reserved, and read as zeros.
    ///
    /// # Safety
    /// No reference into the buffer exists during the call.
    pub unsafe fn discard(&self) -> io::Result<()> {
        // SAFETY: the pages of an anonymous map read as zeros afterwards, and by contract nothing
        // refers to them.
        unsafe {
            self.map
                .unchecked_advise(memmap2::UncheckedAdvice::DontNeed)
        }
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

    #[test]
    fn discarded_memory_reads_as_zeros() {
        let mut buffer = Buffer::new(HUGE + 1).unwrap();
        buffer.bytes().fill(7);
        // SAFETY: no reference into the buffer exists.
        unsafe { buffer.discard() }.unwrap();
        assert!(buffer.bytes().iter().all(|&byte| byte == 0));
        buffer.bytes()[HUGE] = 1;
        assert_eq!(buffer.bytes()[HUGE], 1);
    }
}
