//! An allocator that counts per thread, so that tests of one binary do not disturb each other.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static LIVE: Cell<i64> = const { Cell::new(0) };
}

/// The system's allocator with counters. Install it with `#[global_allocator]`.
pub struct CountingAllocator;

/// Number of allocations that this thread made so far, reallocations included.
pub fn allocations() -> u64 {
    ALLOCATIONS.get()
}

/// Bytes that this thread allocated, minus the bytes that it freed.
///
/// Negative if it freed memory of other threads.
pub fn live_bytes() -> i64 {
    LIVE.get()
}

/// Counts nothing on a thread that is ending, whose counters no longer exist.
fn count(allocations: u64, bytes: i64) {
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + allocations));
    let _ = LIVE.try_with(|live| live.set(live.get() + bytes));
}

/// Layouts are at most `isize::MAX` bytes long.
fn signed(bytes: usize) -> i64 {
    bytes as i64
}

// SAFETY: every call goes to the system's allocator with the same arguments; the counters need no
// allocation, because they are constants without a destructor.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(1, signed(layout.size()));
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(1, signed(layout.size()));
        // SAFETY: the caller upholds the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(1, signed(size) - signed(layout.size()));
        // SAFETY: the caller upholds the contract of `realloc`.
        unsafe { System.realloc(at, layout, size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(0, -signed(layout.size()));
        // SAFETY: the caller upholds the contract of `dealloc`.
        unsafe { System.dealloc(at, layout) }
    }
}
