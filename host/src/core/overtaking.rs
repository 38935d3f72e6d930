//! Packets of one source that overtake each other, and how long a rank waits for an overtaken one.
//!
//! In a network that keeps the order, a later packet shows a loss at once. Several paths, or packet spraying, make
//! that rule wrong. Like RACK (RFC 8985, section 6.2), a rank then waits for a time after the later packet, because
//! the slower path may be a switch process or a queue that stands still. With [`Config::reorder`](crate::Config::reorder) a
//! rank always waits. Else it waits from the first packet on that arrives after it was given up, about as long as packets were late:
//! most networks that reorder do so by microseconds, and each wait for a lost packet delays an operation.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use ultima_wire::{Header, Kind};

use crate::operation::OperationId;
use crate::time::Time;

use super::operation_of;

/// Operations in each of two periods whose latest overtaken packet counts.
const PERIOD: u32 = 64;
/// The share of t_B that a rank waits for an overtaken packet by [`Config::reorder`](crate::Config::reorder): before losses, and
/// after several. Our choice: bounds include slack for processes that a scheduler stops, and such a process may be a
/// switch on one of the paths.
const WIDE: u32 = 4;
const NARROW: u32 = 16;
/// The share of t_B that it waits at least where it has only seen that packets overtake each other.
const LEAST: u32 = 256;
/// The share of t_B that a rank waits at most if packets arrive so late.
const MOST: u32 = 2;
/// Given up packets that are remembered after their operation, at most.
const REMEMBERED: usize = 64;

/// A rank's measurement of reordering, over its operations.
pub(super) struct Reordering {
    /// True by [`Config::reorder`](crate::Config::reorder).
    is_configured: bool,
    /// The longest time between a packet and an earlier one that arrives after it, in this period and in the one before.
    longest: [Duration; 2],
    /// Operations that ended in this period.
    operations: u32,
    /// The share of t_B that a rank waits if that is configured. Waiting costs time only where packets are lost. So the share falls when an
    /// operation waits for a lost packet, and rises when a packet arrives that was given up, or when no operation of a
    /// period waits for a lost one.
    share: u32,
    /// True if an operation of this period waited for a lost packet.
    lost: bool,
    /// The last operation that gave up packets and awaited no others.
    gave_up: Option<GaveUp>,
}

struct GaveUp {
    id: OperationId,
    ended: Time,
    /// The time that it had waited for the packets, or less.
    waited: Duration,
    missing: Vec<DataPacket>,
}

/// The kind, source and slot of a data packet.
pub(super) type DataPacket = (Kind, u16, u32);

/// The time that an operation waits for overtaken packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Window {
    /// Zero in a network that keeps the order.
    pub(super) now: Duration,
    /// At least, after a packet has arrived that was given up.
    pub(super) wide: Duration,
    /// At most.
    pub(super) most: Duration,
}

impl Window {
    /// Makes the window at least `least`, and twice the `longest` time by which a packet was late.
    fn widen(&mut self, least: Duration, longest: Duration) {
        let late = (2 * longest).min(self.most);
        self.now = self.now.max(least).max(late);
    }
}

impl Reordering {
    pub(super) fn new(is_configured: bool) -> Self {
        Self {
            is_configured,
            longest: [Duration::ZERO; 2],
            operations: 0,
            share: WIDE,
            lost: false,
            gave_up: None,
        }
    }

    /// The window of an operation with this bound.
    pub(super) fn window(&self, t_b: Duration) -> Window {
        let longest = self.longest[0].max(self.longest[1]);
        let wide = t_b / if self.is_configured { WIDE } else { LEAST };
        let mut window = Window {
            now: Duration::ZERO,
            wide,
            most: t_b / MOST,
        };
        if self.is_configured {
            window.widen(t_b / self.share, longest);
        } else if !longest.is_zero() {
            window.widen(wide, longest);
        }
        window
    }

