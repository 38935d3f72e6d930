//! By what moves them: stragglers and late packets do, drops don't.
//!
//! A packet that comes late still tells when it came. So t_S and t_B are a quantile of the times of *all* packets, not
//! of operations that a bound had cut short: the share of packets that come late is what the rank chooses, whatever
//! the number of ranks. (A percentile of operations, as published, is one of a maximum over ranks: with eight ranks
//! it loses seven times the share that it loses with fifty.) What a switch cut for a full queue, or never came, has
//! no time and moves nothing. What this rank sends counts as well, since its receivers' times cannot show what it never
//! sent.
//!
//! Two bounds keep stragglers from being waited for too long: neither time goes over [`STRETCH`] times the median
//! packet's, and a source that was overdue in most of the last operations does not count.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::cause::{Cause, Phase};

use super::arrivals::Arrivals;
use super::early_close::EarlyClose;
use super::{Bounds, Ended, Policy, WARM_UP, apart};

/// The share of packets that may come late in each stage: half of the 0.1 % that OptiReduce takes for much (§3.2.1).
/// Half of the packets counted are this rank's own, which are not late.
const LATE_SHARE: f64 = 5e-4 / 2.0;
/// Stages last no longer than the median packet's time times this. A log-normal tail of p99/p50 = 3 has its 99.95th
/// percentile at 4.7 times its median, and the median packet of a stage comes when half of it is over.
const STRETCH: u32 = 10;
/// Of how many operations, about, a source's share of overdue ones is.
const OVERDUE_WINDOW: f32 = 16.0;
/// A source that is overdue in more of them than this does not count.
const OVERDUE_OFTEN: f32 = 0.5;

pub(super) struct CauseAware {
    limits: Bounds,
    ranks: u16,
    buckets: BTreeMap<u16, Bucket>,
    /// By rank, the share of recent operations in which it was overdue.
    overdue: Vec<f32>,
}

struct Bucket {
    values: usize,
    operations: usize,
    bounds: Bounds,
    stages: [Arrivals; 2],
    early: EarlyClose,
}

impl CauseAware {
    pub(super) fn new(limits: Bounds, ranks: u16) -> Self {
        Self {
            limits,
            ranks,
            buckets: BTreeMap::new(),
            overdue: vec![0.0; ranks.into()],
        }
    }
}

impl Bucket {
    fn new(values: usize, ranks: u16, limits: Bounds) -> Self {
        Self {
            values,
            operations: 0,
            bounds: limits,
            stages: [Arrivals::new(), Arrivals::new()],
            early: EarlyClose::new(ranks),
        }
    }

    fn learn(&mut self, limits: Bounds) {
        let [t_s, t_b] = self.stages.each_ref().map(|stage| {
            let most = stage.all_but(0.5) * STRETCH;
            stage.all_but(LATE_SHARE).min(most)
        });
        let t_s = t_s.clamp(Duration::from_nanos(1), limits.t_s);
        self.bounds = Bounds {
            t_s,
            t_b: apart(t_s, t_b).min(limits.t_b),
            grace: self.early.grace(),
        };
    }
}

impl Policy for CauseAware {
    fn start(&mut self, bucket: u16, values: usize) -> Bounds {
        let new = || Bucket::new(values, self.ranks, self.limits);
        let bucket = self.buckets.entry(bucket).or_insert_with(new);
        if bucket.values != values {
            *bucket = Bucket::new(values, self.ranks, self.limits);
        }
        bucket.bounds
    }

    fn passed(&mut self, bucket: u16, phase: Phase, source: Option<u16>, after: Duration) {
        let ignored = source.is_some_and(|rank| self.overdue[usize::from(rank)] > OVERDUE_OFTEN);
        if let Some(bucket) = self.buckets.get_mut(&bucket)
            && !ignored
        {
            bucket.stages[phase as usize].add(after, 1);
        }
    }

    fn told(&mut self, bucket: u16, phase: Phase, rank: u16, t_c: Duration) {
        if let Some(bucket) = self.buckets.get_mut(&bucket) {
            bucket.early.told(phase, rank, t_c);
        }
    }

    fn t_c(&self, bucket: u16, phase: Phase) -> Duration {
        let bucket = self.buckets.get(&bucket);
        bucket.map_or(Duration::ZERO, |bucket| bucket.early.t_c(phase))
    }

    fn ended(&mut self, ended: &Ended<'_>) {
        let Some(bucket) = self.buckets.get_mut(&ended.bucket) else {
            return;
        };
        let waited = [bucket.bounds.t_s, bucket.bounds.t_b];
        for ((stage, never_sent), bound) in
            (bucket.stages.iter_mut().zip(ended.never_sent)).zip(waited)
        {
            // It would have taken longer, nobody knows how much.
            stage.add(bound + bound / 4, never_sent);
            stage.forget();
        }
        let owed: u64 = ended.stages.iter().map(|stage| stage.owed).sum();
        let late = |cause| ended.stages.iter().map(move |s| s.missing.of(cause));
        let late: u64 = late(Cause::Late).chain(late(Cause::Overdue)).sum();
        bucket
            .early
            .ended(&ended.stages, late as f64 / owed.max(1) as f64);
        for (rank, share) in (0u16..).zip(&mut self.overdue) {
            let now = f32::from(u8::from((ended.overdue)(rank)));
            *share += (now - *share) / OVERDUE_WINDOW;
        }
        bucket.operations += 1;
        if bucket.operations >= WARM_UP {
            bucket.learn(self.limits);
        }
    }
}
