//! Who is not there any more, as the controller and the other members see it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::job::Rank;

/// How long a member may be out of touch before it is suspected: who has lost its connection comes back within a second.
const GRACE: Duration = Duration::from_secs(3);

/// What is seen of a job's members.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Who has joined.
    pub joined: BTreeSet<Rank>,
    /// Who is in touch.
    pub attending: BTreeSet<Rank>,
}

/// What has turned out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turned {
    /// A member is suspected from now on.
    Suspected(Rank),
    /// A member is not suspected any more.
    Cleared(Rank),
}

/// Which members of a job are suspected, and since when.
#[derive(Clone, Debug, Default)]
pub struct Suspicion {
    /// Out of touch since.
    away: BTreeMap<Rank, Instant>,
    /// Of whom each member hears nothing, in rank order.
    reports: BTreeMap<Rank, Vec<Rank>>,
    /// How many others hear nothing of a member, where anybody does.
    unheard: BTreeMap<Rank, usize>,
    since: BTreeMap<Rank, Instant>,
    /// Who may lose its place for it: see [`Suspicion::overdue`].
    believed: BTreeSet<Rank>,
}

impl Suspicion {
    /// A member hears nothing of these others; of all others it does.
    pub fn report(&mut self, by: Rank, of: impl IntoIterator<Item = Rank>) {
        let mut of: Vec<Rank> = of.into_iter().filter(|rank| *rank != by).collect();
        of.sort_unstable();
        of.dedup();
        for rank in &of {
            *self.unheard.entry(*rank).or_default() += 1;
        }
        if let Some(before) = self.reports.insert(by, of) {
            self.take_back(&before);
        }
    }

    /// What one of the members said of these does not count any more.
    fn take_back(&mut self, of: &[Rank]) {
        for rank in of {
            if let Some(by) = self.unheard.get_mut(rank) {
                *by -= 1;
                if *by == 0 {
                    self.unheard.remove(rank);
                }
            }
        }
    }

    /// Who is suspected, and since when.
    pub fn since(&self) -> &BTreeMap<Rank, Instant> {
        &self.since
    }

    /// Looks again. A member is suspected that has been out of touch for [`GRACE`], unless nobody is in touch, as in jobs whose programs do not
    /// attend; or of which more than half of the others hear nothing that are in touch themselves.
    pub fn look(&mut self, seen: &Seen, now: Instant) -> Vec<Turned> {
        let here = &seen.attending;
        // Who has left is not away.
        let is_expected = |rank: &Rank| seen.joined.contains(rank) && !here.contains(rank);
        self.away.retain(|rank, _| is_expected(rank));
        if here.is_empty() {
            self.away.clear();
        }
        for rank in seen.joined.difference(here).filter(|_| !here.is_empty()) {
            self.away.entry(*rank).or_insert(now);
        }
        let mut void = Vec::new();
        self.reports.retain(|by, of| {
            let counts = here.contains(by);
            if !counts {
                void.append(of);
            }
            counts
        });
        self.take_back(&void);
        let is_away =
            |rank: &Rank| (self.away.get(rank)).is_some_and(|since| now >= *since + GRACE);
        let is_unheard = |rank: &Rank| {
            let others = here.len() - usize::from(here.contains(rank));
            let by = self.unheard.get(rank);
            by.is_some_and(|by| 2 * by > others)
        };
        let suspected: BTreeSet<Rank> = (seen.joined.iter())
            .filter(|rank| is_away(rank) || is_unheard(rank))
            .copied()
            .collect();
        // Where the controller itself may be cut off from most, only the others' word counts.
        let in_touch = seen.joined.intersection(here).count();
        let most_are_here = 2 * in_touch > seen.joined.len();
        self.believed = (suspected.iter())
            .filter(|rank| most_are_here || is_unheard(rank))
            .copied()
            .collect();
        let before: BTreeSet<Rank> = self.since.keys().copied().collect();
        self.since.retain(|rank, _| suspected.contains(rank));
        for rank in &suspected {
            self.since.entry(*rank).or_insert(now);
        }
        let new = suspected
            .difference(&before)
            .copied()
            .map(Turned::Suspected);
        let cleared = before.difference(&suspected).copied().map(Turned::Cleared);
        new.chain(cleared).collect()
    }

    /// When to look again although nothing happens, where suspects are evicted after `bound`.
    pub fn due(&self, bound: Option<Duration>, now: Instant) -> Option<Instant> {
        let turns = (self.away.iter())
            .filter(|(rank, _)| !self.since.contains_key(rank))
            .map(|(_, since)| *since + GRACE);
        let ends = (bound.into_iter())
            .flat_map(|bound| self.since.values().map(move |since| *since + bound));
        turns.chain(ends.filter(|end| *end > now)).min()
    }

    /// Who has been suspected for as long as `bound`, and is really gone as far as anybody can tell: more than half of those that have joined
    /// are in touch, or more than half of the others that are in touch hear nothing of it.
    pub fn overdue(&self, bound: Duration, now: Instant) -> Vec<Rank> {
        let due = self.suspected_for(bound, now);
        due.filter(|rank| self.believed.contains(rank)).collect()
    }

    /// Who has been suspected for as long, and may be well all the same.
    pub fn unsure(&self, bound: Duration, now: Instant) -> Vec<Rank> {
        let due = self.suspected_for(bound, now);
        due.filter(|rank| !self.believed.contains(rank)).collect()
    }

