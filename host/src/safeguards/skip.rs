//! The rule that skips updates with too much loss.

use serde::{Deserialize, Serialize};

use super::worst;

/// All ranks skip an update if any of them lost more than this share of its packets (the safeguard of
/// OptiReduce, NSDI 2025, which leaves the share to the user).
///
/// With recycling a skipped update is not lost: every rank holds its own and adds it to the next applied one,
/// after the repairs have arrived ([`crate::Carry::skip`]). Without recycling it is lost.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SkipRule {
    /// 0 to 1. One absent rank of *N* costs the others 1/(*N*−1) of their contributions and 1/*N* of the
    /// aggregates, so a smaller share skips an update whenever a straggler is absent.
    pub share: f64,
}

impl SkipRule {
    pub(super) fn skips(self, lost: &[f32]) -> bool {
        // Shares are sent as binary32.
        worst(lost).1 > f64::from(self.share as f32)
    }
}
