//! Helpers for the tests of several crates: the extent of a run, the report of a skipped test, an etcd
//! cluster, signals to processes, a veth pair, the limit of receive buffers, and a counting allocator. It owns no test.
//!
//! A change is checked with one seed per fault and a few property cases. `ULTIMA_FULL=1`, which `.ci/full`
//! sets, requests the full matrix.

pub mod etcd;
pub mod heap;
pub mod receive_limit;
pub mod signals;
pub mod veth;

use std::io::{self, Write as _};

/// True if this run covers the full matrix (`ULTIMA_FULL=1`).
pub fn full() -> bool {
    std::env::var_os("ULTIMA_FULL").is_some_and(|value| value == "1")
}

/// True if this run covers the full matrix. Otherwise reports the test, or the rest of it, as [skipped](skipped).
pub fn full_run() -> bool {
    let full = full();
    if !full {
        skipped("ULTIMA_FULL=1 runs the full matrix");
    }
    full
}

/// Prints why a test is skipped. Writes to standard error directly, because the test harness hides the output of
/// `eprintln!` in a test that passes.
pub fn skipped(reason: &str) {
    let test = std::thread::current();
    let test = test.name().unwrap_or("a test");
    // Standard error may be closed.
    let _ = writeln!(io::stderr(), "skipped: {test}: {reason}");
}

/// Returns `all` in a full run, else `few`.
pub fn per_run<T>(few: T, all: T) -> T {
    if full() { all } else { few }
}

/// Returns the number of cases of a property: `few` per change, `many` in a full run. `PROPTEST_CASES` overrides both.
pub fn cases(few: u32, many: u32) -> u32 {
    let requested = std::env::var("PROPTEST_CASES").ok();
    let requested = requested.and_then(|cases| cases.parse().ok());
    requested.unwrap_or_else(|| per_run(few, many))
}
