//! Updates that lost too much.

use serde::{Deserialize, Serialize};

use super::worst;

/// An update is skipped, by all ranks or by none, when any of them lost more than this share of its packets (the
/// safeguard of OptiReduce, NSDI 2025, which leaves the share to the user).
///
/// With recycling a skipped update is not lost: every rank holds its own until the next one that is applied, and adds
/// it there, by when the repairs of what it lacks have come ([`crate::Carry::skip`]). Without, it is gone.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SkipRule {
    /// 0 to 1. One rank of *N* that is away costs the others 1/(*N*−1) of their contributions and 1/*N* of the
    /// aggregates: a share under that skips the updates of every straggler's absence.
    pub share: f64,
}

impl SkipRule {
    pub(super) fn skips(self, lost: &[f32]) -> bool {
        // Shares are sent as binary32.
        worst(lost).1 > f64::from(self.share as f32)
    }
}
