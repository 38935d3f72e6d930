//! Packets that an exact operation sends.

use ultima_wire::{Kind, RepairRequest, Requested, Ticks};

use crate::core::Destination;
use crate::core::congestion::{CongestionReport, Queues};
use crate::core::credit::Credit;
use crate::core::exact::want::Want;
use crate::core::outbox::Next;
use crate::exact::ExactCounters;
use crate::rotation::{Flow, Visit};
use crate::time::Time;

use super::{ExactOperation, Peer};

/// Minimum number of notices that this rank has the result.
const NOTICE_COPIES: u32 = 3;

/// A packet to send.
pub(in crate::core::exact) struct ExactPacket<'a> {
    pub(in crate::core::exact) to: Destination,
    pub(in crate::core::exact) owner: u16,
    pub(in crate::core::exact) slots: u32,
    pub(in crate::core::exact) body: Body<'a>,
}

pub(in crate::core::exact) enum Body<'a> {
    Values {
        kind: Kind,
        slot: u32,
        contributions: u16,
        last: bool,
        values: &'a [f32],
    },
    Request(RepairRequest<'a>),
    Notice,
    /// A congestion report: the queues that packets to this rank met, and the time of the packet that it
    /// answers.
    Congestion(Queues, Ticks),
}

impl ExactPacket<'_> {
    pub(in crate::core::exact) fn kind(&self) -> Kind {
        match self.body {
            Body::Values { kind, .. } => kind,
            Body::Request(_) => Kind::Control,
            Body::Notice | Body::Congestion(..) => Kind::Feedback,
        }
    }
}

/// A contribution to send.
struct Contribution {
    owner: u16,
    slot: u32,
    /// True if it is the last one to its owner.
    last: bool,
}

/// Slots that a rank has to deliver and that are due to be requested, from `first` on.
struct Missing {
    of: Requested,
    rank: u16,
    first: u32,
}

impl ExactOperation {
    fn has_data(&self) -> bool {
        let asked =
            |peer: &Peer| peer.asked_contributions.is_asked() || peer.asked_aggregates.is_asked();
        self.scatter > 0 || !self.closed.is_empty() || self.peers.iter().any(asked)
    }

    /// The time of the next packet to send, if nothing else happens.
    pub(in crate::core::exact) fn ready_at(&self) -> Option<Time> {
        if self.has_data() && !self.held {
            return Some(Time::ZERO);
        }
        let wants = self
            .peers
            .iter()
            .flat_map(|peer| [&peer.contributions, &peer.aggregates]);
        let requests = wants.filter_map(Want::due).filter(|_| !self.ended);
        requests
            .chain(self.notice.as_ref().map(|notice| notice.due))
            .min()
    }

