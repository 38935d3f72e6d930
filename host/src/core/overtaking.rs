//! Packets of one source that overtake each other: how far they do, and how many later packets show that an
//! earlier one is lost.
//!
//! A network that keeps the order needs no tolerance: one later packet shows a loss. Packet spraying, or a
//! changed route, makes that rule wrong. Like RACK (RFC 8985, section 6.2), a rank starts without tolerance,
//! and widens it when a packet arrives that it had given up. Unlike RACK, which knows that only from duplicates,
//! a rank sees how many packets overtook each one that arrives, so it measures what it tolerates.

use std::collections::VecDeque;

use ultima_wire::{Header, Kind};

use crate::bits::RareBits;
use crate::operation::OperationId;
use crate::time::Time;

use super::operation_of;

/// Operations in each of two periods whose deepest reordering is tolerated.
const PERIOD: u32 = 64;
/// Tolerance of later packets, at most: where packets overtake more than these, some count as lost. Our choice: at
/// 100 Gb/s these last half a millisecond. A forged packet widens no further.
const MOST: u32 = 4096;
/// Given up packets that are remembered after their operation, at most.
const REMEMBERED: usize = 64;

/// The tolerance of a rank, over its operations.
pub(super) struct Reordering {
    /// By [`Config::reorder`](crate::Config::reorder).
    configured: u32,
    /// The deepest reordering in this period and in the one before.
    deepest: [u32; 2],
    /// Operations that ended in this period.
    operations: u32,
    /// The last operation that gave up packets and awaited no others, with the last of these.
    gave_up: Option<(OperationId, Vec<Packet>)>,
}

/// The kind, source and slot of a data packet.
pub(super) type Packet = (Kind, u16, u32);

impl Reordering {
    pub(super) fn new(configured: u32) -> Self {
        Self {
            configured,
            deepest: [0; 2],
            operations: 0,
            gave_up: None,
        }
    }

    /// How many later packets of its source may arrive before a packet counts as lost.
    pub(super) fn tolerance(&self) -> u32 {
        self.deepest[0].max(self.deepest[1]).max(self.configured)
    }

    /// Notes the end of an operation in which up to `depth` packets overtook one.
    pub(super) fn operation_ended(&mut self, depth: u32) {
        self.deepest[0] = self.deepest[0].max(depth.min(MOST));
        self.operations += 1;
        if self.operations == PERIOD {
            self.operations = 0;
            self.deepest = [0, self.deepest[0]];
        }
    }

    /// Notes that an operation ended because later packets had arrived instead of the `missing` ones.
    pub(super) fn gave_up(&mut self, id: OperationId, missing: impl Iterator<Item = Packet>) {
        self.gave_up = Some((id, missing.take(REMEMBERED).collect()));
    }

    /// Notes a packet that arrived after its operation. If the operation gave it up, the tolerance doubles: how
    /// many packets overtook this one is not known any more. A repeated packet has no effect.
    pub(super) fn came_after_the_end(&mut self, header: &Header) {
        let packet = (header.kind, header.source, header.slot);
        if let Some((id, missing)) = &self.gave_up
            && *id == operation_of(header)
            && missing.contains(&packet)
        {
            self.gave_up = None;
            self.deepest[0] = (self.tolerance() * 2).clamp(1, MOST);
        }
    }
}

/// One phase of an operation: what arrived from each rank, in which order.
#[derive(Default)]
pub(super) struct Order {
    /// Number of later packets that may arrive before an earlier one.
    tolerance: u32,
    /// True if that is more than configured: then senders do not know it.
    is_learned: bool,
    /// By rank: packets that it sent after its last one of the phase.
    after: Vec<u16>,
    /// By rank: the largest position of its packets that arrived. Empty if the order of sending is not known.
    newest: Vec<u32>,
    /// The most packets that overtook one.
    depth: u32,
}

impl Order {
    /// Resets all counters. Allocates only for the largest number of ranks so far.
    pub(super) fn reset(&mut self, ranks: u16, configured: u32, has_positions: bool) {
        self.tolerance = configured;
        self.is_learned = false;
        self.after.clear();
        self.after.resize(ranks.into(), 0);
        self.newest.clear();
        self.newest
            .resize(if has_positions { ranks.into() } else { 0 }, 0);
        self.depth = 0;
    }

    /// Widens the tolerance to what earlier operations, or packets of this one, need.
    pub(super) fn tolerate(&mut self, later: u32) {
        if later > self.tolerance {
            self.tolerance = later;
            self.is_learned = true;
        }
    }

    pub(super) fn tolerance(&self) -> u32 {
        self.tolerance
    }

    /// The most packets that overtook one.
    pub(super) fn depth(&self) -> u32 {
        self.depth
    }

    /// Counts a packet that `rank` sent after its last one of the phase. Returns true if there are too many to
    /// have overtaken the missing ones.
    pub(super) fn sent_after(&mut self, rank: u16) -> bool {
        let after = &mut self.after[usize::from(rank)];
        *after = after.saturating_add(1);
        u32::from(*after) > self.tolerance
    }

