//! The send queue of one operation: order, notices and turns.

use std::time::Duration;

use ultima_wire::Kind;

use crate::config::{Config, Gather};
use crate::layout::Layout;
use crate::operation::Part;
use crate::rotation::{Flow, Rotation, Tour, Visit};
use crate::stats::Phases;
use crate::time::Time;

use super::Destination;
use super::credit::Credit;
use super::operation::parameters::Start;
use super::reduce::Closed;

/// Number of copies of a notice, against its loss.
const NOTICE_COPIES: u8 = 3;

/// The header fields that the operation decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packet {
    pub(super) kind: Kind,
    pub(super) owner: u16,
    pub(super) slot: u32,
    pub(super) contributions: u16,
    pub(super) last: bool,
    pub(super) to: Destination,
}

/// SCATTER first, then GATHER as slots close. After each phase follows a notice (FEEDBACK) that its last
/// packet is sent.
///
/// The order is part of the protocol: a GATHER or a notice shows the receiver that missing SCATTER packets of the
/// same sender are lost. The first notice prevents owners from waiting for each other: if every slot lacks a
/// lost contribution, no GATHER shows the loss. A GATHER replaces its repetitions.
pub(super) struct Outbox {
    rank: u16,
    ranks: u16,
    gather_to: Gather,
    notice_spacing: Duration,
    /// Delay of a notice after the last packet. Where packets overtake each other, receivers wait for them anyway, and
    /// most notices are not needed any more after it.
    notice_delay: Duration,
    notice_copies: u8,
    rotation: Rotation,
    tour: Tour,
    /// SCATTER packets that were not sent.
    scatter: u64,
    /// Closed slots in the order in which they are sent.
    closed: Vec<Closed>,
    /// With multicast: number of closed slots that were sent.
    gather_sent: u32,
    /// With unicast: the order in which ranks get closed slots.
    gather_tour: Tour,
    /// With unicast: ranks that have a GATHER.
    gather_began: u16,
    /// No GATHER is sent earlier than this.
    gather_from: Time,
    /// The delay of the first GATHER after its slot closes.
    turn_delay: Option<TurnDelay>,
    /// GATHER packets that were not sent, of slots that have closed or not.
    gather_left: u64,
    own_slots: u32,
    /// The reason that waiting data cannot be sent, from the last call of [`Outbox::next`].
    held: Option<Held>,
    /// The longest time for which one rank without credit delays the others, by phase.
    stall_after: [Duration; 2],
    notice: Option<Notice>,
    counters: Phases,
}

/// The reason that waiting data cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    /// A receiver has no room, for now.
    Blocked,
    /// All receivers that lack data are stalled.
    Stalled,
}

/// An owner's turn, until its first slot closes.
struct TurnDelay {
    turn: Duration,
    ready_by: Time,
}

struct Notice {
    /// True if the last GATHER is sent, false if only the last SCATTER.
    gather: bool,
    /// True if it reports contributions that will not arrive. Others may wait for that, so it precedes data.
    urgent: bool,
    copies: u8,
    due: Time,
    turn: Turn,
}

/// Destinations of a packet that every other rank gets: the group at once, or one rank after the other,
/// starting after the sender.
#[derive(Clone, Copy, Default)]
pub(super) struct Turn {
    passed: u16,
}

/// The next destination of a [`Turn`].
pub(super) struct Next {
    pub(super) to: Destination,
    /// True if every other rank has had the packet then.
    pub(super) is_last: bool,
}

impl Turn {
    /// The next destination.
    pub(super) fn next(&mut self, gather: Gather, rank: u16, ranks: u16) -> Next {
        if gather == Gather::Multicast {
            return Next {
                to: Destination::Group,
                is_last: true,
            };
        }
        self.passed += 1;
        let receiver = (u32::from(rank) + u32::from(self.passed)) % u32::from(ranks);
        let is_last = self.passed == ranks - 1;
        if is_last {
            self.passed = 0;
        }
        Next {
            to: Destination::Rank(receiver as u16),
            is_last,
        }
    }
}

