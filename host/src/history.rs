//! Histograms of durations and losses over a run's operations.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::cause::Losses;
use crate::stats::{ClosedBy, Outcome};

/// Significant digits of durations: an error below 0.1 %.
const DIGITS: u8 = 3;

/// A timed part of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Span {
    /// From the start to the end.
    Operation,
    /// From the start until the rank's own shard has closed.
    Shard,
    /// From the close of its own shard to the end.
    Gather,
}

impl Span {
    /// All variants.
    pub const ALL: [Span; 3] = [Span::Operation, Span::Shard, Span::Gather];

    /// The name in reports and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Span::Operation => "operation",
            Span::Shard => "shard",
            Span::Gather => "gather",
        }
    }
}

/// A histogram of durations, whose memory does not grow with their number: about 100 KiB if they range from
/// nanoseconds to minutes.
#[derive(Clone, Debug)]
pub struct Durations {
    counts: Histogram<u32>,
    /// The exact sum, which the histogram does not keep.
    sum: Duration,
    most: Duration,
}

impl Default for Durations {
    fn default() -> Self {
        let counts = Histogram::new(DIGITS).expect("a histogram has 1 to 5 digits");
        Self {
            counts,
            sum: Duration::ZERO,
            most: Duration::ZERO,
        }
    }
}

impl Durations {
    fn add(&mut self, duration: Duration) {
        // Limited to an i64, 292 years: indices are signed.
        let ns = i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX);
        self.counts
            .record(ns as u64)
            .expect("an auto-resizing histogram accepts every value");
        self.sum = self.sum.saturating_add(duration);
        self.most = self.most.max(duration);
    }

    fn merge(&mut self, other: &Durations) {
        self.counts
            .add(&other.counts)
            .expect("an auto-resizing histogram accepts every value");
        self.sum = self.sum.saturating_add(other.sum);
        self.most = self.most.max(other.most);
    }

    /// Number of durations.
    pub fn count(&self) -> u64 {
        self.counts.len()
    }

    /// Number of durations up to `bound`, within 0.1 % of it.
    pub fn count_to(&self, bound: Duration) -> u64 {
        match self.most <= bound {
            true => self.count(),
            false => {
                let ns = u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX);
                self.counts.count_between(0, ns)
            }
        }
    }

    /// Sum of all durations.
    pub fn sum(&self) -> Duration {
        self.sum
    }

    /// The longest duration; zero if there is none.
    pub fn max(&self) -> Duration {
        self.most
    }

    /// The quantile at `share`, 0 to 1; zero if there is none.
    pub fn quantile(&self, share: f64) -> Duration {
        Duration::from_nanos(self.counts.value_at_quantile(share)).min(self.most)
    }
}

/// Durations of a rank's operations by what closed them, and their losses. Memory does not grow with their
/// number.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// By [`Span`] and [`ClosedBy`].
    durations: [[Durations; ClosedBy::ALL.len()]; Span::ALL.len()],
    lost: Losses,
    owed: u64,
    /// Ranks that were ever suspected, and whether they still are.
    suspected: BTreeMap<u16, bool>,
}

impl History {
    /// Adds a finished operation.
    pub fn add(&mut self, outcome: &Outcome) {
        let shard = outcome.shard_closed_by;
        let end = outcome.closed_by;
        for (span, by, took) in [
            (Span::Operation, end, outcome.duration),
            (Span::Shard, shard, outcome.shard_duration),
            (Span::Gather, end, outcome.gather_duration()),
        ] {
            self.durations[span as usize][by as usize].add(took);
        }
        self.lost += outcome.lost;
        self.owed += outcome.owed;
        self.suspected
            .values_mut()
            .for_each(|suspected| *suspected = false);
        let suspected = outcome.suspected.iter().map(|&rank| (rank, true));
        self.suspected.extend(suspected);
    }

    /// Adds the operations of another rank.
    pub fn merge(&mut self, other: &History) {
        let durations = self.durations.iter_mut().flatten();
        for (all, more) in durations.zip(other.durations.iter().flatten()) {
            all.merge(more);
        }
        self.lost += other.lost;
        self.owed += other.owed;
        for (rank, suspected) in &other.suspected {
            *self.suspected.entry(*rank).or_default() |= suspected;
        }
    }

    /// Durations of `span` in the operations that `by` closed. The cause that ended the operation classifies the
    /// operation and its gather; the worst of its slots classifies the shard.
    pub fn of(&self, span: Span, by: ClosedBy) -> &Durations {
        &self.durations[span as usize][by as usize]
    }

    /// All durations of `span`.
    pub fn all(&self, span: Span) -> Durations {
        let mut all = Durations::default();
        for durations in &self.durations[span as usize] {
            all.merge(durations);
        }
        all
    }

    /// Number of finished operations.
    pub fn operations(&self) -> u64 {
        let by_end = self.durations[Span::Operation as usize].iter();
        by_end.map(Durations::count).sum()
    }

    /// Missing slots by cause.
    pub fn lost(&self) -> Losses {
        self.lost
    }

    /// Ranks that were suspected after any operation ([`Outcome::suspected`]), and whether they were after
    /// the last one.
    pub fn suspected(&self) -> impl Iterator<Item = (u16, bool)> + '_ {
        self.suspected
            .iter()
            .map(|(rank, suspected)| (*rank, *suspected))
    }

    /// Packets owed to this rank.
    pub fn owed(&self) -> u64 {
        self.owed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: f64) -> Duration {
        Duration::from_secs_f64(ms * 1e-3)
    }

    #[test]
    fn quantiles_are_within_a_thousandth_and_the_ends_exact() {
        let mut durations = Durations::default();
        for at in 1..=1000 {
            durations.add(ms(f64::from(at)));
        }
        let near = |share: f64, expected: f64| {
            let found = durations.quantile(share).as_secs_f64() * 1e3;
            assert!((found / expected - 1.0).abs() < 1e-3, "{share}: {found}");
        };
        near(0.5, 500.0);
        near(0.99, 990.0);
        near(0.999, 999.0);
        assert_eq!(durations.quantile(1.0), ms(1000.0));
        assert_eq!((durations.count(), durations.max()), (1000, ms(1000.0)));
        assert_eq!(durations.sum(), ms(500_500.0));
        assert_eq!(durations.count_to(ms(1000.0)), 1000);
        assert_eq!(durations.count_to(ms(250.4)), 250);
        assert_eq!(durations.count_to(Duration::ZERO), 0);
    }

    #[test]
    fn none_and_the_longest_of_all_have_quantiles() {
        let mut durations = Durations::default();
        assert_eq!(
            (durations.quantile(0.5), durations.count()),
            (Duration::ZERO, 0)
        );
        durations.add(Duration::MAX);
        durations.add(Duration::MAX);
        assert_eq!((durations.count(), durations.max()), (2, Duration::MAX));
        assert!(durations.quantile(0.5) > Duration::from_secs(1 << 33));
    }

    #[test]
    fn merged_ones_are_as_if_added() {
        let (mut one, mut other, mut both) = <(Durations, Durations, Durations)>::default();
        for at in 0..100 {
            let took = ms(f64::from(at * at));
            let half = if at % 2 == 0 { &mut one } else { &mut other };
            half.add(took);
            both.add(took);
        }
        one.merge(&other);
        for share in [0.0, 0.3, 0.9, 1.0] {
            assert_eq!(one.quantile(share), both.quantile(share));
        }
        assert_eq!((one.count(), one.sum()), (both.count(), both.sum()));
    }
}
