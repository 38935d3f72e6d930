//! Memory for buckets, in huge pages where the kernel has them.

use std::ptr::NonNull;

use nix::sys::mman::{MmapAdvise, madvise};

/// The smallest buffer for huge pages: a smaller one contains no aligned huge page for certain.
const LARGE: usize = 4 << 20;
/// Pages that the kernel can merge into a huge one are at least this long.
const PAGE: usize = 4096;

/// Returns `len` zeros.
///
/// The codec's rows are further apart than a page of 4 KiB. In such pages nearly every row misses the TLB, and
/// a bucket of 26 MB takes 6,500 page faults.
pub(crate) fn zeroed(len: usize) -> Vec<f32> {
    // The system zeroes new memory when it is touched.
    let mut values = vec![0.0f32; len];
    let bytes = size_of_val(values.as_slice());
    if bytes >= LARGE {
        let range = values.as_mut_ptr_range();
        let start = range.start.addr().next_multiple_of(PAGE);
        let end = range.end.addr() / PAGE * PAGE;
        if let Some(start) = NonNull::new(range.start.with_addr(start)) {
            // SAFETY: the range is inside `values`. The advice changes the size of pages, not their content.
            // An error, for example from a kernel without huge pages, leaves pages as they are.
            let _ = unsafe {
                madvise(
                    start.cast(),
                    end - start.addr().get(),
                    MmapAdvise::MADV_HUGEPAGE,
                )
            };
        }
    }
    values
}
