//! The published timeouts (OptiReduce, NSDI 2025, §3.2.1).

use std::time::Duration;

use crate::time::Time;

use super::buckets::Buckets;
use super::early_close::EarlyClose;
use super::{Bounds, Ended, Policy, WARM_UP, percentile};

/// The percentile of the warm-up's times (ibid.).
const PERCENT: usize = 95;

pub(super) struct Published {
    limits: Bounds,
    ranks: u16,
    buckets: Buckets<BucketTimes>,
}

struct BucketTimes {
    /// By stage: durations of the warm-up's operations.
    took: [Vec<Duration>; 2],
    /// t_S and t_B after the warm-up.
    learned: Option<(Duration, Duration)>,
    early: EarlyClose,
}

impl Published {
    pub(super) fn new(limits: Bounds, ranks: u16) -> Self {
        Self {
            limits,
            ranks,
            buckets: Buckets::default(),
        }
    }
}

impl BucketTimes {
    fn new(ranks: u16) -> Self {
        Self {
            took: [const { Vec::new() }; 2],
            learned: None,
            early: EarlyClose::new(ranks),
        }
    }
}

impl Policy for Published {
    fn start(&mut self, _now: Time, bucket: u16, values: usize) -> Bounds {
        let ranks = self.ranks;
        let bucket = (self.buckets).start(bucket, values, || BucketTimes::new(ranks));
        match bucket.learned {
            None => self.limits,
            Some((t_s, t_b)) => Bounds::within(t_s, t_b, bucket.early.grace(), self.limits),
        }
    }

    fn early_close(&mut self, bucket: u16) -> Option<&mut EarlyClose> {
        self.buckets.get_mut(bucket).map(|bucket| &mut bucket.early)
    }

    fn ended(&mut self, ended: &Ended<'_>) {
        let Some(bucket) = self.buckets.get_mut(ended.bucket) else {
            return;
        };
        let owed: u64 = ended.stages.iter().map(|stage| stage.owed).sum();
        let missing: u64 = ended.stages.iter().map(|s| s.missing.total()).sum();
        let lost = missing as f64 / owed.max(1) as f64;
        bucket.early.ended(&ended.stages, lost);
        if bucket.learned.is_none() {
            for (took, stage) in bucket.took.iter_mut().zip(&ended.stages) {
                took.push(stage.after);
            }
            if bucket.took[0].len() == WARM_UP {
                let [scatter, gather] = std::mem::take(&mut bucket.took);
                let learn = |mut took: Vec<Duration>| percentile(&mut took, PERCENT);
                bucket.learned = Some((learn(scatter), learn(gather)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Stage;
    use super::*;
    use crate::stats::ClosedBy;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn bounds_are_the_95th_percentile_of_the_warm_up() {
        let limits = Bounds {
            t_s: 60 * MS,
            t_b: 100 * MS,
            grace: [None; 2],
            catches_up: false,
        };
        let mut policy = Published::new(limits, 2);
        let operation = |policy: &mut Published, scatter: u32, gather: u32| {
            let bounds = policy.start(Time::ZERO, 3, 10);
            let stage = |ms| Stage {
                after: ms * MS,
                closed_by: ClosedBy::Complete,
                owed: 10,
                ..Stage::default()
            };
            policy.ended(&Ended {
                step: 0,
                bucket: 3,
                stages: [stage(scatter), stage(gather)],
                never_sent: [0; 2],
                overdue: &|_| false,
            });
            bounds
        };
        for ms in 1..=20 {
            assert_eq!(operation(&mut policy, ms, 2 * ms), limits);
        }
        let bounds = operation(&mut policy, 1, 1);
        let tick = Duration::from_nanos(1);
        assert_eq!((bounds.t_s, bounds.t_b), (19 * MS + tick, 38 * MS + tick));
        assert!(bounds.grace[0].is_some());
        // Another bucket, or another length, starts without learned values.
        assert_eq!(policy.start(Time::ZERO, 4, 10), limits);
        assert_eq!(policy.start(Time::ZERO, 3, 11), limits);
    }
}
