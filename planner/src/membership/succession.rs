//! The succession of members from one epoch to the next.

use std::collections::BTreeMap;

use crate::fabric::HostId;
use crate::job::{Rank, by_rank};

/// The surviving, new and left-out members of a change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Succession {
    was: Vec<Option<Rank>>,
    /// The new rank by old rank.
    becomes: BTreeMap<Rank, Rank>,
    left_out: BTreeMap<Rank, String>,
}

impl Succession {
    /// Restores a stored succession: the old rank of each new rank, none for a new member; and the
    /// left-out ranks with their reasons.
    pub fn of(was: Vec<Option<Rank>>, left_out: BTreeMap<Rank, String>) -> Self {
        let becomes = by_rank(&was).filter_map(|(new, was)| Some(((*was)?, new)));
        Succession {
            becomes: becomes.collect(),
            was,
            left_out,
        }
    }

    /// Plans members on the hosts `to`, in rank order. Members of a host that `stay` keep its
    /// positions there, lowest ranks first; the other positions are for new members. `why` is the
    /// reason for a left-out rank.
    pub fn new(
        from: &[HostId],
        stays: impl Fn(Rank) -> bool,
        to: &[HostId],
        why: impl Fn(Rank) -> String,
    ) -> Self {
        let ranks = || by_rank(from);
        let mut staying: BTreeMap<HostId, Vec<Rank>> = BTreeMap::new();
        for (rank, host) in ranks().filter(|(rank, _)| stays(*rank)) {
            staying.entry(*host).or_default().push(rank);
        }
        let mut staying: BTreeMap<HostId, _> = (staying.into_iter())
            .map(|(host, ranks)| (host, ranks.into_iter()))
            .collect();
        let was: Vec<Option<Rank>> = (to.iter())
            .map(|host| staying.get_mut(host)?.next())
            .collect();
        let mut succession = Succession::of(was, BTreeMap::new());
        let left_out = ranks().filter(|(rank, _)| succession.becomes(*rank).is_none());
        succession.left_out = left_out.map(|(rank, _)| (rank, why(rank))).collect();
        succession
    }

    /// The old rank of each new rank; none for a new member.
    pub fn was(&self) -> &[Option<Rank>] {
        &self.was
    }

    /// Left-out ranks of the old epoch, with their reasons, on one line each.
    pub fn left_out(&self) -> &BTreeMap<Rank, String> {
        &self.left_out
    }

    /// Keeps of the old epoch's `free` ranks, which no member has taken, only those as left out
    /// that have no position among the new epoch's hosts `to`. The others lose nothing.
    pub fn keep_free(
        &mut self,
        from: &[HostId],
        to: &[HostId],
        free: impl IntoIterator<Item = Rank>,
    ) {
        let mut open: BTreeMap<HostId, usize> = BTreeMap::new();
        for rank in self.newcomers() {
            *open.entry(to[usize::from(rank.0)]).or_default() += 1;
        }
        for rank in free {
            if let Some(places) = open.get_mut(&from[usize::from(rank.0)])
                && *places > 0
            {
                *places -= 1;
                self.left_out.remove(&rank);
            }
        }
    }

    /// The surviving members as pairs of old and new rank, by new rank.
    pub fn survivors(&self) -> impl Iterator<Item = (Rank, Rank)> + '_ {
        by_rank(&self.was).filter_map(|(new, was)| Some(((*was)?, new)))
    }

    /// The new ranks of new members.
    pub fn newcomers(&self) -> impl Iterator<Item = Rank> + '_ {
        by_rank(&self.was)
            .filter(|(_, was)| was.is_none())
            .map(|(new, _)| new)
    }

    /// The new rank of an old rank; none if it is left out.
    pub fn becomes(&self, old: Rank) -> Option<Rank> {
        self.becomes.get(&old).copied()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::subsequence;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(ultima_testing::cases(64, 2000)))]

        /// Every old rank survives once or is left out, and only new members are new.
        #[test]
        fn every_rank_survives_once_or_is_left_out(
            from in prop::collection::vec((0usize..6).prop_map(HostId), 0..12),
            to in prop::collection::vec((0usize..6).prop_map(HostId), 0..12),
            stay in subsequence((0..12).collect::<Vec<u16>>(), 0..12),
        ) {
            let succession =
                Succession::new(&from, |rank| stay.contains(&rank.0), &to, |rank| rank.to_string());
            prop_assert_eq!(succession.was().len(), to.len());
            for (rank, host) in by_rank(&from) {
                let places = succession.survivors().filter(|(was, _)| *was == rank);
                let places: Vec<Rank> = places.map(|(_, becomes)| becomes).collect();
                match succession.becomes(rank) {
                    Some(becomes) => {
                        prop_assert_eq!(places, [becomes]);
                        prop_assert_eq!(to[usize::from(becomes.0)], *host);
                        prop_assert!(stay.contains(&rank.0));
                        prop_assert!(!succession.left_out().contains_key(&rank));
                    }
                    None => {
                        prop_assert_eq!(places, []);
                        prop_assert_eq!(&succession.left_out()[&rank], &rank.to_string());
                    }
                }
            }
            let new = succession.newcomers().count() + succession.survivors().count();
            prop_assert_eq!(new, to.len());
            let Succession { was, left_out, .. } = succession.clone();
            prop_assert_eq!(Succession::of(was, left_out), succession);
        }
    }

    #[test]
    fn survivors_keep_their_hosts_lowest_rank_first() {
        let [a, b, c] = [0, 1, 2].map(HostId);
        let from = [a, b, a, c];
        let why = |rank: Rank| format!("{rank} goes");
        let of =
            |to: &[HostId], gone: u16| Succession::new(&from, |rank| rank != Rank(gone), to, why);
        let grown = of(&[a, b, a, c, b], 9);
        assert_eq!(
            grown.was,
            [0, 1, 2, 3]
                .map(|rank| Some(Rank(rank)))
                .to_vec()
                .into_iter()
                .chain([None])
                .collect::<Vec<_>>()
        );
        assert!(grown.left_out.is_empty());
        assert_eq!(grown.newcomers().collect::<Vec<_>>(), [Rank(4)]);

        // If one of two members on a host does not stay, it is left out, whatever its rank.
        let shrunk = of(&[c, a], 0);
        assert_eq!(shrunk.was, [Some(Rank(3)), Some(Rank(2))]);
        assert_eq!(
            shrunk.left_out.keys().collect::<Vec<_>>(),
            [&Rank(0), &Rank(1)]
        );
        assert_eq!(shrunk.becomes(Rank(3)), Some(Rank(0)));
        assert_eq!(shrunk.becomes(Rank(1)), None);

        // The first position of the first host and the position of the last host were free.
        let mut moved = Succession::new(&from, |rank| ![0, 3].contains(&rank.0), &[b, a, a], why);
        assert_eq!(moved.was, [Some(Rank(1)), Some(Rank(2)), None]);
        moved.keep_free(&from, &[b, a, a], [Rank(0), Rank(3)]);
        assert_eq!(moved.left_out, [(Rank(3), "3 goes".to_owned())].into());

        // A host with one more position than surviving members gets a new member.
        let refilled = of(&[a, a], 2);
        assert_eq!(refilled.was, [Some(Rank(0)), None]);
    }
}
