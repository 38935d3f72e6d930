//! Timeouts: how long an operation waits, and how ranks adapt that from one operation to the next.
//!
//! | file | content |
//! | --- | --- |
//! | `choice.rs` | [`Timeouts`] |
//! | `fixed.rs` | [`Timeouts::Fixed`]: the configured t_S and t_B |
//! | `published.rs` | [`Timeouts::Published`]: as in OptiReduce |
//! | `cause_aware.rs` | [`Timeouts::CauseAware`]: ours |
//! | `early_close.rs` | t_C and the *x* % rule of the latter two |
//! | `buckets.rs` | learned state by bucket |
//! | `arrivals.rs` | histogram of arrival times over the last operations |
//! | `durations.rs` | usual durations, and bounds that are a multiple of them |
//!
//! An operation has two stages, [`Phase::Scatter`] until the rank's own shard has closed and
//! [`Phase::Gather`] until all aggregates have arrived. Both are measured from the operation's start *at this
//! rank*. So the time that a rank computes before its start is part of the others' wait, and clocks need not
//! agree. Every bucket learns separately: buckets differ in size, and a step's first one waits for others
//! than its last.

mod arrivals;
mod buckets;
mod cause_aware;
pub(crate) mod choice;
mod durations;
mod early_close;
mod fixed;
mod published;

use std::time::Duration;

pub use choice::Timeouts;
use early_close::EarlyClose;

use crate::cause::{Causes, Phase};
use crate::config::Config;
use crate::stats::ClosedBy;
use crate::time::Time;

impl Timeouts {
    pub(crate) fn policy(self, config: &Config) -> Box<dyn Policy> {
        let limits = Bounds::configured(config);
        match self {
            Timeouts::Fixed => Box::new(fixed::Fixed::new(limits)),
            Timeouts::Published => Box::new(published::Published::new(limits, config.ranks)),
            Timeouts::CauseAware => Box::new(cause_aware::CauseAware::new(
                limits,
                config.slack,
                config.deadline_factor,
                config.ranks,
            )),
        }
    }
}

/// t_C as in headers, in units of 2^16 ns; 0 for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SharedTc(pub(crate) u16);

impl SharedTc {
    const UNIT: u64 = 1 << 16;
}

impl From<Duration> for SharedTc {
    /// Rounded up, so that only zero means none.
    fn from(t_c: Duration) -> Self {
        let ns = u64::try_from(t_c.as_nanos()).unwrap_or(u64::MAX);
        SharedTc(u16::try_from(ns.div_ceil(Self::UNIT)).unwrap_or(u16::MAX))
    }
}

impl From<SharedTc> for Duration {
    fn from(t_c: SharedTc) -> Self {
        Duration::from_nanos(u64::from(t_c.0) * SharedTc::UNIT)
    }
}

/// Time bounds of one operation, since its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// The time at which the rank's own shard closes with the contributions that arrived.
    pub(crate) t_s: Duration,
    /// The time at which the operation ends; more than `t_s`.
    pub(crate) t_b: Duration,
    /// By stage: time for missing packets once every rank's last packets have begun to arrive.
    pub(crate) grace: [Option<Duration>; 2],
    /// True if the rank waits less once another one has started a later step: see [`Bounds::behind`].
    pub(crate) catches_up: bool,
}

impl Bounds {
    /// The time between copies of a notice, which is also its delay where packets overtake each other.
    pub(crate) fn notice_spacing(&self) -> Duration {
        self.t_b / 16
    }
}

/// The end of one stage of an operation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stage {
    /// Time since the operation's start.
    pub(crate) after: Duration,
    pub(crate) closed_by: ClosedBy,
    /// Packets owed.
    pub(crate) owed: u64,
    /// Missing packets by cause.
    pub(crate) missing: Causes,
}

/// The end of an operation.
pub(crate) struct Ended<'a> {
    pub(crate) step: u32,
    pub(crate) bucket: u16,
    /// By [`Phase`].
    pub(crate) stages: [Stage; 2],
    /// This rank's packets that were unsent when a bound passed, by phase.
    pub(crate) never_sent: [u64; 2],
    /// True if the bound passed before all contributions of a rank had arrived or were known to be lost.
    pub(crate) overdue: &'a dyn Fn(u16) -> bool,
}

