//! How long an operation waits, and what a rank learns about that from one operation to the next.
//!
//! | file | |
//! | --- | --- |
//! | `fixed.rs` | [`Timeouts::Fixed`]: the configuration's t_S and t_B |
//! | `published.rs` | [`Timeouts::Published`]: what OptiReduce learns |
//! | `cause_aware.rs` | [`Timeouts::CauseAware`]: ours |
//! | `early_close.rs` | t_C and the *x* % rule of the latter two |
//! | `buckets.rs` | what the latter two learn of each bucket |
//! | `arrivals.rs` | when packets came: a histogram over the last operations |
//!
//! An operation has two stages, [`Phase::Scatter`] until the rank's own shard has closed and [`Phase::Gather`] until
//! all aggregates are here. Both are measured from the operation's start *at this rank*, so that what a rank computes
//! before it starts is part of what the others wait for, and no clocks need agree. Every bucket learns for itself: they
//! differ in size, and a step's first one waits for others than its last.

mod arrivals;
mod buckets;
mod cause_aware;
mod early_close;
mod fixed;
mod published;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use early_close::EarlyClose;

use crate::cause::{Causes, Phase};
use crate::config::Config;
use crate::stats::ClosedBy;
use crate::time::Time;

/// What t_S and t_B are. Whatever is learned stays under the configuration's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Timeouts {
    /// As configured.
    #[default]
    Fixed,
    /// As OptiReduce (NSDI 2025, §3.2.1) has them: t_S and t_B are the 95th percentile of what their stages took in the
    /// bucket's first 20 operations; a stage whose last packets have begun to come waits for at most *x* % of its recent
    /// time t_C, and *x* follows the loss, whatever its cause.
    Published,
    /// By what moves them: t_S and t_B follow a quantile of all packets' times, those that came late included; *x*
    /// follows what was late or overdue. What is known to be lost is no reason to wait.
    CauseAware,
}

impl Timeouts {
    /// All of them.
    pub const ALL: [Timeouts; 3] = [Timeouts::Fixed, Timeouts::Published, Timeouts::CauseAware];

    /// As users write it.
    pub fn name(self) -> &'static str {
        match self {
            Timeouts::Fixed => "fixed",
            Timeouts::Published => "published",
            Timeouts::CauseAware => "cause-aware",
        }
    }

    pub(crate) fn policy(self, config: &Config) -> Box<dyn Policy> {
        let limits = Bounds {
            t_s: config.t_s,
            t_b: config.t_b,
            grace: [None; 2],
        };
        match self {
            Timeouts::Fixed => Box::new(fixed::Fixed::new(limits)),
            Timeouts::Published => Box::new(published::Published::new(limits, config.ranks)),
            Timeouts::CauseAware => Box::new(cause_aware::CauseAware::new(limits, config.ranks)),
        }
    }
}

/// t_C as headers have it, in units of 2^16 ns; 0 says nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SharedTc(pub(crate) u16);

impl SharedTc {
    const UNIT: u64 = 1 << 16;
}

impl From<Duration> for SharedTc {
    /// Rounded up, so that only none at all says nothing.
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

/// How long one operation waits, from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// When the rank's own shard closes with what is there.
    pub(crate) t_s: Duration,
    /// When the operation ends; over `t_s`.
    pub(crate) t_b: Duration,
    /// By stage: how long what is still awaited may take once everyone's last packets have begun to come.
    pub(crate) grace: [Option<Duration>; 2],
}

/// How one stage of an operation ended.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stage {
    /// When, from the operation's start.
    pub(crate) after: Duration,
    pub(crate) closed_by: ClosedBy,
    /// Packets that were to come.
    pub(crate) owed: u64,
    /// Why some did not.
    pub(crate) missing: Causes,
}

/// How an operation ended.
pub(crate) struct Ended<'a> {
    pub(crate) step: u32,
    pub(crate) bucket: u16,
    /// By [`Phase`].
    pub(crate) stages: [Stage; 2],
    /// Packets of this rank's own that a bound passed before they were sent, by phase.
    pub(crate) never_sent: [u64; 2],
    /// Whether the bound passed before all contributions of a rank were in or known to be lost.
    pub(crate) overdue: &'a dyn Fn(u16) -> bool,
}

/// Decides how long operations wait, and learns.
pub(crate) trait Policy: Send {
    /// An operation of `bucket` starts, of so many values.
    fn start(&mut self, now: Time, bucket: u16, values: usize) -> Bounds;

    /// Whether it wants to know when packets pass: otherwise nothing is kept for it.
    fn learns(&self) -> bool {
        true
    }

    /// Packets of `bucket`'s operation came from `source`, or left for others (none), so long after the operation's
    /// start: also when they were late, unless a full queue had cut them.
    fn passed(
        &mut self,
        _bucket: u16,
        _phase: Phase,
        _source: Option<u16>,
        _after: Duration,
        _packets: u64,
    ) {
    }

    /// What a bucket's t_C is, where there is one.
    fn early_close(&mut self, _bucket: u16) -> Option<&mut EarlyClose> {
        None
    }

    /// `rank` says what its t_C for that stage is.
    fn told(&mut self, bucket: u16, phase: Phase, rank: u16, t_c: SharedTc) {
        if let Some(early) = self.early_close(bucket) {
            early.told(phase, rank, t_c);
        }
    }

    /// What this rank tells the others as its t_C; zero says nothing.
    fn t_c(&mut self, bucket: u16, phase: Phase) -> Duration {
        self.early_close(bucket)
            .map_or(Duration::ZERO, |early| early.t_c(phase))
    }

    /// An operation ended.
    fn ended(&mut self, _ended: &Ended<'_>) {}
}

/// Operations of a bucket that run with the configuration's bounds before anything is concluded from them: as many
/// as OptiReduce's warm-up has (NSDI 2025, §3.2.1).
const WARM_UP: usize = 20;

/// The value that `percent` of `values`, of which there are some, do not exceed (nearest rank).
fn percentile(values: &mut [Duration], percent: usize) -> Duration {
    let at = (values.len() * percent).div_ceil(100).max(1) - 1;
    *values.select_nth_unstable(at).1
}

impl Bounds {
    /// These, or `limits` where they are shorter. t_B is over t_S by a sixteenth at least: a flush that nobody can hear
    /// would be of no use. What takes as long as a bound is in time.
    fn within(t_s: Duration, t_b: Duration, grace: [Option<Duration>; 2], limits: Bounds) -> Self {
        let tick = Duration::from_nanos(1);
        let t_s = (t_s + tick).min(limits.t_s);
        let t_b = (t_b + tick).max(t_s + t_s / 16 + tick);
        Bounds {
            t_s,
            t_b: t_b.min(limits.t_b),
            grace,
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
