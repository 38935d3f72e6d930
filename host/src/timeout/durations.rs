//! A bucket's usual durations, and bounds that are a multiple of them.

use std::collections::VecDeque;
use std::time::Duration;

use super::{Bounds, Stage, WARM_UP, percentile};

/// Number of operations whose durations show the usual one.
const WINDOW: usize = 32;
/// The percentile of these durations that is the usual one. Bursts and stragglers change it if they delay more than three
/// operations in four.
const USUAL: usize = 25;
/// The least time between the usual duration and a bound: a scheduler delays a rank by as much at any time.
const LEAST: Duration = Duration::from_millis(1);

/// How long the stages of a bucket's last operations lasted, from the start of the operation.
#[derive(Default)]
pub(super) struct Durations([VecDeque<Duration>; 2]);

impl Durations {
    /// Notes an operation.
    pub(super) fn ended(&mut self, stages: &[Stage; 2]) {
        for (durations, stage) in self.0.iter_mut().zip(stages) {
            if durations.len() == WINDOW {
                durations.pop_front();
            }
            durations.push_back(stage.after);
        }
    }

    /// Shortens `bounds`, so that no stage lasts longer than `factor` times its usual duration. t_S may last as long as the share of
    /// t_B that it has in `limits`.
    pub(super) fn shorten(&self, bounds: Bounds, factor: f64, limits: &Bounds) -> Bounds {
        if self.0[0].len() < WARM_UP {
            return bounds;
        }
        let [shard, all] = self.0.each_ref().map(|durations| {
            let mut durations: Vec<Duration> = durations.iter().copied().collect();
            let usual = percentile(&mut durations, USUAL);
            usual.mul_f64(factor).max(usual + LEAST)
        });
        let shorter = bounds.at_most(all, limits);
        // The gather has a sixteenth at least, as in all bounds.
        let shard = shard.min(shorter.t_b - shorter.t_b / 16);
        Bounds {
            t_s: shorter.t_s.max(shard.min(bounds.t_s)),
            ..shorter
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::cause_aware::CauseAware;
    use super::super::{Ended, Policy};
    use super::*;
    use crate::cause::Phase;
    use crate::time::Time;

    const MS: Duration = Duration::from_millis(1);

    /// Runs operations with a deadline factor of 1.5, whose stages last `durations` (ms) unless their bounds end them.
    /// Returns t_S and t_B of the operation after each. Rank 1 is overdue in operations that a bound ends.
    fn bounds_after(durations: impl Iterator<Item = [u32; 2]>) -> Vec<[Duration; 2]> {
        let limits = Bounds {
            t_s: 3000 * MS,
            t_b: 5000 * MS,
            grace: [None; 2],
            catches_up: false,
        };
        let mut policy = CauseAware::new(limits, 300 * MS, Some(1.5), 4);
        let mut bounds = policy.start(Time::ZERO, 0, 1000);
        let mut ended = |(step, durations): (u32, [u32; 2])| {
            let durations = durations.map(|ms| ms * MS);
            for (phase, after) in [Phase::Scatter, Phase::Gather].into_iter().zip(durations) {
                for source in [None, Some(1), Some(2), Some(3)] {
                    policy.record_packets(0, phase, source, after, 8);
                }
            }
            let [scatter, gather] = durations;
            let stage = |after| Stage {
                after,
                owed: 24,
                ..Stage::default()
            };
            let is_cut = scatter > bounds.t_s || gather > bounds.t_b;
            policy.ended(&Ended {
                step,
                bucket: 0,
                stages: [
                    stage(scatter.min(bounds.t_s)),
                    stage(gather.min(bounds.t_b)),
                ],
                never_sent: [0; 2],
                overdue: &|rank| is_cut && rank == 1,
            });
            bounds = policy.start(Time::ZERO + (step + 1) * 100 * MS, 0, 1000);
            [bounds.t_s, bounds.t_b]
        };
        (0..).zip(durations).map(&mut ended).collect()
    }

    #[test]
    fn bursts_do_not_change_the_bounds() {
        // Two of three operations.
        let bounds = bounds_after((0..200).map(|at| if at % 3 == 0 { [5, 10] } else { [20, 40] }));
        assert_eq!(bounds[18], [3000 * MS, 5000 * MS], "too few operations");
        for bounds in &bounds[20..] {
            assert_eq!(*bounds, [9 * MS, 15 * MS]);
        }
    }

    #[test]
    fn contributions_that_usually_come_late_are_in_time() {
        // A rank starts 16 ms after the others. Then a grid's row, which has no gather.
        for (durations, t_s) in [([18, 20], 27.0), ([20, 20], 28.125)] {
            let bounds = bounds_after((0..60).map(|_| durations));
            assert_eq!(bounds[59], [MS.mul_f64(t_s), 30 * MS], "{durations:?}");
        }
    }

    #[test]
    fn a_network_that_stays_slower_is_followed() {
        let bounds = bounds_after((0..250).map(|at| if at < 100 { [5, 10] } else { [20, 40] }));
        assert_eq!(bounds[99][1], 15 * MS);
        // 25 of 32 operations had the bound.
        assert_eq!(bounds[123][1], 15 * MS);
        assert_eq!(bounds[124][1], MS.mul_f64(22.5));
        assert_eq!(bounds[249][1], 60 * MS);
    }

    #[test]
    fn the_scheduler_has_time() {
        let bounds = bounds_after((0..30).map(|_| [1, 1]));
        assert_eq!(bounds[29][1], 2 * MS);
    }
}
