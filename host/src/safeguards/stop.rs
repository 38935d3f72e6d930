//! A job whose loss stays high.

use serde::{Deserialize, Serialize};

use super::worst;

/// The job stops when in each of so many updates in a row any rank lost more than a share of the packets: training goes on
/// with so little only to end nowhere (the safeguard of OptiReduce, NSDI 2025; both numbers are the user's).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StopRule {
    /// 0 to 1.
    pub share: f64,
    /// Updates in a row, 1 or more.
    pub updates: u32,
}

/// Why the job stops; the same at every rank.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error(
    "the job stops at step {step}: in each of the last {updates} updates some rank lost over {:.1} % of its packets, \
     in this one rank {rank} {:.1} %; see what its switch counts (ultima telemetry), or allow more",
    share * 100.0, lost * 100.0
)]
pub struct StopError {
    /// The last step.
    pub step: u32,
    /// Updates in a row that lost too much.
    pub updates: u32,
    /// What is too much.
    pub share: f64,
    /// Who lost most of the last one.
    pub rank: usize,
    /// And how much.
    pub lost: f64,
}

impl StopRule {
    /// How many updates in a row have lost too much, `before` until now.
    pub(super) fn high(self, before: u32, lost: &[f32]) -> u32 {
        match worst(lost).1 > f64::from(self.share as f32) {
            true => before.saturating_add(1),
            false => 0,
        }
    }

    pub(super) fn check(self, step: u32, high: u32, lost: &[f32]) -> Result<(), StopError> {
        if high < self.updates {
            return Ok(());
        }
        let (rank, lost) = worst(lost);
        Err(StopError {
            step,
            updates: high,
            share: self.share,
            rank,
            lost,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_stays_high_stops_the_job() {
        let rule = StopRule {
            share: 0.1,
            updates: 3,
        };
        let mut high = 0;
        let mut step = |lost: f32| {
            high = rule.high(high, &[0.0, lost]);
            rule.check(9, high, &[0.0, lost])
        };
        for lost in [0.2, 0.2, 0.1, 0.2, 0.2] {
            assert_eq!(step(lost), Ok(()));
        }
        let error = step(0.25).expect_err("three in a row");
        assert_eq!((error.rank, error.updates), (1, 3));
        assert_eq!(
            error.to_string(),
            "the job stops at step 9: in each of the last 3 updates some rank lost over 10.0 % of its packets, in this \
             one rank 1 25.0 %; see what its switch counts (ultima telemetry), or allow more"
        );
    }
}