    fn suspected_for(&self, bound: Duration, now: Instant) -> impl Iterator<Item = Rank> + '_ {
        let is_due = move |(_, since): &(&Rank, &Instant)| now >= **since + bound;
        self.since.iter().filter(is_due).map(|(rank, _)| *rank)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(ultima_testing::cases(64, 2000)))]

        /// Those are suspected at once whom more than half of the others say to be gone, by what each who is there has said last.
        #[test]
        fn the_last_word_of_each_who_is_there_counts(
            words in prop::collection::vec(
                (0u16..6, prop::collection::vec(0u16..6, 0..8), prop::collection::btree_set(0u16..6, 1..6)),
                1..30,
            ),
        ) {
            let (mut suspicion, now) = (Suspicion::default(), Instant::now());
            let mut said: BTreeMap<u16, Vec<u16>> = BTreeMap::new();
            for (by, of, here) in words {
                suspicion.report(Rank(by), of.iter().copied().map(Rank));
                said.insert(by, of);
                said.retain(|by, _| here.contains(by));
                let here: Vec<u16> = here.into_iter().collect();
                suspicion.look(&seen(6, &here), now);
                for rank in 0..6 {
                    let others = here.iter().filter(|it| **it != rank);
                    let by = said.iter().filter(|(by, of)| **by != rank && of.contains(&rank));
                    let is_gone = 2 * by.count() > others.count();
                    // Nobody has been away for long.
                    prop_assert_eq!(suspicion.since().contains_key(&Rank(rank)), is_gone);
                }
            }
        }
    }

    fn seen(joined: u16, attending: &[u16]) -> Seen {
        Seen {
            joined: (0..joined).map(Rank).collect(),
            attending: attending.iter().copied().map(Rank).collect(),
        }
    }

    #[test]
    fn who_is_out_of_touch_is_suspected_after_the_grace_and_cleared_when_back() {
        let (mut suspicion, start) = (Suspicion::default(), Instant::now());
        assert_eq!(suspicion.look(&seen(3, &[0, 1]), start), []);
        assert_eq!(suspicion.due(None, start), Some(start + GRACE));
        let then = start + GRACE;
        assert_eq!(
            suspicion.look(&seen(3, &[0, 1]), then),
            [Turned::Suspected(Rank(2))]
        );
        let bound = Duration::from_secs(5);
        assert_eq!(suspicion.due(Some(bound), then), Some(then + bound));
        assert_eq!(suspicion.overdue(bound, then), []);
        assert_eq!(suspicion.overdue(bound, then + bound), [Rank(2)]);
        assert_eq!(
            suspicion.look(&seen(3, &[0, 1, 2]), then),
            [Turned::Cleared(Rank(2))]
        );
        assert_eq!(suspicion.due(Some(bound), then), None);
        // A job whose programs never attend.
        assert_eq!(suspicion.look(&seen(3, &[]), then), []);
        assert_eq!(suspicion.look(&seen(3, &[]), then + GRACE), []);
        // Who has not joined, or has left, is not expected, also where it was away before.
        suspicion.look(&seen(3, &[0, 1]), then);
        let two = seen(2, &[0, 1]);
        assert_eq!(suspicion.look(&two, then + GRACE), []);
        assert_eq!(suspicion.due(None, then + GRACE), None);
    }

    #[test]
    fn a_controller_that_is_cut_off_from_most_believes_only_the_others() {
        let (mut suspicion, start) = (Suspicion::default(), Instant::now());
        let (few, bound) = (seen(4, &[0, 1]), Duration::from_secs(5));
        suspicion.look(&few, start);
        suspicion.look(&few, start + GRACE);
        let end = start + GRACE + bound;
        suspicion.look(&few, end);
        assert_eq!(suspicion.overdue(bound, end), []);
        assert_eq!(suspicion.unsure(bound, end), [Rank(2), Rank(3)]);
        assert_eq!(suspicion.due(Some(bound), end), None, "only news helps");
        suspicion.report(Rank(0), [Rank(3)]);
        suspicion.report(Rank(1), [Rank(3)]);
        suspicion.look(&few, end);
        assert_eq!(suspicion.overdue(bound, end), [Rank(3)]);
        // One more is back, and the other is gone without anybody's word.
        suspicion.report(Rank(0), []);
        suspicion.report(Rank(1), []);
        let most = seen(4, &[0, 1, 3]);
        suspicion.look(&most, end);
        assert_eq!(suspicion.overdue(bound, end), [Rank(2)]);
    }

    #[test]
    fn more_than_half_of_the_others_are_believed() {
        let (mut suspicion, now) = (Suspicion::default(), Instant::now());
        let all = seen(4, &[0, 1, 2, 3]);
        suspicion.report(Rank(3), [0, 1, 2].map(Rank));
        suspicion.report(Rank(0), [Rank(3)]);
        assert_eq!(suspicion.look(&all, now), [], "one of three each");
        suspicion.report(Rank(1), [Rank(3)]);
        assert_eq!(suspicion.look(&all, now), [Turned::Suspected(Rank(3))]);
        suspicion.report(Rank(1), []);
        assert_eq!(suspicion.look(&all, now), [Turned::Cleared(Rank(3))]);
        // What one said who is not in touch any more does not count.
        suspicion.report(Rank(1), [Rank(3)]);
        assert_eq!(suspicion.look(&seen(4, &[0, 2, 3]), now), [], "one of two");
    }
}
