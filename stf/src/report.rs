//! Prints and counts verdicts.

use std::fmt;

use super::case::Verdict;

/// Counts of verdicts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of tests that passed.
    pub passed: usize,
    /// Number of tests that failed.
    pub failed: usize,
    /// Number of skipped tests.
    pub skipped: usize,
}

impl Tally {
    /// Counts a verdict.
    pub fn add(&mut self, verdict: &Verdict) {
        match verdict {
            Verdict::Passed => self.passed += 1,
            Verdict::Failed(_) => self.failed += 1,
            Verdict::Skipped(_) => self.skipped += 1,
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally {
            passed,
            failed,
            skipped,
        } = self;
        write!(f, "{passed} passed, {failed} failed, {skipped} skipped")
    }
}

/// Returns the line of a test.
pub fn line(name: &str, verdict: &Verdict) -> String {
    match verdict {
        Verdict::Passed => format!("passed  {name}"),
        Verdict::Failed(why) => format!("failed  {name}: {why}"),
        Verdict::Skipped(why) => format!("skipped {name}: {why}"),
    }
}
