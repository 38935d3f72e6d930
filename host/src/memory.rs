//! Memory for buckets: aligned to cache lines, and in huge pages where the kernel has them.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use nix::sys::mman::{MmapAdvise, madvise};

/// The smallest buffer for huge pages: a smaller one contains no aligned huge page for certain.
const LARGE: usize = 4 << 20;
/// Pages that the kernel can merge into a huge one are at least this long.
const PAGE: usize = 4096;
/// Bytes and values of a cache line.
const LINE: usize = 64;
const LINE_VALUES: usize = LINE / size_of::<f32>();

/// Values that start at a multiple of 64 bytes, the length of a cache line. A vector store of the codec then writes one line;
/// in a `Vec<f32>`, most of its stores would write parts of two.
#[derive(Debug, Default)]
pub struct Buffer {
    memory: Vec<f32>,
    /// The index of the first value.
    start: usize,
    len: usize,
}

impl Buffer {
    /// Returns `len` zeros.
    pub fn zeroed(len: usize) -> Self {
        // The system zeroes new memory when it is touched.
        let mut memory = vec![0.0; len + LINE_VALUES - 1];
        advise_huge_pages(&mut memory);
        let start = memory.as_ptr().align_offset(LINE);
        Self { memory, start, len }
    }

    /// Makes room for `len` values, with any content. Allocates only for the largest length so far.
    pub fn resize(&mut self, len: usize) {
        match len <= self.memory.len() - self.start {
            true => self.len = len,
            false => *self = Self::zeroed(len),
        }
    }
}

impl Deref for Buffer {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.memory[self.start..][..self.len]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.memory[self.start..][..self.len]
    }
}

/// Asks for huge pages for a large allocation.
///
/// The codec's rows are further apart than a page of 4 KiB. In such pages nearly every row misses the TLB, and
/// a bucket of 26 MB takes 6,500 page faults.
fn advise_huge_pages(memory: &mut [f32]) {
    let range = memory.as_mut_ptr_range();
    let (start, end) = (range.start.addr(), range.end.addr());
    if end - start < LARGE {
        return;
    }
    let start = start.next_multiple_of(PAGE);
    if let Some(first) = NonNull::new(range.start.with_addr(start)) {
        let len = end / PAGE * PAGE - start;
        // SAFETY: the range is inside the allocation. The advice changes the size of pages, not their content.
        // An error, for example from a kernel without huge pages, leaves pages as they are.
        let _ = unsafe { madvise(first.cast(), len, MmapAdvise::MADV_HUGEPAGE) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_aligned_at_every_length_and_keeps_its_memory() {
        let mut buffer = Buffer::default();
        for len in [0, 1, 15, 16, 17, 40_000, 3_000_001] {
            buffer.resize(len);
            assert_eq!(buffer.len(), len);
            assert!(
                len == 0 || buffer.as_ptr().addr().is_multiple_of(64),
                "{len} values"
            );
        }
        let place = buffer.as_ptr();
        for len in [5, 1_000_000, 3_000_001] {
            buffer.resize(len);
            assert_eq!((buffer.as_ptr(), buffer.len()), (place, len));
        }
    }
}
