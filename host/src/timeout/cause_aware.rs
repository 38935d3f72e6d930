//! Timeouts that follow stragglers and late packets, but not drops.
//!
//! A late packet still shows its arrival time. So t_S and t_B are a quantile of the times of *all* packets,
//! not of operations that a bound cut short: a rank chooses the share of late packets, whatever the number of
//! ranks. (A percentile of operations, as published, is one of a maximum over ranks: with eight ranks it
//! loses seven times the share that it loses with fifty.) A packet that was trimmed or dropped has no time
//! and changes nothing. A rank waits at least as long as it sends, because its receivers cannot know what it
//! never sent.
//!
//! A host's scheduler may stop a rank for longer than an operation takes. That is too rare to be learned and costs whole
//! operations, so bounds have the configured slack beyond the learned times.
//!
//! Waits for stragglers are bounded: by [`STRETCH`] times the usual duration, or [`PERIOD_SHARE`] of the time
//! from one operation to the next. A source that was overdue in most of the last operations does not count.
//!
//! With [`Config::deadline_factor`](crate::Config::deadline_factor), operations also end after this multiple of the
//! bucket's usual duration, which bounds by packets exceed where bursts delay many packets.

use std::time::Duration;

use crate::bits::Bits;
use crate::cause::{Cause, Phase};
use crate::time::Time;

use super::arrivals::Arrivals;
use super::buckets::Buckets;
use super::durations::Durations;
use super::early_close::EarlyClose;
use super::{Bounds, Ended, Policy, WARM_UP};

/// The share of packets that may be late in each stage: slightly below the 0.1 % that OptiReduce considers
/// high (§3.2.1), because it is an estimate.
const LATE_SHARE: f64 = 7e-4;
/// A rank waits as long as it takes to send all but this share itself. In most operations that is enough: a
/// tail in its own sending that others see is part of their measurements.
const SENT_LATE: f64 = 0.05;
/// A stage lasts at most this many times the median packet's time. A log-normal tail of p99/p50 = 3 has its
/// 99.95th percentile at 4.7 times its median, and the median packet of a stage arrives at half of its
/// duration.
const STRETCH: u32 = 10;
/// The share of a step's time that stragglers may cost, if that is more: their backward passes differ by as
/// much without a fault.
const PERIOD_SHARE: u32 = 10;
/// Approximate number of operations in the average of the period.
const PERIOD_WINDOW: u32 = 16;
/// Approximate number of steps in a source's share of overdue ones.
const OVERDUE_WINDOW: f32 = 16.0;
/// A source that is overdue in more steps than this share does not count.
const OVERDUE_OFTEN: f32 = 0.5;

pub(super) struct CauseAware {
    limits: Bounds,
    /// See [`Config::slack`](crate::Config::slack).
    slack: Duration,
    /// See [`Config::deadline_factor`](crate::Config::deadline_factor).
    deadline_factor: Option<f64>,
    ranks: u16,
    buckets: Buckets<BucketTimes>,
    /// By rank: the share of recent steps in which it was overdue.
    overdue: Vec<f32>,
    /// The current step.
    step: u32,
    /// Ranks that were overdue in it.
    overdue_now: Bits,
}

struct BucketTimes {
    sources: u16,
    operations: usize,
    /// Number of times that the measurements start over when enough would be known.
    start_over: u8,
    started: Option<Time>,
    /// The time from one operation's start to the next one's.
    period: Duration,
    bounds: Bounds,
    /// Used with a deadline factor.
    durations: Durations,
    stages: [Times; 2],
    early: EarlyClose,
}

/// Measurements of one stage's packets.
struct Times {
    received: Arrivals,
    /// This rank's own packets.
    sent: Arrivals,
}

impl Times {
    fn new(sources: u16) -> Self {
        Self {
            received: Arrivals::new(LATE_SHARE, sources),
            sent: Arrivals::new(LATE_SHARE, sources),
        }
    }
}

impl CauseAware {
    pub(super) fn new(
        limits: Bounds,
        slack: Duration,
        deadline_factor: Option<f64>,
        ranks: u16,
    ) -> Self {
        let mut overdue_now = Bits::default();
        overdue_now.reset(ranks.into());
        Self {
            limits: Bounds {
                // Without slack, bounds are too short to cost another step.
                catches_up: !slack.is_zero(),
                ..limits
            },
            slack,
            deadline_factor,
            ranks,
            buckets: Buckets::default(),
            overdue: vec![0.0; ranks.into()],
            step: 0,
            overdue_now,
        }
    }
}

impl BucketTimes {
    fn new(ranks: u16, limits: Bounds) -> Self {
        let sources = ranks - 1;
        Self {
            sources,
            operations: 0,
            start_over: 0,
            started: None,
            period: Duration::ZERO,
            bounds: limits,
            durations: Durations::default(),
            stages: [Times::new(sources), Times::new(sources)],
            early: EarlyClose::new(ranks),
        }
    }

    fn starts(&mut self, now: Time) {
        if let Some(started) = self.started.replace(now) {
            let last = now.since(started);
            self.period = match self.period {
                Duration::ZERO => last,
                period => (period * (PERIOD_WINDOW - 1) + last) / PERIOD_WINDOW,
            };
        }
    }

    /// Resets the measured times. The bounds stay until enough is measured again.
    fn forget(&mut self) {
        self.operations = 0;
        for times in &mut self.stages {
            *times = Times::new(self.sources);
        }
    }