impl Outbox {
    /// Creates the queue of an operation, or of one of its parts.
    pub(super) fn new(config: &Config, layout: &Layout, start: &Start) -> Self {
        let Config { rank, ranks, .. } = *config;
        let Start { now, bounds, .. } = *start;
        let part = start.piece.part;
        let own_slots = match part {
            Part::Scatter => 0,
            Part::Whole | Part::Gather => layout.slots(rank),
        };
        let scatter = match part {
            Part::Gather => 0,
            Part::Whole | Part::Scatter => (0..ranks)
                .filter(|&owner| owner != rank)
                .map(|owner| u64::from(layout.slots(owner)))
                .sum(),
        };
        let mut counters = Phases::default();
        counters.scatter.slots = scatter;
        counters.gather.slots = match config.gather {
            Gather::Multicast => u64::from(own_slots),
            Gather::Unicast => u64::from(own_slots) * u64::from(ranks - 1),
        };
        let notice_spacing = bounds.notice_spacing();
        let mut outbox = Self {
            rank,
            ranks,
            gather_to: config.gather,
            notice_spacing,
            notice_delay: match config.reorder {
                0 => Duration::ZERO,
                _ => notice_spacing,
            },
            notice_copies: NOTICE_COPIES,
            rotation: Rotation::new(config.seed, start.id, rank),
            tour: Tour::new(ranks, start.incast, config.send_run),
            scatter,
            closed: Vec::with_capacity(own_slots as usize),
            gather_sent: 0,
            gather_tour: match config.gather {
                Gather::Multicast => Tour::default(),
                Gather::Unicast => Tour::new(ranks, ranks - 1, config.send_run),
            },
            gather_began: 0,
            gather_from: now,
            turn_delay: None,
            gather_left: counters.gather.slots,
            own_slots,
            held: None,
            stall_after: [bounds.t_s / 2, (bounds.t_b - bounds.t_s) / 4],
            notice: None,
            counters,
        };
        if scatter == 0 && part != Part::Gather {
            outbox.notify(false, now);
        }
        outbox
    }

    /// Packet counters.
    pub(super) fn counters(&self) -> &Phases {
        &self.counters
    }

    pub(super) fn counters_mut(&mut self) -> &mut Phases {
        &mut self.counters
    }

    /// Adds a closed slot. The shard's last slot may be shorter, so the group gets it first: at the end it would
    /// leave links idle between owners that take turns.
    pub(super) fn push(&mut self, closed: Closed, now: Time) {
        if let Some(delay) = self.turn_delay.take()
            && now <= delay.ready_by
        {
            self.gather_from = now + delay.turn;
        }
        self.held = None;
        if self.gather_to == Gather::Multicast && closed.slot + 1 == self.own_slots {
            self.closed.insert(self.gather_sent as usize, closed);
        } else {
            self.closed.push(closed);
        }
    }

    /// GATHER packets of closed slots that were not sent.
    fn gather_ready(&self) -> u64 {
        let open = u64::from(self.own_slots) - self.closed.len() as u64;
        let receivers = match self.gather_to {
            Gather::Multicast => 1,
            Gather::Unicast => u64::from(self.ranks - 1),
        };
        self.gather_left.saturating_sub(open * receivers)
    }

    /// True if SCATTER or GATHER waits to be sent.
    pub(super) fn has_data(&self) -> bool {
        self.scatter > 0 || self.gather_ready() > 0
    }