    /// Notes the end of an operation with these phases, which may have `lost` overtaken packets.
    pub(super) fn operation_ended(&mut self, phases: [&Order; 2], lost: bool) {
        for order in phases {
            self.longest[0] = self.longest[0].max(order.longest);
        }
        if phases.iter().any(|order| order.is_widened) {
            self.share = WIDE;
        } else if lost && phases.iter().any(|order| !order.window.now.is_zero()) {
            self.share = (self.share * 2).min(NARROW);
            self.lost = true;
        }
        self.operations += 1;
        if self.operations == PERIOD {
            self.operations = 0;
            self.longest = [Duration::ZERO, self.longest[0]];
            if !std::mem::take(&mut self.lost) {
                self.share = WIDE;
            }
        }
    }

    /// Notes that an operation has ended without the `missing` packets, because later ones arrived and it had `waited`.
    pub(super) fn gave_up(
        &mut self,
        id: OperationId,
        ended: Time,
        waited: Duration,
        missing: impl Iterator<Item = DataPacket>,
    ) {
        self.gave_up = Some(GaveUp {
            id,
            ended,
            waited,
            missing: missing.take(REMEMBERED).collect(),
        });
    }

    /// Notes a packet that arrives after its operation. A repeated packet has no effect.
    pub(super) fn came_after_the_end(&mut self, now: Time, header: &Header) {
        let packet = (header.kind, header.source, header.slot);
        if let Some(gave_up) = &self.gave_up
            && gave_up.id == operation_of(header)
            && gave_up.missing.contains(&packet)
        {
            let late = gave_up.waited + now.since(gave_up.ended);
            self.longest[0] = self.longest[0].max(late).max(SHORTEST);
            self.share = WIDE;
            self.gave_up = None;
        }
    }
}

/// The time of a packet that was overtaken by an unknown time.
const SHORTEST: Duration = Duration::from_nanos(1);

/// A rank's missing packets before a position, which count as lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lost {
    pub(super) rank: u16,
    pub(super) before: u32,
}

/// One phase of an operation: what arrived packets show about earlier ones of their source.
#[derive(Default)]
pub(super) struct Order {
    /// Number of later packets that may arrive before an earlier one, by [`Config::reorder`](crate::Config::reorder).
    tolerance: u32,
    /// By rank: packets that it sent after its last one of the phase.
    after: Vec<u16>,
    window: Window,
    /// By rank. Empty until a packet is given up, where no rank waits.
    overtaken: Vec<Overtaken>,
    /// Ranks with an [`Overtaken::waiting`], in the order of the ends of their timers.
    due: VecDeque<(Time, u16)>,
    /// The longest time between a packet and an earlier one that arrived after it.
    longest: Duration,
    /// True if a packet arrived that was given up.
    is_widened: bool,
}

/// A source's packets at positions below `end`: later packets of the source have overtaken them since `since`. Empty if `end` is 0.
#[derive(Clone, Copy, Debug, Default)]
struct Before {
    since: Time,
    end: u32,
}

/// The last gap in a source's packets: those from position `start` on were overtaken at `since`.
#[derive(Clone, Copy, Debug)]
struct Gap {
    since: Time,
    start: u32,
}

/// Overtaken packets of one source, in the order of their positions.
#[derive(Clone, Copy, Debug, Default)]
struct Overtaken {
    /// Given up, unless they have arrived.
    given_up: Before,
    /// Given up when the source's first timer ends.
    waiting: Before,
    /// These wait for the second timer, once the first has ended.
    queued: Before,
    /// Arrival of the packet that shows the end of `queued`.
    queued_at: Time,
    /// In a burst, `since` of `queued` is much earlier.
    gap: Option<Gap>,
}

impl Overtaken {
    /// The end of the positions that were overtaken.
    fn end(&self) -> u32 {
        self.given_up.end.max(self.waiting.end).max(self.queued.end)
    }

    /// The time at which the packet at `position` was overtaken, or earlier.
    fn since(&self, position: u32) -> Option<Time> {
        let gap = self
            .gap
            .filter(|gap| gap.start <= position && position < self.end());
        let of_gap = gap.map(|gap| gap.since);
        of_gap.or_else(|| {
            let parts = [self.given_up, self.waiting, self.queued];
            let part = parts.into_iter().find(|before| position < before.end);
            part.map(|before| before.since)
        })
    }
}

