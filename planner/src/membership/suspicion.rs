//! Suspicion: which members are absent, by the controller's own view and by other members' reports.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::MemberTimers;
use crate::job::Rank;

/// The current sessions of a job's members.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Members that have joined.
    pub joined: BTreeSet<Rank>,
    /// Members with a session.
    pub with_session: BTreeSet<Rank>,
}

/// A change of suspicion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuspicionChange {
    /// The member is suspected from now on.
    Suspected(Rank),
    /// The member is no longer suspected.
    Cleared(Rank),
}

/// The suspected members of a job, and since when.
#[derive(Clone, Debug)]
pub struct Suspicion {
    /// Time without a session before a member is suspected.
    grace: Duration,
    /// Members without a session, and when each is suspected for it.
    away: BTreeMap<Rank, Instant>,
    /// The members that each member receives nothing from, in rank order.
    reports: BTreeMap<Rank, Vec<Rank>>,
    /// For each member, how many others receive nothing from it.
    silent_for: BTreeMap<Rank, usize>,
    since: BTreeMap<Rank, Instant>,
    /// Suspected members that may be evicted: see [`Suspicion::overdue`].
    confirmed: BTreeSet<Rank>,
}

impl Default for Suspicion {
    fn default() -> Self {
        Suspicion::new(MemberTimers::default().suspicion)
    }
}

impl Suspicion {
    /// No suspicion. Members are suspected after this time without a session.
    pub fn new(grace: Duration) -> Self {
        Suspicion {
            grace,
            away: BTreeMap::new(),
            reports: BTreeMap::new(),
            silent_for: BTreeMap::new(),
            since: BTreeMap::new(),
            confirmed: BTreeSet::new(),
        }
    }

    /// The suspicion after a restart or a takeover: of members that have joined, and whether they were suspected.
    pub fn restored(
        timers: MemberTimers,
        joined: impl IntoIterator<Item = (Rank, bool)>,
        now: Instant,
    ) -> Self {
        let mut suspicion = Suspicion::new(timers.suspicion);
        for (rank, suspected) in joined {
            let has_returned = now + timers.takeover;
            let at = match suspected {
                true => {
                    // The time until its eviction begins again.
                    suspicion.since.insert(rank, has_returned);
                    now
                }
                false => has_returned + timers.suspicion,
            };
            suspicion.away.insert(rank, at);
        }
        suspicion
    }

    /// Records that a member receives nothing from these others, and packets from all other members.
    pub fn report(&mut self, by: Rank, of: impl IntoIterator<Item = Rank>) {
        let mut of: Vec<Rank> = of.into_iter().filter(|rank| *rank != by).collect();
        of.sort_unstable();
        of.dedup();
        for rank in &of {
            *self.silent_for.entry(*rank).or_default() += 1;
        }
        if let Some(before) = self.reports.insert(by, of) {
            self.withdraw(&before);
        }
    }

    /// Withdraws a member's report about these others.
    fn withdraw(&mut self, of: &[Rank]) {
        for rank in of {
            if let Some(by) = self.silent_for.get_mut(rank) {
                *by -= 1;
                if *by == 0 {
                    self.silent_for.remove(rank);
                }
            }
        }
    }

    /// The suspected members, and since when.
    pub fn since(&self) -> &BTreeMap<Rank, Instant> {
        &self.since
    }

    /// The members that have no session although they should, and when each is suspected for it.
    pub fn absent(&self) -> &BTreeMap<Rank, Instant> {
        &self.away
    }

    /// Updates the suspicions. A member is suspected if it had no session for its grace, or if more than half of the other
    /// members with a session receive nothing from it.
    pub fn update(&mut self, seen: &Seen, now: Instant) -> Vec<SuspicionChange> {
        let here = &seen.with_session;
        // Members that left are not absent.
        let is_absent = |rank: &Rank| seen.joined.contains(rank) && !here.contains(rank);
        self.away.retain(|rank, _| is_absent(rank));
        for rank in seen.joined.difference(here) {
            self.away.entry(*rank).or_insert(now + self.grace);
        }
        let mut void = Vec::new();
        self.reports.retain(|by, of| {
            let counts = here.contains(by);
            if !counts {
                void.append(of);
            }
            counts
        });
        self.withdraw(&void);
        let is_away = |rank: &Rank| self.away.get(rank).is_some_and(|at| now >= *at);
        let is_silent = |rank: &Rank| {
            let others = here.len() - usize::from(here.contains(rank));
            let by = self.silent_for.get(rank);
            by.is_some_and(|by| 2 * by > others)
        };
        let suspected: BTreeSet<Rank> = (seen.joined.iter())
            .filter(|rank| is_away(rank) || is_silent(rank))
            .copied()
            .collect();
        // The controller may be cut off from most members itself; then only the members' reports
        // count.
        let connected = seen.joined.intersection(here).count();
        let most_are_here = 2 * connected > seen.joined.len();
        self.confirmed = (suspected.iter())
            .filter(|rank| most_are_here || is_silent(rank))
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
            .map(SuspicionChange::Suspected);
        let cleared = before
            .difference(&suspected)
            .copied()
            .map(SuspicionChange::Cleared);
        new.chain(cleared).collect()
    }

