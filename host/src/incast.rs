//! How many ranks send to one at a time.
//!
//! A receiver tells in every packet of a bounded operation how many senders at once it can take, and a sender keeps to the smallest number
//! that it was told: it goes through the owners in rounds of as many ([`crate::rotation`]), so that with all ranks at the
//! same round no more of them send to one owner. As OptiReduce has it (NSDI 2025, dynamic incast); how the number
//! follows from what a receiver saw is ours.

use serde::{Deserialize, Serialize};
use ultima_wire::INCAST_MAX;

/// How many senders at once a rank says that it can take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum IncastPolicy {
    /// As many as there are.
    #[default]
    All,
    /// So many, from 1 to [`IncastPolicy::MOST`].
    Fixed(u8),
    /// All at first; half as many after an operation in which a switch cut contributions to this rank because a queue
    /// was full, one more after one in which it did not.
    Dynamic,
}

impl IncastPolicy {
    /// The largest number that packets can say; more than it is all.
    pub const MOST: u8 = INCAST_MAX;
}

/// What packets say for "all".
const ALL: u8 = 0;

/// What this rank says, and what it was told.
pub(crate) struct Incast {
    policy: IncastPolicy,
    /// Other ranks.
    others: u16,
    own: u8,
    /// By rank, as packets had it; empty while nobody has said anything but "all".
    told: Vec<u8>,
}

impl Incast {
    pub(crate) fn new(policy: IncastPolicy, ranks: u16) -> Self {
        Self {
            policy,
            others: ranks - 1,
            own: match policy {
                IncastPolicy::Fixed(senders) => senders,
                IncastPolicy::All | IncastPolicy::Dynamic => ALL,
            },
            told: Vec::new(),
        }
    }

    /// What this rank's packets say.
    pub(crate) fn own(&self) -> u8 {
        self.own
    }

    /// A packet of `rank` said so.
    pub(crate) fn told(&mut self, rank: u16, senders: u8) {
        if self.told.is_empty() && senders != ALL {
            self.told.resize(usize::from(self.others) + 1, ALL);
        }
        if let Some(told) = self.told.get_mut(usize::from(rank)) {
            *told = senders;
        }
    }

    /// How many owners to send to at a time: the smallest number of those who `count`.
    pub(crate) fn limit(&self, count: impl Fn(u16) -> bool) -> u16 {
        let told = (0u16..).zip(&self.told);
        let limits = told.filter(|&(rank, &senders)| senders != ALL && count(rank));
        limits
            .map(|(_, &senders)| u16::from(senders))
            .min()
            .map_or(self.others, |limit| limit.min(self.others))
    }

    /// An operation ended, in which a full queue cost this rank contributions or did not.
    pub(crate) fn operation_ended(&mut self, trimmed: bool) {
        if self.policy != IncastPolicy::Dynamic {
            return;
        }
        let most = IncastPolicy::MOST;
        let senders = match self.own {
            ALL => self.others,
            senders => senders.into(),
        };
        let next = match trimmed {
            true => (senders / 2).clamp(1, most.into()),
            false => senders.saturating_add(1),
        };
        self.own = match u8::try_from(next) {
            Ok(next) if next <= most && u16::from(next) < self.others => next,
            _ => ALL,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_halves_and_a_clean_operation_adds_one() {
        let mut incast = Incast::new(IncastPolicy::Dynamic, 64);
        let mut after = |trimmed| {
            incast.operation_ended(trimmed);
            incast.own()
        };
        assert_eq!(after(false), ALL);
        assert_eq!([15, 7, 3, 1, 1], [true; 5].map(&mut after));
        assert_eq!([2, 3, 4], [false; 3].map(&mut after));
        for _ in 5..=15 {
            after(false);
        }
        assert_eq!(after(false), ALL);
    }

    #[test]
    fn as_many_as_there_are_is_all() {
        let mut incast = Incast::new(IncastPolicy::Dynamic, 4);
        for wanted in [1, 2, ALL, ALL] {
            incast.operation_ended(wanted == 1);
            assert_eq!(incast.own(), wanted);
        }
        for policy in [IncastPolicy::All, IncastPolicy::Fixed(5)] {
            let mut incast = Incast::new(policy, 4);
            let own = incast.own();
            incast.operation_ended(true);
            assert_eq!(incast.own(), own);
        }
    }

    #[test]
    fn the_smallest_number_wins() {
        let mut incast = Incast::new(IncastPolicy::All, 64);
        assert_eq!(incast.limit(|_| true), 63);
        incast.told(3, 9);
        incast.told(4, 2);
        assert_eq!(incast.limit(|_| true), 2);
        assert_eq!(incast.limit(|rank| rank != 4), 9);
        incast.told(4, 0);
        assert_eq!(incast.limit(|_| true), 9);
        let mut few = Incast::new(IncastPolicy::All, 3);
        few.told(1, 15);
        assert_eq!(few.limit(|_| true), 2);
    }
}