    /// Closed slots that were not sent to all ranks.
    pub(super) fn unsent(&self) -> impl Iterator<Item = u32> + '_ {
        let sent = match self.gather_to {
            Gather::Multicast => self.gather_sent,
            Gather::Unicast => self.gather_tour.least(),
        };
        let unsent = self.closed.iter().skip(sent as usize);
        unsent.map(|closed| closed.slot)
    }

    /// True if the last SCATTER is sent.
    pub(super) fn scatter_is_out(&self) -> bool {
        self.scatter == 0
    }

    /// Notes that a receiver may have room again.
    pub(super) fn retry_held(&mut self) {
        self.held = None;
    }

    /// The reason that waiting data cannot be sent.
    pub(super) fn held(&self) -> Option<Held> {
        self.held
    }

    /// Delays the first GATHER by `turn`: from now if a slot is closed, else from when the first slot closes,
    /// which is at the same time at other owners. If that takes more than `at_most`, there is no delay.
    pub(super) fn delay_gather(&mut self, now: Time, turn: Duration, at_most: Duration) {
        if self.gather_ready() == 0 {
            let ready_by = now + at_most;
            self.turn_delay = Some(TurnDelay { turn, ready_by });
        } else {
            self.gather_from = now + turn;
        }
    }

    /// Ends delays because the operation ended: the next step's packets must not overtake waiting ones.
    pub(super) fn end_turn_delay(&mut self) {
        self.turn_delay = None;
        self.gather_from = Time::ZERO;
    }

    /// True if nothing is left to send.
    pub(super) fn is_empty(&self) -> bool {
        !self.has_data() && self.notice.is_none()
    }

    /// How aggregates are sent, if data waits for credit.
    pub(super) fn without_credit(&self) -> Option<Gather> {
        (self.held == Some(Held::Blocked)).then_some(self.gather_to)
    }

    /// The time at which [`Outbox::next`] returns a packet, if nothing else happens. Data without credit is not ready.
    pub(super) fn ready_at(&self, now: Time, earlier: Option<Gather>) -> Option<Time> {
        if earlier == Some(Gather::Multicast) {
            return None;
        }
        let is_held = self.held.is_some();
        if self.scatter > 0 {
            return (!is_held).then_some(now);
        }
        let gather = (self.gather_ready() > 0 && !is_held).then_some(self.gather_from);
        let notice = self.notice.as_ref().filter(|_| earlier.is_none());
        let notice = notice.map(|notice| notice.due);
        gather.into_iter().chain(notice).min()
    }

    /// The next packet to send, counted as sent.
    ///
    /// `earlier` says that data of an earlier step waits for credit, and where it goes. A packet of this step would show its
    /// receiver that the data is lost. So nothing overtakes data for the group. Where each receiver waits for credit alone,
    /// it gets no data of this step either, but it would get notices.
    pub(super) fn next(
        &mut self,
        layout: &Layout,
        now: Time,
        credit: &mut Credit,
        earlier: Option<Gather>,
    ) -> Option<Packet> {
        self.held = None;
        if earlier == Some(Gather::Multicast) {
            return None;
        }
        if self.scatter > 0 {
            let scatter = self.next_scatter(layout, now, credit);
            if scatter.is_some() || self.scatter > 0 {
                return scatter;
            }
        }
        let urgent = self.notice.as_ref().is_some_and(|notice| notice.urgent);
        if urgent
            && earlier.is_none()
            && let Some(notice) = self.next_notice(now)
        {
            return Some(notice);
        }
        if self.gather_ready() > 0
            && self.gather_from <= now
            && let Some(gather) = self.next_gather(now, credit)
        {
            return Some(gather);
        }
        match earlier {
            Some(_) => None,
            None => self.next_notice(now),
        }
    }

    fn next_scatter(&mut self, layout: &Layout, now: Time, credit: &mut Credit) -> Option<Packet> {
        let stall_after = self.stall_after[0];
        let flow = |owner| credit.flow(now, owner, stall_after);
        match self.tour.next(self.rank, |o| layout.slots(o), flow) {
            Visit::Slot { owner, position } => {
                let slots = layout.slots(owner);
                self.counters.scatter.sent += 1;
                self.counters.scatter.copies += 1;
                self.scatter -= 1;
                if self.scatter == 0 {
                    self.notify(false, now);
                }
                Some(Packet {
                    kind: Kind::Scatter,
                    owner,
                    slot: self.rotation.slot(position, slots),
                    contributions: 1,
                    last: is_last(position, slots),
                    to: Destination::Rank(owner),
                })
            }
            Visit::Blocked => {
                self.held = Some(Held::Blocked);
                None
            }
            // No other rank should wait for this rank's aggregates because of a stalled one.
            Visit::Stalled | Visit::Done => {
                self.counters.scatter.never_sent += std::mem::take(&mut self.scatter);
                self.notify(false, now);
                None
            }
        }
    }

    fn next_gather(&mut self, now: Time, credit: &mut Credit) -> Option<Packet> {
        let stall_after = self.stall_after[1];
        let (position, to) = match self.gather_to {
            Gather::Multicast => match credit.group_flow(now, stall_after) {
                Flow::Open => {
                    self.gather_sent += 1;
                    (self.gather_sent - 1, Destination::Group)
                }
                Flow::Blocked | Flow::Stalled => {
                    self.held = Some(Held::Blocked);
                    return None;
                }
            },
            Gather::Unicast => {
                let closed = self.closed.len() as u32;
                let flow = |rank| credit.flow(now, rank, stall_after);
                match self.gather_tour.next(self.rank, |_| closed, flow) {
                    Visit::Slot { owner, position } => (position, Destination::Rank(owner)),
                    Visit::Blocked => {
                        self.held = Some(Held::Blocked);
                        return None;
                    }
                    Visit::Stalled | Visit::Done => {
                        self.held = Some(Held::Stalled);
                        return None;
                    }
                }
            }
        };
        let &Closed {
            slot,
            contributions,
            ..
        } = self.closed.get(position as usize)?;
        self.gather_left -= 1;
        self.counters.gather.sent += 1;
        self.counters.gather.copies += match to {
            Destination::Group => u64::from(self.ranks - 1),
            Destination::Rank(_) => 1,
        };
        self.gather_began += u16::from(position == 0);
        if self.gather_to == Gather::Multicast || self.gather_began == self.ranks - 1 {
            self.notice = None;
        }
        if self.gather_left == 0 {
            self.notify(true, now);
        }
        Some(Packet {
            kind: Kind::Gather,
            owner: self.rank,
            slot,
            contributions,
            last: is_last(position, self.own_slots),
            to,
        })
    }

    fn next_notice(&mut self, now: Time) -> Option<Packet> {
        let notice = self.notice.as_mut().filter(|notice| notice.due <= now)?;
        let gather = notice.gather;
        let Next { to, is_last } = (notice.turn).next(self.gather_to, self.rank, self.ranks);
        if is_last {
            notice.copies -= 1;
            notice.urgent = false;
            notice.due = now + self.notice_spacing;
            if notice.copies == 0 {
                self.notice = None;
            }
        }
        Some(Packet {
            kind: Kind::Feedback,
            owner: self.rank,
            slot: if gather { self.own_slots } else { 0 },
            contributions: 0,
            last: gather,
            to,
        })
    }

    /// Sends a notice of an operation without data, which nothing can overtake.
    pub(super) fn notify_at_once(&mut self, now: Time) {
        self.notify(true, now);
        if let Some(notice) = &mut self.notice {
            notice.due = now;
        }
    }

    fn notify(&mut self, gather: bool, now: Time) {
        self.notice = Some(Notice {
            gather,
            urgent: false,
            copies: self.notice_copies,
            due: now + self.notice_delay,
            turn: Turn::default(),
        });
    }

    /// Drops unsent contributions because t_S passed or the operation ended: they would arrive late
    /// everywhere.
    pub(super) fn stop_scatter(&mut self, now: Time) {
        if self.scatter > 0 {
            self.counters.scatter.never_sent += std::mem::take(&mut self.scatter);
            self.notify(false, now);
            if let Some(notice) = &mut self.notice {
                notice.urgent = true;
            }
        }
    }

    /// Stops repeated notices: packets of a later step say the same.
    pub(super) fn stop_repeating(&mut self) {
        self.notice_copies = 1;
        match &mut self.notice {
            Some(notice) if notice.copies < NOTICE_COPIES => self.notice = None,
            Some(notice) => notice.copies = 1,
            None => {}
        }
    }

    /// Drops everything: t_B passed or the shard lapsed, so no rank waits for its data.
    pub(super) fn abandon(&mut self, now: Time) {
        self.stop_scatter(now);
        self.counters.gather.never_sent += std::mem::take(&mut self.gather_left);
        self.closed.clear();
        self.gather_sent = 0;
        self.notice = None;
        self.held = None;
    }
}

/// True if `position` of `count` is in the last hundredth. Such packets carry the flag LAST, which
/// OptiReduce's early timeout uses.
fn is_last(position: u32, count: u32) -> bool {
    position >= count - count.div_ceil(100)
}
