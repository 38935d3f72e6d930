//! The cost of a grid's jobs: a few allocations for each rank, row and column.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use ultima_planner::job::{GridSpec, JobRequest, JobSpec};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: all calls go to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that ends has no counter.
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations<T>(work: impl FnOnce() -> T) -> usize {
    let before = ALLOCATIONS.get();
    let made = work();
    let allocations = ALLOCATIONS.get() - before;
    drop(made);
    allocations
}

/// A grid with this number of rows and columns.
fn square(side: u16) -> JobRequest {
    let hosts = (0..u32::from(side) * u32::from(side)).map(|host| format!("h{host}"));
    JobRequest::Grid(GridSpec::new(JobSpec::new("train", hosts), side).unwrap())
}

#[test]
fn making_a_grids_jobs_copies_each_rank_once_per_row_and_column() {
    for side in [4, 64] {
        let (request, side) = (square(side), usize::from(side));
        let (ranks, lines) = (side * side, 2 * side);
        // A name and a growing list for each row and column.
        let most = 2 * ranks + 20 * lines;
        let made = allocations(|| request.jobs(7));
        assert!(made <= most, "{made} allocations for {ranks} ranks");
    }
}

#[test]
fn a_grids_job_is_found_without_making_all_jobs() {
    for side in [4, 64] {
        let request = square(side);
        let found = allocations(|| assert!(request.stands_for("train.column3")));
        assert!(found <= 3, "{found} allocations in a grid of {side} rows");
        let (names, lines) = (allocations(|| request.names()), 2 * usize::from(side));
        assert!(names <= 10 * lines, "{names} allocations for {lines} names");
    }
}
