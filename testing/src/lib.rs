//! Helpers for the tests of several crates: the extent of a run, and a counting allocator. It owns no test.
//!
//! A change is checked with one seed per fault and a few property cases. `ULTIMA_FULL=1`, which `.ci/full`
//! sets, requests the full matrix.

pub mod heap;

/// True if this run covers the full matrix (`ULTIMA_FULL=1`).
pub fn full() -> bool {
    std::env::var_os("ULTIMA_FULL").is_some_and(|value| value == "1")
}

/// Returns `all` in a full run, else `few`.
pub fn per_run<T>(few: T, all: T) -> T {
    if full() { all } else { few }
}

/// Returns the number of cases of a property: `few` per change, `many` in a full run. `PROPTEST_CASES` overrides both.
pub fn cases(few: u32, many: u32) -> u32 {
    let asked = std::env::var("PROPTEST_CASES").ok();
    let asked = asked.and_then(|cases| cases.parse().ok());
    asked.unwrap_or_else(|| per_run(few, many))
}