    /// When to call [`update`](Self::update) again if nothing happens, if suspects are evicted after
    /// `bound`.
    pub fn due(&self, bound: Option<Duration>, now: Instant) -> Option<Instant> {
        let suspicions = (self.away.iter())
            .filter(|(rank, _)| !self.since.contains_key(rank))
            .map(|(_, at)| *at);
        let ends = (bound.into_iter())
            .flat_map(|bound| self.since.values().map(move |since| *since + bound));
        suspicions.chain(ends.filter(|end| *end > now)).min()
    }

    /// The members that were suspected for `bound` and are confirmed as absent: more
    /// than half of the joined members have a session, or more than half of the other members with
    /// a session receive nothing from them.
    pub fn overdue(&self, bound: Duration, now: Instant) -> Vec<Rank> {
        let due = self.suspected_for(bound, now);
        due.filter(|rank| self.confirmed.contains(rank)).collect()
    }

    /// The members that were suspected for `bound` but may be well.
    pub fn unsure(&self, bound: Duration, now: Instant) -> Vec<Rank> {
        let due = self.suspected_for(bound, now);
        due.filter(|rank| !self.confirmed.contains(rank)).collect()
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

    const GRACE: Duration = Duration::from_secs(3);

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(ultima_testing::cases(64, 2000)))]

        /// Members are suspected at once if more than half of the others report so in their latest
        /// reports.
        #[test]
        fn the_latest_report_of_each_present_member_counts(
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
                suspicion.update(&seen(6, &here), now);
                for rank in 0..6 {
                    let others = here.iter().filter(|it| **it != rank);
                    let by = said.iter().filter(|(by, of)| **by != rank && of.contains(&rank));
                    let is_gone = 2 * by.count() > others.count();
                    // No member was absent for long.
                    prop_assert_eq!(suspicion.since().contains_key(&Rank(rank)), is_gone);
                }
            }
        }
    }

    fn seen(joined: u16, with_session: &[u16]) -> Seen {
        Seen {
            joined: (0..joined).map(Rank).collect(),
            with_session: with_session.iter().copied().map(Rank).collect(),
        }
    }

    #[test]
    fn absent_members_are_suspected_after_the_grace_and_cleared_when_back() {
        let (mut suspicion, start) = (Suspicion::default(), Instant::now());
        assert_eq!(suspicion.update(&seen(3, &[0, 1]), start), []);
        assert_eq!(suspicion.due(None, start), Some(start + GRACE));
        let then = start + GRACE;
        assert_eq!(
            suspicion.update(&seen(3, &[0, 1]), then),
            [SuspicionChange::Suspected(Rank(2))]
        );
        let bound = Duration::from_secs(5);
        assert_eq!(suspicion.due(Some(bound), then), Some(then + bound));
        assert_eq!(suspicion.overdue(bound, then), []);
        assert_eq!(suspicion.overdue(bound, then + bound), [Rank(2)]);
        assert_eq!(
            suspicion.update(&seen(3, &[0, 1, 2]), then),
            [SuspicionChange::Cleared(Rank(2))]
        );
        assert_eq!(suspicion.due(Some(bound), then), None);
        // Members that have not joined, or have left, are not expected, even if they were absent
        // before.
        suspicion.update(&seen(3, &[0, 1]), then);
        let two = seen(2, &[0, 1]);
        assert_eq!(suspicion.update(&two, then + GRACE), []);
        assert_eq!(suspicion.due(None, then + GRACE), None);
    }

    #[test]
    fn absent_members_stay_suspected_when_the_others_end() {
        let (mut suspicion, start) = (Suspicion::default(), Instant::now());
        suspicion.update(&seen(3, &[0, 1, 2]), start);
        suspicion.update(&seen(3, &[0, 1]), start);
        let [one, two, three] = [1, 2, 3].map(|graces| start + graces * GRACE);
        let suspected = |ranks: &[u16]| -> Vec<SuspicionChange> {
            let ranks = ranks.iter().copied().map(Rank);
            ranks.map(SuspicionChange::Suspected).collect()
        };
        assert_eq!(suspicion.update(&seen(3, &[0, 1]), one), suspected(&[2]));
        // The others are killed, too.
        assert_eq!(suspicion.update(&seen(3, &[]), one), []);
        assert_eq!(suspicion.due(None, one), Some(two));
        assert_eq!(suspicion.update(&seen(3, &[]), two), suspected(&[0, 1]));
        let bound = Duration::ZERO;
        assert_eq!(
            suspicion.overdue(bound, three),
            [],
            "no member confirms the suspicions"
        );
        // One has left, and its rank is taken by a program that opens no session.
        suspicion.update(&seen(2, &[]), three);
        assert_eq!(suspicion.update(&seen(3, &[]), three), []);
        assert!(suspicion.since().keys().eq(&[Rank(0), Rank(1)]));
        assert_eq!(
            suspicion.update(&seen(3, &[]), three + GRACE),
            suspected(&[2])
        );
    }

    /// This includes members that were killed before their first session, and after a restart of the controller all members
    /// without a session.
    #[test]
    fn members_that_never_had_a_session_are_suspected_and_not_evicted() {
        let (mut suspicion, start) = (Suspicion::default(), Instant::now());
        let then = start + GRACE;
        assert_eq!(suspicion.update(&seen(2, &[]), start), []);
        assert_eq!(suspicion.due(None, start), Some(then));
        let suspected = [0, 1].map(|rank| SuspicionChange::Suspected(Rank(rank)));
        assert_eq!(suspicion.update(&seen(2, &[]), then), suspected);
        assert_eq!(suspicion.overdue(Duration::ZERO, then), []);
    }

    #[test]
    fn members_stay_suspected_after_a_restart_until_they_have_a_session() {
        let (start, timers) = (Instant::now(), MemberTimers::default());
        let joined = [(0, true), (1, true), (2, false)];
        let joined = joined.map(|(rank, suspected)| (Rank(rank), suspected));
        let mut suspicion = Suspicion::restored(timers, joined, start);
        assert!(suspicion.since().keys().eq(&[Rank(0), Rank(1)]));
        assert_eq!(
            suspicion.update(&seen(3, &[1]), start),
            [SuspicionChange::Cleared(Rank(1))]
        );
        let absent = [(Rank(0), start), (Rank(2), start + timers.takeover + GRACE)];
        assert!(
            suspicion
                .absent()
                .iter()
                .eq(absent.iter().map(|(rank, at)| (rank, at)))
        );
    }

    #[test]
    fn a_controller_cut_off_from_most_uses_only_reports() {
        let (mut suspicion, start) = (Suspicion::default(), Instant::now());
        let (few, bound) = (seen(4, &[0, 1]), Duration::from_secs(5));
        suspicion.update(&few, start);
        suspicion.update(&few, start + GRACE);
        let end = start + GRACE + bound;
        suspicion.update(&few, end);
        assert_eq!(suspicion.overdue(bound, end), []);
        assert_eq!(suspicion.unsure(bound, end), [Rank(2), Rank(3)]);
        assert_eq!(
            suspicion.due(Some(bound), end),
            None,
            "only an update helps"
        );
        suspicion.report(Rank(0), [Rank(3)]);
        suspicion.report(Rank(1), [Rank(3)]);
        suspicion.update(&few, end);
        assert_eq!(suspicion.overdue(bound, end), [Rank(3)]);
        // One more member is back; the other is absent without a report.
        suspicion.report(Rank(0), []);
        suspicion.report(Rank(1), []);
        let most = seen(4, &[0, 1, 3]);
        suspicion.update(&most, end);
        assert_eq!(suspicion.overdue(bound, end), [Rank(2)]);
    }

    #[test]
    fn reports_of_more_than_half_are_used() {
        let (mut suspicion, now) = (Suspicion::default(), Instant::now());
        let all = seen(4, &[0, 1, 2, 3]);
        suspicion.report(Rank(3), [0, 1, 2].map(Rank));
        suspicion.report(Rank(0), [Rank(3)]);
        assert_eq!(suspicion.update(&all, now), [], "one of three each");
        suspicion.report(Rank(1), [Rank(3)]);
        assert_eq!(
            suspicion.update(&all, now),
            [SuspicionChange::Suspected(Rank(3))]
        );
        suspicion.report(Rank(1), []);
        assert_eq!(
            suspicion.update(&all, now),
            [SuspicionChange::Cleared(Rank(3))]
        );
        // The report of a member without a session does not count.
        suspicion.report(Rank(1), [Rank(3)]);
        assert_eq!(
            suspicion.update(&seen(4, &[0, 2, 3]), now),
            [],
            "one of two"
        );
    }
}
