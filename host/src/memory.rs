//! Memory for buckets: aligned to cache lines, and in huge pages where the kernel has them.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use nix::sys::mman::{MmapAdvise, madvise};

/// The smallest buffer for huge pages: a smaller one contains no aligned huge page for certain.
const LARGE: usize = 4 << 20;
/// Pages that the kernel can merge into a huge one are at least this long.
const PAGE: usize = 4096;

/// A cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Line(#[expect(dead_code, reason = "read and written as part of a slice")] [f32; LINE]);

impl Line {
    const ZERO: Line = Line([0.0; LINE]);
}

/// Values in a cache line.
const LINE: usize = 16;

/// Values that start at a multiple of 64 bytes, the length of a cache line. A vector store of the codec then writes one line;
/// in a `Vec<f32>`, most of its stores would write parts of two.
#[derive(Debug, Default)]
pub struct Buffer {
    lines: Vec<Line>,
    /// At most [`LINE`] for each line.
    len: usize,
}

impl Buffer {
    /// Returns `len` zeros.
    pub fn zeroed(len: usize) -> Self {
        let count = len.div_ceil(LINE);
        let mut lines = Vec::with_capacity(count);
        // Before the memory is touched.
        advise_huge_pages(&mut lines);
        lines.resize(count, Line::ZERO);
        Self { lines, len }
    }

    /// Makes room for `len` values. Values up to the old length keep their content, others have any. Allocates only for the
    /// largest length so far, and then all are zero.
    pub fn resize(&mut self, len: usize) {
        let count = len.div_ceil(LINE);
        match count <= self.lines.capacity() {
            true => {
                self.lines.resize(count, Line::ZERO);
                self.len = len;
            }
            false => *self = Self::zeroed(len),
        }
    }
}

impl From<&[f32]> for Buffer {
    fn from(values: &[f32]) -> Self {
        let mut buffer = Self::zeroed(values.len());
        buffer.copy_from_slice(values);
        buffer
    }
}

impl Deref for Buffer {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        // SAFETY: the lines are values without padding between them, at least `len`.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        // SAFETY: as in `deref`.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }
}

/// Asks for huge pages for a large allocation.
///
/// The codec's rows are further apart than a page of 4 KiB. In such pages nearly every row misses the TLB, and
/// a bucket of 26 MB takes 6,500 page faults.
fn advise_huge_pages(lines: &mut Vec<Line>) {
    let range = lines.spare_capacity_mut().as_mut_ptr_range();
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
    fn a_buffer_is_aligned_at_every_length_and_keeps_its_values() {
        let mut buffer = Buffer::default();
        for len in [0, 1, 15, 16, 17, 40_000, 3_000_001, 5] {
            buffer.resize(len);
            assert_eq!(buffer.len(), len);
            assert!(buffer.as_ptr().addr().is_multiple_of(64), "{len} values");
        }
        buffer.copy_from_slice(&[1.0, 2.0, 3.0, 4.0, 5.0]);
        buffer.resize(1_000_000);
        assert_eq!(buffer[..5], [1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(*Buffer::from(&[7.0, 8.0][..]), [7.0, 8.0]);
    }
}
