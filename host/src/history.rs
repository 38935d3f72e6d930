//! What a rank's operations took and lost, over a run: histograms by what closed them.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::cause::Losses;
use crate::stats::{ClosedBy, Outcome};

/// Digits that durations are told apart by: under 0.1 % between what was and what is told.
const DIGITS: u8 = 3;

/// A part of an operation that is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Span {
    /// From the start to the end.
    Operation,
    /// From the start until the rank's own shard has closed.
    Shard,
    /// From there to the end.
    Gather,
}

impl Span {
    /// All of them.
    pub const ALL: [Span; 3] = [Span::Operation, Span::Shard, Span::Gather];

    /// As reports and metrics have it.
    pub fn name(self) -> &'static str {
        match self {
            Span::Operation => "operation",
            Span::Shard => "shard",
            Span::Gather => "gather",
        }
    }
}

/// Durations, as a histogram whose memory does not grow with their number: some 100 KiB if they reach from nanoseconds to
/// minutes.
#[derive(Clone, Debug)]
pub struct Durations {
    counts: Histogram<u32>,
    /// The histogram keeps none of these exactly.
    sum: Duration,
    most: Duration,
}

impl Default for Durations {
    fn default() -> Self {
        let counts = Histogram::new(DIGITS).expect("up to 5 digits can be told apart");
        Self {
            counts,
            sum: Duration::ZERO,
            most: Duration::ZERO,
        }
    }
}

impl Durations {
    fn add(&mut self, duration: Duration) {
        // Up to what an i64 holds, 292 years: indices are computed with signs.
        let ns = i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX);
        self.counts
            .record(ns as u64)
            .expect("it grows to what is recorded");
        self.sum = self.sum.saturating_add(duration);
        self.most = self.most.max(duration);
    }

    fn merge(&mut self, other: &Durations) {
        self.counts
            .add(&other.counts)
            .expect("it grows to what is added");
        self.sum = self.sum.saturating_add(other.sum);
        self.most = self.most.max(other.most);
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.counts.len()
    }

    /// How many of them are at most `bound`, within 0.1 % of it.
    pub fn count_to(&self, bound: Duration) -> u64 {
        match self.most <= bound {
            true => self.count(),
            false => {
                let ns = u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX);
                self.counts.count_between(0, ns)
            }
        }
    }

    /// All of them together.
    pub fn sum(&self) -> Duration {
        self.sum
    }

    /// The longest; zero of none.
    pub fn max(&self) -> Duration {
        self.most
    }

    /// What a share of them does not exceed, 0 to 1; zero of none.
    pub fn quantile(&self, share: f64) -> Duration {
        Duration::from_nanos(self.counts.value_at_quantile(share)).min(self.most)
    }
}

/// A rank's operations, folded: their durations by what closed them, and what they missed. Its memory does not grow with
/// their number.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// By [`Span`] and [`ClosedBy`].
    durations: [[Durations; ClosedBy::ALL.len()]; Span::ALL.len()],
    lost: Losses,
    owed: u64,
    /// Ranks that were ever suspected, and whether they are.
    suspected: BTreeMap<u16, bool>,
}

impl History {
    /// An operation ended.
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

    /// Other operations join these: those of another rank.
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

    /// What `span` took in the operations in which `by` closed it: the operation and its gathering by what ended the
    /// operation, the shard by what closed the worst of its slots.
    pub fn of(&self, span: Span, by: ClosedBy) -> &Durations {
        &self.durations[span as usize][by as usize]
    }

    /// What `span` took, whatever closed it.
    pub fn all(&self, span: Span) -> Durations {
        let mut all = Durations::default();
        for durations in &self.durations[span as usize] {
            all.merge(durations);
        }
        all
    }

    /// Operations that ended.
    pub fn operations(&self) -> u64 {
        let by_end = self.durations[Span::Operation as usize].iter();
        by_end.map(Durations::count).sum()
    }

    /// What did not come, by cause.
    pub fn lost(&self) -> Losses {
        self.lost
    }

    /// Ranks that were suspected after any operation ([`Outcome::suspected`]), and whether they were after the last one.
    pub fn suspected(&self) -> impl Iterator<Item = (u16, bool)> + '_ {
        self.suspected
            .iter()
            .map(|(rank, suspected)| (*rank, *suspected))
    }

    /// Packets that were to come.
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
