//! Patience: bounds that are a multiple of what is usual.

use std::collections::VecDeque;
use std::time::Duration;

use super::percentile;

/// Number of operations whose durations show the usual one.
const WINDOW: usize = 32;
/// The percentile of these durations that is the usual one. Those of bursts and stragglers do not count, unless they delay three
/// in four.
const USUAL: usize = 25;
/// The least time that patience adds to the usual duration: a scheduler delays a rank by as much at any time.
const LEAST: Duration = Duration::from_millis(1);

/// The durations of a bucket's last operations.
#[derive(Default)]
pub(super) struct Durations(VecDeque<Duration>);

impl Durations {
    /// Notes an operation.
    pub(super) fn ended(&mut self, duration: Duration) {
        if self.0.len() == WINDOW {
            self.0.pop_front();
        }
        self.0.push_back(duration);
    }

    /// The deadline after at least one operation.
    pub(super) fn deadline(&self, patience: f64) -> Duration {
        let mut durations: Vec<Duration> = self.0.iter().copied().collect();
        let usual = percentile(&mut durations, USUAL);
        usual.mul_f64(patience).max(usual + LEAST)
    }
}

#[cfg(test)]
mod tests {
    use super::super::cause_aware::CauseAware;
    use super::super::{Bounds, Ended, Policy, Stage};
    use super::*;
    use crate::cause::Phase;
    use crate::time::Time;

    const MS: Duration = Duration::from_millis(1);

    /// Runs operations that take `durations` unless their bound ends them, and returns the bounds after each.
    fn with_patience(durations: impl Iterator<Item = Duration>) -> Vec<Bounds> {
        let limits = Bounds {
            t_s: 3000 * MS,
            t_b: 5000 * MS,
            grace: [None; 2],
            catches_up: false,
        };
        let mut policy = CauseAware::new(limits, 300 * MS, Some(1.5), 4);
        let mut start = Time::ZERO;
        let mut ended = |(step, duration)| {
            let bounds = policy.start(start, 0, 1000);
            for (phase, after) in [(Phase::Scatter, duration / 2), (Phase::Gather, duration)] {
                for source in [None, Some(1), Some(2), Some(3)] {
                    policy.record_packets(0, phase, source, after, 8);
                }
            }
            let stage = Stage {
                after: duration.min(bounds.t_b),
                owed: 24,
                ..Stage::default()
            };
            policy.ended(&Ended {
                step,
                bucket: 0,
                stages: [stage; 2],
                never_sent: [0; 2],
                overdue: &|_| false,
            });
            start = start + 2 * duration;
            policy.start(start, 0, 1000)
        };
        (0..).zip(durations).map(&mut ended).collect()
    }

    #[test]
    fn patience_does_not_wait_for_bursts() {
        // Two of three operations.
        let bounds = with_patience((0..200).map(|at| if at % 3 == 0 { 10 * MS } else { 40 * MS }));
        assert_eq!(bounds[18].t_b, 5000 * MS, "too few operations");
        for bounds in &bounds[20..] {
            assert_eq!([bounds.t_s, bounds.t_b], [9 * MS, 15 * MS]);
        }
    }

    #[test]
    fn patience_follows_a_network_that_stays_slower() {
        let bounds = with_patience((0..200).map(|at| if at < 100 { 10 * MS } else { 40 * MS }));
        assert_eq!(bounds[99].t_b, 15 * MS);
        assert_eq!(bounds[199].t_b, 60 * MS);
    }

    #[test]
    fn patience_leaves_time_for_the_scheduler() {
        let bounds = with_patience((0..30).map(|_| MS));
        assert_eq!(bounds[29].t_b, 2 * MS);
    }
}