impl Order {
    /// Resets all counters. Allocates only for the largest number of ranks so far.
    pub(super) fn reset(&mut self, ranks: u16, configured: u32) {
        self.tolerance = configured;
        self.after.clear();
        self.after.resize(ranks.into(), 0);
        self.window = Window::default();
        self.overtaken.clear();
        self.due.clear();
        self.longest = Duration::ZERO;
        self.is_widened = false;
    }

    /// Sets the time to wait for overtaken packets.
    pub(super) fn tolerate(&mut self, window: Window) {
        self.window = window;
        if !window.now.is_zero() {
            self.keep();
        }
    }

    fn keep(&mut self) {
        self.overtaken
            .resize(self.after.len(), Overtaken::default());
    }

    pub(super) fn window(&self) -> Duration {
        self.window.now
    }

    /// Counts a packet that `rank` sent after its last one of the phase. Returns true if there are too many to
    /// have overtaken the missing ones.
    pub(super) fn sent_after(&mut self, rank: u16) -> bool {
        let after = &mut self.after[usize::from(rank)];
        *after = after.saturating_add(1);
        u32::from(*after) > self.tolerance
    }

    /// The end of the positions that a packet at `position` shows as sent before.
    pub(super) fn before(&self, position: u32) -> u32 {
        position.saturating_sub(self.tolerance)
    }

    /// Notes the arrival of a packet that `rank` sent after all positions before `end`; `is_missing` says whether one of a range
    /// is missing. Returns true if the missing ones are lost, false if [`Order::take`] will return them.
    pub(super) fn overtakes(
        &mut self,
        now: Time,
        rank: u16,
        end: u32,
        is_missing: impl FnOnce(Range<u32>) -> bool,
    ) -> bool {
        if self.window.now.is_zero() {
            return true;
        }
        let overtaken = &mut self.overtaken[usize::from(rank)];
        let start = overtaken.end();
        let Overtaken {
            waiting,
            queued,
            queued_at,
            gap,
            ..
        } = overtaken;
        let before = Before { since: now, end };
        if end > start {
            if is_missing(start..end) {
                *gap = Some(Gap { since: now, start });
            }
            if waiting.end == 0 {
                *waiting = before;
                self.arm(now, rank);
            } else {
                if queued.end == 0 {
                    *queued = before;
                }
                (queued.end, *queued_at) = (end, now);
            }
        }
        false
    }

    /// Notes that missing packets of `rank` at these positions were given up without a wait.
    pub(super) fn gave_up(&mut self, now: Time, rank: u16, positions: Range<u32>) {
        self.keep();
        let Range { start, end } = positions;
        let overtaken = &mut self.overtaken[usize::from(rank)];
        overtaken.given_up = Before { since: now, end };
        overtaken.gap = Some(Gap { since: now, start });
    }

    /// Makes `rank` due a window after `last`, when the last packet arrived that overtakes its missing ones.
    fn arm(&mut self, last: Time, rank: u16) {
        let due = last + self.window.now;
        let at = self.due.partition_point(|(other, _)| *other <= due);
        self.due.insert(at, (due, rank));
    }

    /// The time at which [`Order::take`] returns a rank.
    pub(super) fn due(&self) -> Option<Time> {
        self.due.front().map(|(due, _)| *due)
    }

    /// The next packets to count as lost. None if there are no more now.
    pub(super) fn take(&mut self, now: Time) -> Option<Lost> {
        self.due().filter(|due| *due <= now)?;
        let (_, rank) = self.due.pop_front()?;
        let overtaken = &mut self.overtaken[usize::from(rank)];
        let Overtaken {
            given_up,
            waiting,
            queued,
            queued_at,
            ..
        } = overtaken;
        *given_up = std::mem::replace(waiting, std::mem::take(queued));
        let (end, armed_at) = (given_up.end, *queued_at);
        if waiting.end > 0 {
            self.arm(armed_at, rank);
        }
        Some(Lost { rank, before: end })
    }