/// Decides how long operations wait, and learns from them.
pub(crate) trait Policy: Send {
    /// Starts an operation of `bucket` with this number of values.
    fn start(&mut self, now: Time, bucket: u16, values: usize) -> Bounds;

    /// True if it needs the times of packets. Otherwise they are not measured.
    fn learns(&self) -> bool {
        true
    }

    /// Records packets of `bucket`'s operation at this time since its start: they arrived from `source`, or this rank sent
    /// them if that is None. Includes late packets, but not trimmed ones.
    fn record_packets(
        &mut self,
        _bucket: u16,
        _phase: Phase,
        _source: Option<u16>,
        _after: Duration,
        _packets: u64,
    ) {
    }

    /// The bucket's t_C, if the policy has one.
    fn early_close(&mut self, _bucket: u16) -> Option<&mut EarlyClose> {
        None
    }

    /// Notes `rank`'s t_C for a stage.
    fn peer_t_c(&mut self, bucket: u16, phase: Phase, rank: u16, t_c: SharedTc) {
        if let Some(early) = self.early_close(bucket) {
            early.peer_t_c(phase, rank, t_c);
        }
    }

    /// This rank's t_C for the others; zero for none.
    fn t_c(&mut self, bucket: u16, phase: Phase) -> Duration {
        self.early_close(bucket)
            .map_or(Duration::ZERO, |early| early.t_c(phase))
    }

    /// Notes the end of an operation.
    fn ended(&mut self, _ended: &Ended<'_>) {}
}

/// Number of operations per bucket with the configured bounds before the policy applies: OptiReduce's warm-up
/// (NSDI 2025, §3.2.1).
const WARM_UP: usize = 20;

/// The value that `percent` of the non-empty `values` do not exceed (nearest rank).
fn percentile(values: &mut [Duration], percent: usize) -> Duration {
    let at = (values.len() * percent).div_ceil(100).max(1) - 1;
    *values.select_nth_unstable(at).1
}

impl Bounds {
    /// The configured bounds.
    pub(crate) fn configured(config: &Config) -> Self {
        Bounds {
            t_s: config.t_s,
            t_b: config.t_b,
            grace: [None; 2],
            catches_up: false,
        }
    }

    /// These bounds, but t_B is at most `deadline`, and t_S at most the share of it that `limits` have.
    pub(crate) fn at_most(self, deadline: Duration, limits: &Bounds) -> Self {
        let share = limits.t_s.as_secs_f64() / limits.t_b.as_secs_f64();
        Bounds {
            t_s: self.t_s.min(deadline.mul_f64(share)),
            t_b: self.t_b.min(deadline),
            ..self
        }
    }

    /// How long this rank still waits for contributions, and in all, once another rank has started a later step. In that step
    /// the other rank waits for this one's contributions for t_S, and then for its aggregates. If this rank waited longer, it
    /// would miss that step, too. It may wait for packets of a stopped rank, which some ranks have and others never get.
    pub(crate) fn catch_up(&self) -> Option<[Duration; 2]> {
        let most = self.t_s.min(self.t_b - self.t_s);
        self.catches_up.then(|| [most / 2, most * 3 / 4])
    }

    /// The given bounds, limited to `limits`. t_B exceeds t_S by at least a sixteenth: aggregates of a later
    /// flush would be late. A duration equal to a bound is in time.
    fn within(t_s: Duration, t_b: Duration, grace: [Option<Duration>; 2], limits: Bounds) -> Self {
        let tick = Duration::from_nanos(1);
        let t_s = (t_s + tick).min(limits.t_s);
        let t_b = (t_b + tick).max(t_s + t_s / 16 + tick);
        Bounds {
            t_s,
            t_b: t_b.min(limits.t_b),
            grace,
            ..limits
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_ranks() {
        let ms = Duration::from_millis;
        let mut values: Vec<_> = (1..=20).rev().map(ms).collect();
        assert_eq!(percentile(&mut values, 95), ms(19));
        assert_eq!(percentile(&mut values, 50), ms(10));
        assert_eq!(percentile(&mut [ms(7)], 95), ms(7));
    }
}