    fn learn(&mut self, limits: Bounds, slack: Duration) {
        let usual = |times: &Times| times.received.median().max(times.sent.median());
        // A rank that starts after the others has their contributions at once, so their times do not show how long the
        // stage takes: at least half as long as to the median aggregate.
        let least = usual(&self.stages[Phase::Gather as usize]) / 2;
        let [t_s, t_b] = self.stages.each_ref().map(|times| {
            let usual = usual(times).max(least);
            let most = (usual * STRETCH).max(self.period / PERIOD_SHARE);
            let sent = times.sent.all_but_share(SENT_LATE);
            times.received.bound().max(sent).min(most)
        });
        let grace = self.early.grace().map(|grace| Some(grace? + slack));
        self.bounds = Bounds::within(t_s + slack, t_b + 2 * slack, grace, limits);
    }
}

impl CauseAware {
    /// Ends a step: a rank that was overdue in any of its operations counts once.
    fn step_ended(&mut self) {
        for (rank, share) in self.overdue.iter_mut().enumerate() {
            let was_often = *share > OVERDUE_OFTEN;
            let overdue = f32::from(u8::from(self.overdue_now.remove(rank)));
            *share += (overdue - *share) / OVERDUE_WINDOW;
            if *share > OVERDUE_OFTEN && !was_often {
                // The measurements of the others include its effect, so they are reset; twice, because the
                // others' next steps include it too.
                for bucket in self.buckets.values_mut() {
                    bucket.forget();
                    bucket.start_over = 1;
                }
            }
        }
    }
}

impl Policy for CauseAware {
    fn start(&mut self, now: Time, bucket: u16, values: usize) -> Bounds {
        let new = || BucketTimes::new(self.ranks, self.limits);
        let bucket = self.buckets.start(bucket, values, new);
        bucket.starts(now);
        match self.deadline_factor {
            Some(factor) => (bucket.durations).shorten(bucket.bounds, factor, &self.limits),
            None => bucket.bounds,
        }
    }

    fn record_packets(
        &mut self,
        bucket: u16,
        phase: Phase,
        source: Option<u16>,
        after: Duration,
        packets: u64,
    ) {
        let Some(bucket) = self.buckets.get_mut(bucket) else {
            return;
        };
        let times = &mut bucket.stages[phase as usize];
        match source {
            None => times.sent.add(after, packets),
            Some(rank) if self.overdue[usize::from(rank)] > OVERDUE_OFTEN => {}
            Some(_) => times.received.add(after, packets),
        }
    }

    fn early_close(&mut self, bucket: u16) -> Option<&mut EarlyClose> {
        self.buckets.get_mut(bucket).map(|bucket| &mut bucket.early)
    }

    fn ended(&mut self, ended: &Ended<'_>) {
        let Some(bucket) = self.buckets.get_mut(ended.bucket) else {
            return;
        };
        let waited = [bucket.bounds.t_s, bucket.bounds.t_b];
        bucket.durations.ended(&ended.stages);
        let stages = bucket.stages.iter_mut().zip(ended.never_sent);
        let waited = waited.into_iter().zip(&ended.stages);
        for ((times, never_sent), (bound, stage)) in stages.zip(waited) {
            // It would have taken longer, by an unknown time. A stage that ended before its bound shows nothing: a rank that
            // was stopped catches up, and has nothing to send to those that are past the step.
            if stage.after >= bound {
                times.sent.add(bound + bound / 4, never_sent);
            }
            times.sent.operation_ended();
            times.received.operation_ended();
        }
        let owed: u64 = ended.stages.iter().map(|stage| stage.owed).sum();
        let late = |cause| ended.stages.iter().map(move |s| s.missing.of(cause));
        let late: u64 = late(Cause::Late).chain(late(Cause::Overdue)).sum();
        let late = late as f64 / owed.max(1) as f64;
        bucket.early.ended(&ended.stages, late);
        bucket.operations += 1;
        if bucket.operations >= WARM_UP {
            bucket.learn(self.limits, self.slack);
            if bucket.start_over > 0 {
                bucket.start_over -= 1;
                bucket.forget();
            }
        }
        if ended.step != self.step {
            self.step_ended();
            self.step = ended.step;
        }
        for rank in (0..self.ranks).filter(|rank| (ended.overdue)(*rank)) {
            self.overdue_now.insert(rank.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Stage;
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// The bounds after as many operations as it takes to learn. All packets took 2 ms, but for some that were never sent in
    /// stages that ended after this time.
    fn learned(after: Duration) -> Bounds {
        let limits = Bounds {
            t_s: 3000 * MS,
            t_b: 5000 * MS,
            grace: [None; 2],
            catches_up: false,
        };
        let mut policy = CauseAware::new(limits, 300 * MS, None, 4);
        let mut bounds = limits;
        for step in 0..200 {
            let start = Time::ZERO + step * 10 * MS;
            bounds = policy.start(start, 0, 1000);
            for phase in [Phase::Scatter, Phase::Gather] {
                for source in [None, Some(1), Some(2), Some(3)] {
                    policy.record_packets(0, phase, source, 2 * MS, 8);
                }
            }
            let stage = Stage {
                after,
                owed: 24,
                ..Stage::default()
            };
            policy.ended(&Ended {
                step,
                bucket: 0,
                stages: [stage; 2],
                never_sent: [20, 0],
                overdue: &|_| false,
            });
        }
        bounds
    }

    #[test]
    fn packets_without_receivers_do_not_extend_the_bounds() {
        let bounds = learned(2 * MS);
        assert!(bounds.t_s < 310 * MS, "{bounds:?}");
        assert_eq!(
            learned(5000 * MS).t_s,
            3000 * MS,
            "a slow sender waits as long as it sends"
        );
    }
}
