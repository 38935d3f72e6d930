//! Incast control: how many ranks send to one at a time.
//!
//! A receiver announces in every packet of a bounded operation how many senders it can take, and a sender
//! follows the smallest announced number: it visits the owners in rounds of that many ([`crate::rotation`]),
//! so if all ranks are in the same round, no owner has more senders. This is OptiReduce's dynamic incast
//! (NSDI 2025); how the number follows from losses is our choice.

use serde::{Deserialize, Serialize};
use ultima_wire::INCAST_MAX;

use crate::cause::{Cause, Causes};
use crate::loss_detection::LossDetection;

/// The number of senders at a time that a rank announces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum IncastPolicy {
    /// All.
    #[default]
    All,
    /// A fixed number, from 1 to [`IncastPolicy::MOST`].
    Fixed(u8),
    /// All at first. Halved after an operation that lost contributions to this rank on the way; one more after any
    /// other. A contribution that its sender never sent is no loss on the way.
    Dynamic,
}

impl IncastPolicy {
    /// The largest number that packets can carry. Larger ones are announced as "all".
    pub const MOST: u8 = INCAST_MAX;
}

/// The value for "all" in packets.
const ALL: u8 = 0;

/// Number of contributions that were lost on the way. A missing contribution that is merely overdue may be a straggler's.
/// But without `in-order` detection every loss is overdue, so overdue contributions count then.
pub(crate) fn lost_on_the_way(missing: &Causes, loss_detection: LossDetection) -> u64 {
    let known = [Cause::Trimmed, Cause::Late, Cause::Overtaken];
    let known: u64 = known.map(|cause| missing.of(cause)).iter().sum();
    match loss_detection.order() {
        true => known,
        false => known + missing.of(Cause::Overdue),
    }
}

/// This rank's number, and the others'.
pub(crate) struct Incast {
    policy: IncastPolicy,
    /// Other ranks.
    others: u16,
    own: u8,
    /// By rank, as in packets. Empty while all have announced "all".
    announced: Vec<u8>,
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
            announced: Vec::new(),
        }
    }

    /// The number in this rank's packets.
    pub(crate) fn own(&self) -> u8 {
        self.own
    }

    /// Notes the number in a packet of `rank`.
    pub(crate) fn announced(&mut self, rank: u16, senders: u8) {
        if self.announced.is_empty() && senders != ALL {
            self.announced.resize(usize::from(self.others) + 1, ALL);
        }
        if let Some(announced) = self.announced.get_mut(usize::from(rank)) {
            *announced = senders;
        }
    }

    /// Number of owners to send to at a time: the smallest number of the ranks that `count`.
    pub(crate) fn limit(&self, count: impl Fn(u16) -> bool) -> u16 {
        let announced = (0u16..).zip(&self.announced);
        let limits = announced.filter(|&(rank, &senders)| senders != ALL && count(rank));
        limits
            .map(|(_, &senders)| u16::from(senders))
            .min()
            .map_or(self.others, |limit| limit.min(self.others))
    }

    /// Notes the end of an operation; `lost` if contributions to this rank were lost on the way.
    pub(crate) fn operation_ended(&mut self, lost: bool) {
        if self.policy != IncastPolicy::Dynamic {
            return;
        }
        let most = IncastPolicy::MOST;
        let senders = match self.own {
            ALL => self.others,
            senders => senders.into(),
        };
        let next = match lost {
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
    fn a_loss_halves_and_a_clean_operation_adds_one() {
        let mut incast = Incast::new(IncastPolicy::Dynamic, 64);
        let mut after = |lost| {
            incast.operation_ended(lost);
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
    fn a_straggler_is_no_loss_unless_losses_are_overdue() {
        let lost = |cause, loss_detection| {
            let mut missing = Causes::default();
            missing.count(cause, 3);
            lost_on_the_way(&missing, loss_detection)
        };
        for cause in [Cause::Trimmed, Cause::Late, Cause::Overtaken] {
            assert_eq!(lost(cause, LossDetection::InOrder), 3);
        }
        assert_eq!(lost(Cause::Overdue, LossDetection::InOrder), 0);
        assert_eq!(lost(Cause::Overdue, LossDetection::TimeoutOnly), 3);
        assert_eq!(lost(Cause::Silent, LossDetection::TimeoutOnly), 0);
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
        incast.announced(3, 9);
        incast.announced(4, 2);
        assert_eq!(incast.limit(|_| true), 2);
        assert_eq!(incast.limit(|rank| rank != 4), 9);
        incast.announced(4, 0);
        assert_eq!(incast.limit(|_| true), 9);
        let mut few = Incast::new(IncastPolicy::All, 3);
        few.announced(1, 15);
        assert_eq!(few.limit(|_| true), 2);
    }
}
