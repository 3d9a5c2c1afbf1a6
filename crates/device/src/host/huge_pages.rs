//! Vectors in huge pages.

/// Allocates an empty vector with room for `count` numbers. Large vectors use huge pages,
/// because most of the time of a copy into new memory goes into page faults.
pub fn vec_in_huge_pages(count: usize) -> Vec<f32> {
    let mut room = Vec::with_capacity(count);
    in_huge_pages(&mut room);
    room
}

#[cfg(target_os = "linux")]
fn in_huge_pages(room: &mut Vec<f32>) {
    /// Bytes of a huge page.
    const HUGE: usize = 2 << 20;
    let (start, bytes) = (room.as_mut_ptr().cast::<u8>(), room.capacity() * 4);
    let before = start.addr().next_multiple_of(HUGE) - start.addr();
    let whole = bytes.saturating_sub(before) / HUGE * HUGE;
    if whole > 0 {
        let first = start.wrapping_add(before).cast();
        // SAFETY: whole pages of the vector's memory; the advice keeps their contents.
        let _ = unsafe { rustix::mm::madvise(first, whole, rustix::mm::Advice::LinuxHugepage) };
    }
}

#[cfg(not(target_os = "linux"))]
fn in_huge_pages(_: &mut Vec<f32>) {}

#[cfg(test)]
mod tests {
    use super::vec_in_huge_pages;

    #[test]
    fn pushed_numbers_are_kept_in_place() {
        for count in [0, 1, 1000, 3 << 20] {
            let numbers: Vec<f32> = (0..count).map(|i| i as f32).collect();
            let mut room = vec_in_huge_pages(count);
            let at = room.as_ptr();
            room.extend_from_slice(&numbers);
            assert!(room == numbers && (count == 0 || room.as_ptr() == at));
        }
    }
}