    /// Notes the first arrival of `rank`'s packet at `position`. `given_up` says that it counted as lost.
    pub(super) fn arrived(&mut self, now: Time, rank: u16, position: u32, given_up: bool) {
        let overtaken = self.overtaken.get(usize::from(rank));
        if let Some(since) = overtaken.and_then(|overtaken| overtaken.since(position)) {
            self.longest = self.longest.max(now.since(since));
        }
        if given_up {
            self.is_widened = true;
            self.longest = self.longest.max(SHORTEST);
            let mut window = self.window;
            window.widen(window.wide, self.longest);
            self.tolerate(window);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn at(ms: u64) -> Time {
        Time::ZERO + Duration::from_millis(ms)
    }

    fn lost(rank: u16, before: u32) -> Lost {
        Lost { rank, before }
    }

    fn order(configured: u32, now: Duration) -> Order {
        let mut order = Order::default();
        order.reset(3, configured);
        order.tolerate(Window {
            now,
            wide: 20 * MS,
            most: 30 * MS,
        });
        order
    }

    #[test]
    fn packets_within_the_tolerance_show_no_loss() {
        for (tolerance, expected) in [(0, [true; 3]), (2, [false, false, true])] {
            let mut order = order(tolerance, Duration::ZERO);
            assert_eq!([(); 3].map(|()| order.sent_after(2)), expected);
            assert_eq!(order.before(7), 7 - tolerance);
        }
    }

    #[test]
    fn overtaken_packets_are_lost_after_the_window() {
        let mut order = order(0, 10 * MS);
        for (ms, end) in [(1, 3), (2, 5), (4, 4), (5, 9)] {
            assert!(!order.overtakes(at(ms), 1, end, |_| true));
        }
        assert_eq!((order.due(), order.take(at(10))), (Some(at(11)), None));
        assert_eq!(order.take(at(12)), Some(lost(1, 3)));
        assert_eq!((order.due(), order.take(at(14))), (Some(at(15)), None));
        assert_eq!((order.take(at(15)), order.due()), (Some(lost(1, 9)), None));
        order.arrived(at(23), 1, 9, false);
        assert_eq!(order.longest, Duration::ZERO);
        order.arrived(at(24), 1, 4, true);
        assert_eq!((order.longest, order.window()), (22 * MS, 30 * MS));
    }

    /// A packet is lost early in a burst, and the last two are swapped.
    #[test]
    fn a_swapped_packet_of_a_long_burst_was_overtaken_by_the_one_before() {
        let mut order = order(0, 10 * MS);
        let burst = (0..100).filter(|position| ![3, 98].contains(position));
        for position in burst {
            let is_missing = |mut range: Range<u32>| range.any(|it| [3, 98].contains(&it));
            let ms = position.into();
            order.overtakes(at(ms), 1, position, is_missing);
            while order.take(at(ms)).is_some() {}
        }
        order.arrived(at(101), 1, 98, false);
        assert_eq!(order.longest, 2 * MS);
        order.arrived(at(102), 1, 99, false);
        assert_eq!(order.longest, 2 * MS, "it overtakes, and was not overtaken");
    }

    #[test]
    fn ranks_are_due_a_window_after_their_latest_packet() {
        let mut order = order(0, 10 * MS);
        for (ms, rank, end) in [(1, 0, 3), (3, 0, 4), (9, 1, 3), (8, 2, 3)] {
            assert!(!order.overtakes(at(ms), rank, end, |_| true));
        }
        let taken = [11, 13, 18, 19].map(|ms| {
            let due = order.due();
            (due == Some(at(ms))).then(|| order.take(at(ms))).flatten()
        });
        let expected = [lost(0, 3), lost(0, 4), lost(2, 3), lost(1, 3)];
        assert_eq!(taken, expected.map(Some));
    }

    #[test]
    fn the_first_given_up_packet_that_arrives_widens_the_window() {
        let mut order = order(0, Duration::ZERO);
        assert!(order.overtakes(at(1), 2, 5, |_| true));
        order.arrived(at(2), 2, 3, true);
        assert_eq!((order.longest, order.window()), (SHORTEST, 20 * MS));
        assert!(!order.overtakes(at(3), 2, 6, |_| true));
        assert_eq!(order.due(), Some(at(23)));
    }

    /// Ends an operation that awaited overtaken packets.
    fn end(reordering: &mut Reordering, longest: Duration, lost: bool) {
        let mut order = order(0, 10 * MS);
        order.longest = longest;
        reordering.operation_ended([&order, &Order::default()], lost);
    }

    #[test]
    fn the_window_follows_late_packets_and_losses() {
        let now = |reordering: &Reordering| reordering.window(160 * MS).now.as_millis();
        let mut reordering = Reordering::new(true);
        assert_eq!(now(&reordering), 40);
        end(&mut reordering, 6 * MS, false);
        assert_eq!(now(&reordering), 40);
        let mut lossy = || {
            end(&mut reordering, Duration::ZERO, true);
            now(&reordering)
        };
        assert_eq!([lossy(), lossy(), lossy()], [20, 12, 12]);
        let mut period = |longest| {
            for _ in 0..PERIOD {
                end(&mut reordering, longest, false);
            }
            now(&reordering)
        };
        // The first period, with its losses, ends four operations before the end of these.
        let windows = [period(MS), period(MS), period(Duration::ZERO)];
        assert_eq!(windows, [12, 40, 40], "a period without loss widens it");
    }

    #[test]
    fn where_nothing_is_configured_the_window_follows_late_packets() {
        let mut reordering = Reordering::new(false);
        let t_b = 256 * MS;
        let mut after = |longest, operations| {
            for _ in 0..operations {
                end(&mut reordering, longest, true);
            }
            reordering.window(t_b).now
        };
        assert_eq!(after(Duration::ZERO, 1), Duration::ZERO);
        assert_eq!(after(SHORTEST, 1), MS, "the least");
        assert_eq!(after(6 * MS, 1), 12 * MS);
        assert_eq!(after(MS, 100), 12 * MS);
        assert_eq!(after(MS, 100), 2 * MS);
        assert_eq!(after(100 * MS, 1), 128 * MS, "the most");
        assert_eq!(after(Duration::ZERO, 2 * PERIOD), Duration::ZERO);
    }

    #[test]
    fn a_packet_that_was_given_up_at_once_shows_how_late_it_was() {
        let mut order = order(0, Duration::ZERO);
        order.gave_up(at(3), 1, 2..3);
        order.arrived(at(15), 1, 2, true);
        assert_eq!((order.longest, order.window()), (12 * MS, 24 * MS));
    }

    #[test]
    fn the_window_narrows_only_after_a_wait_for_lost_packets() {
        let now = |reordering: &Reordering| reordering.window(160 * MS).now.as_millis();
        let mut reordering = Reordering::new(true);
        let mut order = order(0, Duration::ZERO);
        reordering.operation_ended([&order, &Order::default()], true);
        assert_eq!(now(&reordering), 40, "it waited for nothing");
        end(&mut reordering, Duration::ZERO, true);
        assert_eq!(now(&reordering), 20);
        order.arrived(at(2), 2, 3, true);
        reordering.operation_ended([&Order::default(), &order], true);
        assert_eq!(now(&reordering), 40, "a given-up packet arrived");
    }

    #[test]
    fn a_given_up_packet_widens_the_window_once_and_others_do_not() {
        let packet = |source| Header {
            slot: 3,
            ..Header::new(Kind::Scatter, 0, 0, source, 0)
        };
        let missing = || [(Kind::Scatter, 2, 3)].into_iter();
        let now = |reordering: &Reordering| reordering.window(160 * MS).now.as_millis();
        let mut reordering = Reordering::new(true);
        reordering.came_after_the_end(at(90), &packet(2));
        for _ in 0..2 {
            end(&mut reordering, Duration::ZERO, true);
        }
        reordering.gave_up(OperationId::default(), at(110), 10 * MS, missing());
        reordering.came_after_the_end(at(110), &packet(1));
        assert_eq!(now(&reordering), 10);
        for ms in [115, 150] {
            reordering.came_after_the_end(at(ms), &packet(2));
            assert_eq!(reordering.longest[0], 15 * MS);
        }
        assert_eq!(now(&reordering), 40);
        for _ in 0..2 {
            end(&mut reordering, Duration::ZERO, true);
        }
        assert_eq!(now(&reordering), 30, "twice the longest");
        end(&mut reordering, 60 * MS, false);
        assert_eq!(now(&reordering), 80, "at most half of t_B");
    }
}
