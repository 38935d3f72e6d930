//! The rule that stops a job whose loss stays high.

use serde::{Deserialize, Serialize};

use super::worst;

/// The job stops if in each of a number of consecutive updates any rank lost more than a share of its
/// packets: training on so little data leads nowhere (the safeguard of OptiReduce, NSDI 2025; the user
/// chooses both numbers).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StopRule {
    /// 0 to 1.
    pub share: f64,
    /// Consecutive updates, 1 or more.
    pub updates: u32,
}

/// The reason that the job stops; the same at every rank.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error(
    "the job stops at step {step}: in each of the last {updates} updates a rank lost over {:.1} % of its packets \
     (rank {rank} lost {:.1} % in the last one); check the counters of its switch (ultima telemetry), \
     or raise the limit",
    share * 100.0, lost * 100.0
)]
pub struct StopError {
    /// The last step.
    pub step: u32,
    /// Consecutive updates with too much loss.
    pub updates: u32,
    /// The limit.
    pub share: f64,
    /// The rank with the largest loss in the last one.
    pub rank: usize,
    /// Its loss.
    pub lost: f64,
}

impl StopRule {
    /// Number of consecutive updates with too much loss, `before` of them earlier.
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
    fn only_consecutive_losses_stop_the_job() {
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
            "the job stops at step 9: in each of the last 3 updates a rank lost over 10.0 % of its packets \
             (rank 1 lost 25.0 % in the last one); check the counters of its switch (ultima telemetry), or raise the limit"
        );
    }
}