    /// True if packets overtake each other that senders expect to stay in order.
    pub(super) fn is_learned(&self) -> bool {
        self.is_learned
    }

    /// Notes the arrival of a packet at `position` of those that `rank` sends; 0 if the order is not known.
    /// `given_up` says that it counted as lost.
    pub(super) fn arrived(&mut self, rank: u16, position: u32, given_up: bool) {
        let rank = usize::from(rank);
        let later = match self.newest.get_mut(rank) {
            Some(newest) => {
                *newest = position.max(*newest);
                *newest - position
            }
            None => 0,
        };
        let overtook = later.saturating_add(self.after[rank].into());
        let overtook = overtook.max(u32::from(given_up));
        if overtook > self.depth {
            self.depth = overtook;
            self.tolerate(overtook.min(MOST));
        }
    }
}

/// A notice that its sender's packets of an operation are all sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Notice {
    pub(super) source: u16,
    /// True if the aggregates are sent, too; false if only the contributions are.
    pub(super) gather: bool,
}

/// Notices of an operation that may have overtaken other packets of their sources. Each takes effect after a
/// delay: RACK's reordering timer (RFC 8985, section 6.3). One copy of a notice is enough.
#[derive(Default)]
pub(super) struct DelayedNotices {
    noted: RareBits,
    /// In the order of their times.
    pending: VecDeque<(Time, Notice)>,
}

impl DelayedNotices {
    pub(super) fn new(ranks: u16) -> Self {
        let mut notices = Self::default();
        notices.noted.reset(2 * usize::from(ranks));
        notices
    }

    /// Adds a notice that takes effect at `due`, unless an earlier copy was added.
    pub(super) fn add(&mut self, due: Time, notice: Notice) {
        let number = 2 * usize::from(notice.source) + usize::from(notice.gather);
        if self.noted.insert(number) {
            self.pending.push_back((due, notice));
        }
    }

    /// When [`DelayedNotices::take`] returns a notice.
    pub(super) fn due(&self) -> Option<Time> {
        self.pending.front().map(|(due, _)| *due)
    }

    /// Removes and returns a notice that takes effect now.
    pub(super) fn take(&mut self, now: Time) -> Option<Notice> {
        self.due().filter(|due| *due <= now)?;
        self.pending.pop_front().map(|(_, notice)| notice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_within_the_tolerance_show_no_loss() {
        let mut order = Order::default();
        for (tolerance, expected) in [(0, [true; 3]), (2, [false, false, true]), (0, [true; 3])] {
            order.reset(3, tolerance, false);
            assert_eq!([(); 3].map(|()| order.sent_after(2)), expected);
        }
    }

    #[test]
    fn a_packet_that_was_overtaken_widens_the_tolerance() {
        let mut order = Order::default();
        order.reset(3, 0, true);
        order.arrived(1, 7, false);
        assert!(order.sent_after(1) && !order.is_learned());
        order.arrived(1, 5, true);
        assert_eq!((order.depth(), order.tolerance()), (3, 3));
        assert!(order.is_learned());
        assert_eq!(
            [(); 4].map(|()| order.sent_after(2)),
            [false, false, false, true]
        );
    }

    #[test]
    fn a_delayed_notice_takes_effect_once() {
        let at = Time::from_nanos;
        let mut notices = DelayedNotices::new(3);
        let [first, second] =
            [(1, false), (1, true)].map(|(source, gather)| Notice { source, gather });
        notices.add(at(5), first);
        notices.add(at(6), first);
        notices.add(at(7), second);
        assert_eq!((notices.due(), notices.take(at(4))), (Some(at(5)), None));
        let taken: Vec<_> = std::iter::from_fn(|| notices.take(at(7))).collect();
        assert_eq!((taken, notices.due()), (vec![first, second], None));
    }

    #[test]
    fn the_tolerance_is_what_two_periods_saw() {
        let mut reordering = Reordering::new(2);
        reordering.operation_ended(40);
        for _ in 1..2 * PERIOD {
            assert_eq!(reordering.tolerance(), 40);
            reordering.operation_ended(5);
        }
        assert_eq!(reordering.tolerance(), 5);
    }

    #[test]
    fn a_given_up_packet_widens_the_tolerance_once_and_others_do_not() {
        let packet = |source| Header {
            slot: 3,
            ..Header::new(Kind::Scatter, 0, 0, source, 0)
        };
        let mut reordering = Reordering::new(1);
        let missing = || [(Kind::Scatter, 2, 3)].into_iter();
        reordering.came_after_the_end(&packet(2));
        reordering.gave_up(OperationId::default(), missing());
        reordering.came_after_the_end(&packet(1));
        assert_eq!(reordering.tolerance(), 1);
        for _ in 0..2 {
            reordering.came_after_the_end(&packet(2));
            assert_eq!(reordering.tolerance(), 2);
        }
        for _ in 0..20 {
            reordering.gave_up(OperationId::default(), missing());
            reordering.came_after_the_end(&packet(2));
        }
        assert_eq!(reordering.tolerance(), MOST);
    }
}