    /// The next packet, counted as sent. Order: first transmissions, repeats, requests, the notice.
    pub(in crate::core::exact) fn transmit(
        &mut self,
        now: Time,
        room: usize,
        past: impl Fn(u16) -> bool,
        counters: &mut ExactCounters,
        credit: &mut Credit,
    ) -> Option<ExactPacket<'_>> {
        self.held = false;
        if self.scatter > 0 {
            if let Some(contribution) = self.next_scatter(now, credit) {
                return Some(self.scatter_packet(contribution));
            }
        } else if let Some(slot) = self.next_closed() {
            if self.has_credit(now, credit) {
                return Some(self.next_gather(slot));
            }
            self.held = true;
        }
        for to in 0..self.ranks {
            let peer = &mut self.peers[usize::from(to)];
            let asked = peer.asked_contributions.is_asked() || peer.asked_aggregates.is_asked();
            if asked && credit.flow(now, to, self.limit) != Flow::Open {
                self.held = true;
                continue;
            }
            if let Some(slot) = peer.asked_contributions.next() {
                counters.contributions_resent += 1;
                self.phases.scatter.slots += 1;
                return Some(self.scatter_packet(Contribution {
                    owner: to,
                    slot,
                    last: false,
                }));
            }
            if let Some(slot) = peer.asked_aggregates.next() {
                counters.repairs_sent += 1;
                return Some(self.aggregate(Kind::Repair, Destination::Rank(to), slot, false));
            }
        }
        if !self.ended
            && let Some(Missing {
                of,
                rank: to,
                first,
            }) = self.next_request(now, room)
        {
            counters.requests_sent += 1;
            self.requests += 1;
            let owner = match of {
                Requested::Aggregates => to,
                Requested::Contributions => self.rank,
            };
            return Some(ExactPacket {
                to: Destination::Rank(to),
                owner: self.rank,
                slots: self.layout.slots(owner),
                body: Body::Request(RepairRequest {
                    of,
                    first,
                    wanted: &self.wanted,
                }),
            });
        }
        self.next_notice(now, past)
    }

    /// The next contribution to send.
    fn next_scatter(&mut self, now: Time, credit: &mut Credit) -> Option<Contribution> {
        let (rank, exact, layout) = (self.rank, self.exact, self.layout);
        let slots = |owner| match exact.contributes(rank, owner) {
            true => layout.slots(owner),
            false => 0,
        };
        let flow = |owner| credit.flow(now, owner, self.limit);
        match self.tour.next(rank, slots, flow) {
            Visit::Slot { owner, position } => {
                self.scatter -= 1;
                let slots = slots(owner);
                Some(Contribution {
                    owner,
                    slot: self.rotation.slot(position, slots),
                    last: position + 1 == slots,
                })
            }
            Visit::Blocked | Visit::Stalled | Visit::Done => {
                self.held = true;
                None
            }
        }
    }

    fn scatter_packet(&mut self, contribution: Contribution) -> ExactPacket<'_> {
        let Contribution { owner, slot, last } = contribution;
        self.phases.scatter.sent += 1;
        self.phases.scatter.copies += 1;
        ExactPacket {
            to: Destination::Rank(owner),
            owner,
            slots: self.layout.slots(owner),
            body: Body::Values {
                kind: Kind::Scatter,
                slot,
                contributions: 1,
                last,
                values: &self.own[self.layout.slot(owner, slot)],
            },
        }
    }

    /// The closed slot to send next, after turns of ranks that have left.
    fn next_closed(&mut self) -> Option<u32> {
        loop {
            let slot = *self.closed.front()?;
            let mut turn = self.turn;
            match turn.next(self.gather, self.rank, self.ranks) {
                Next {
                    to: Destination::Rank(to),
                    is_last,
                } if self.peers[usize::from(to)].left => {
                    self.turn = turn;
                    if is_last {
                        self.closed.pop_front();
                    }
                }
                _ => return Some(slot),
            }
        }
    }

    /// True if the next aggregate may be sent.
    fn has_credit(&self, now: Time, credit: &mut Credit) -> bool {
        let next = self.turn.clone().next(self.gather, self.rank, self.ranks);
        let flow = match next.to {
            Destination::Rank(rank) => credit.flow(now, rank, self.limit),
            Destination::Group => credit.group_flow(now, self.limit),
        };
        flow == Flow::Open
    }

    fn next_gather(&mut self, slot: u32) -> ExactPacket<'_> {
        let Next { to, is_last } = self.turn.next(self.gather, self.rank, self.ranks);
        self.gather_left -= 1;
        self.phases.gather.sent += 1;
        self.phases.gather.copies += match to {
            Destination::Group => u64::from(self.ranks - 1),
            Destination::Rank(_) => 1,
        };
        if is_last {
            self.closed.pop_front();
        }
        let last = self.closed.is_empty() && self.open.iter().all(|missing| *missing == 0);
        self.aggregate(Kind::Gather, to, slot, last)
    }

    fn aggregate(&self, kind: Kind, to: Destination, slot: u32, last: bool) -> ExactPacket<'_> {
        ExactPacket {
            to,
            owner: self.rank,
            slots: self.layout.slots(self.rank),
            body: Body::Values {
                kind,
                slot,
                contributions: self.exact.contributions(self.ranks),
                last,
                values: &self.own[self.layout.slot(self.rank, slot)],
            },
        }
    }

    fn next_request(&mut self, now: Time, room: usize) -> Option<Missing> {
        for (rank, peer) in (0u16..).zip(&mut self.peers) {
            let wants = [
                (Requested::Contributions, &mut peer.contributions),
                (Requested::Aggregates, &mut peer.aggregates),
            ];
            for (of, want) in wants {
                if let Some(first) = want.request(now, room, &mut self.wanted) {
                    return Some(Missing { of, rank, first });
                }
            }
        }
        None
    }

    /// A FEEDBACK that reports congestion.
    pub(in crate::core::exact) fn congestion(
        &self,
        report: &CongestionReport,
    ) -> ExactPacket<'static> {
        ExactPacket {
            to: report.to,
            owner: self.rank,
            slots: self.layout.slots(self.rank),
            body: Body::Congestion(report.queues, report.echoed),
        }
    }

    /// The next notice that this rank has the result. Notices repeat until all others have the result, and a
    /// few times at least.
    fn next_notice(&mut self, now: Time, past: impl Fn(u16) -> bool) -> Option<ExactPacket<'_>> {
        let done = self.all_done(past);
        let notice = self.notice.as_mut().filter(|notice| notice.due <= now)?;
        let Next { to, is_last } = notice.turn.next(self.gather, self.rank, self.ranks);
        if is_last {
            notice.sent += 1;
            notice.due = now + notice.wait;
            notice.wait = (notice.wait * 2).min(self.spacing.longest);
            if notice.sent >= NOTICE_COPIES && done {
                self.notice = None;
            }
        }
        Some(ExactPacket {
            to,
            owner: self.rank,
            slots: self.layout.slots(self.rank),
            body: Body::Notice,
        })
    }
}
