//! One exact operation at one rank, from its start until no other rank can need it.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use ultima_wire::{Header, Kind, RepairRequest, Requested, Ticks};

use crate::config::{Config, Gather};
use crate::exact::{Exact, ExactCounters, ExactOutcome, Incomplete};
use crate::layout::Layout;
use crate::operation::OperationId;
use crate::rotation::{Flow, Rotation, Tour, Visit};
use crate::stats::{Phases, Rejection};
use crate::time::Time;

use super::super::Destination;
use super::super::congestion::{CongestionReport, Queues};
use super::super::credit::Credit;
use super::super::early::count;
use super::super::outbox::Turn;
use super::super::packet::{self, Payload};
use super::ELEMENT;
use super::repeats::Repeats;
use super::want::{Spacing, Want};

/// Minimum number of notices that this rank has the result.
const NOTICE_COPIES: u32 = 3;

/// After this many of its longest waits without a request, a rank with missing slots counts as gone. Our
/// choice: if half of all packets are lost, that many consecutive requests are lost once in 16 times.
const LONGEST_WAITS: u32 = 4;

/// See the table of states in `docs/transport.md`.
pub(super) struct ExactOperation {
    pub(super) id: OperationId,
    exact: Exact,
    layout: Layout,
    rank: u16,
    ranks: u16,
    gather: Gather,
    spacing: Spacing,
    started: Time,
    limit: Duration,
    /// The limit. After the end: when to remove the operation.
    until: Time,
    ended: bool,
    /// This rank's contribution. In its own shard, aggregates replace it slot by slot as they close.
    own: Vec<f32>,
    /// The others' contributions to this rank's shard, by source.
    received: Vec<f32>,
    /// By slot of this rank's shard: number of missing contributions.
    open: Vec<u16>,
    result: Vec<f32>,
    /// Number of missing slots of the result.
    missing: u32,
    peers: Vec<Peer>,
    rotation: Rotation,
    tour: Tour,
    /// SCATTER packets that were never sent.
    scatter: u64,
    /// Closed slots that were not sent to all ranks.
    closed: VecDeque<u32>,
    turn: Turn,
    /// GATHER packets owed and not sent, closed or not.
    gather_left: u64,
    /// True if data waits for credit, from the last call of [`ExactOperation::transmit`].
    held: bool,
    notice: Option<Notice>,
    requests: u64,
    wanted: Vec<u8>,
    phases: Phases,
}

/// The state of another rank. This rank's own entry is unused.
struct Peer {
    contributions: Want,
    aggregates: Want,
    asked_contributions: Repeats,
    asked_aggregates: Repeats,
    heard: bool,
    /// Time of its last packet; the start before the first.
    last: Time,
    differs: bool,
    /// True if it has the result.
    done: bool,
}

struct Notice {
    sent: u32,
    due: Time,
    wait: Duration,
    turn: Turn,
}

/// A packet to send.
pub(super) struct Outgoing<'a> {
    pub(super) to: Destination,
    pub(super) owner: u16,
    pub(super) slots: u32,
    pub(super) body: Body<'a>,
}

pub(super) enum Body<'a> {
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

impl ExactOperation {
    pub(super) fn new(
        config: &Config,
        (id, exact, incast): (OperationId, Exact, u16),
        mut own: Vec<f32>,
        limit: Duration,
        now: Time,
    ) -> Self {
        let Config {
            rank,
            ranks,
            gather,
            ..
        } = *config;
        if exact == Exact::AllGather {
            let part = own.len();
            own.resize(part * usize::from(ranks), 0.0);
            own.copy_within(..part, part * usize::from(rank));
        }
        let layout = Layout::new(own.len(), ranks, config.slot_bytes / ELEMENT.size());
        let spacing = Spacing::of(config.t_b);
        let own_slots = layout.slots(rank);
        let slots_of = |source, owner| match exact.contributes(source, owner) {
            true => layout.slots(owner),
            false => 0,
        };
        let peers = (0..ranks).map(|peer| {
            let (contributions, aggregates) = match peer == rank {
                true => (0, 0),
                false => (slots_of(peer, rank), layout.slots(peer)),
            };
            Peer {
                contributions: Want::new(contributions, spacing, now),
                aggregates: Want::new(aggregates, spacing, now),
                asked_contributions: Repeats::default(),
                asked_aggregates: Repeats::default(),
                heard: false,
                last: now,
                differs: false,
                done: false,
            }
        });
        let others = || (0..ranks).filter(|&other| other != rank);
        let sources = others()
            .filter(|&source| exact.contributes(source, rank))
            .count();
        let receivers = match gather {
            Gather::Multicast => 1,
            Gather::Unicast => u64::from(ranks - 1),
        };
        let mut phases = Phases::default();
        phases.scatter.slots = others().map(|owner| u64::from(slots_of(rank, owner))).sum();
        phases.gather.slots = u64::from(own_slots) * receivers;
        let mut operation = Self {
            id,
            exact,
            layout,
            rank,
            ranks,
            gather,
            spacing,
            started: now,
            limit,
            until: now + limit,
            ended: false,
            received: vec![0.0; layout.shard(rank).len() * sources],
            open: vec![sources as u16; own_slots as usize],
            result: vec![0.0; own.len()],
            missing: others().map(|owner| layout.slots(owner)).sum::<u32>() + own_slots,
            own,
            peers: peers.collect(),
            rotation: Rotation::new(config.seed, id, rank),
            tour: Tour::new(ranks, incast, config.send_run),
            scatter: phases.scatter.slots,
            closed: VecDeque::new(),
            turn: Turn::default(),
            gather_left: phases.gather.slots,
            held: false,
            notice: None,
            requests: 0,
            wanted: Vec::new(),
            phases,
        };
        if sources == 0 {
            (0..own_slots).for_each(|slot| operation.close(slot));
        }
        operation
    }

    pub(super) fn is_running(&self) -> bool {
        !self.ended
    }

    pub(super) fn phases(&self) -> &Phases {
        &self.phases
    }

    /// Notes that the sender of a rejected packet runs another operation under this id.
    pub(super) fn differs(&mut self, source: u16) {
        let peer = &mut self.peers[usize::from(source)];
        (peer.heard, peer.differs) = (true, true);
    }

    /// Handles a SCATTER, GATHER, REPAIR or FEEDBACK. A rejected packet changes nothing.
    pub(super) fn receive(
        &mut self,
        now: Time,
        header: &Header,
        payload: Payload<'_>,
    ) -> Result<(), Rejection> {
        let from = usize::from(header.source);
        self.peers[from].last = now;
        if header.kind == Kind::Feedback {
            self.peers[from].heard = true;
            self.peers[from].done |= header.host_flags.last;
            return Ok(());
        }
        let place = self.check(header, payload)?;
        let peer = &mut self.peers[from];
        peer.heard = true;
        let want = match header.kind {
            Kind::Scatter => &mut peer.contributions,
            _ => &mut peer.aggregates,
        };
        let counters = &mut self.phases;
        if self.ended {
            count(header.kind, counters, 1, |phase, n| phase.late += n);
            return Ok(());
        }
        if packet::cause_of(header.switch_flags).is_some() {
            want.gone(now);
            count(header.kind, counters, 1, |phase, n| phase.cut += n);
            return Ok(());
        }
        if !want.insert(header.slot, now) {
            count(header.kind, counters, 1, |phase, n| phase.duplicates += n);
            return Ok(());
        }
        if header.host_flags.last {
            want.gone(now);
        }
        count(header.kind, counters, 1, |phase, n| phase.in_time += n);
        match header.kind {
            Kind::Scatter => {
                let at = self.received_at(header.source, place);
                payload.read(ELEMENT, Some(&mut self.received[at]));
                self.open[header.slot as usize] -= 1;
                if self.open[header.slot as usize] == 0 {
                    self.close(header.slot);
                }
            }
            _ => {
                payload.read(ELEMENT, Some(&mut self.result[place]));
                self.missing -= 1;
            }
        }
        Ok(())
    }

    /// Checks a packet with a slot's values, or without its payload. Returns the slot's range.
    fn check(&self, header: &Header, payload: Payload<'_>) -> Result<Range<usize>, Rejection> {
        let (contributes, contributions) = match header.kind {
            Kind::Scatter => (self.exact.contributes(header.source, self.rank), 1),
            _ => (true, self.exact.contributions(self.ranks)),
        };
        if !contributes || header.contributions != contributions {
            return Err(Rejection::Exact);
        }
        let slots = self.layout.slots(header.owner);
        if header.slots != slots || header.slot >= slots {
            return Err(Rejection::Slot);
        }
        if header.dtype != ELEMENT.dtype() {
            return Err(Rejection::Dtype);
        }
        if header.host_flags.hadamard {
            return Err(Rejection::Coding);
        }
        let place = self.layout.slot(header.owner, header.slot);
        let len = match packet::cause_of(header.switch_flags) {
            Some(_) => 0,
            None => place.len() * ELEMENT.size(),
        };
        match payload.len() == len && payload.is_whole() {
            true => Ok(place),
            false => Err(Rejection::Length),
        }
    }

    /// Range of the contribution of `source` to a slot of this rank's shard.
    fn received_at(&self, source: u16, place: Range<usize>) -> Range<usize> {
        let before = (0..source).filter(|&other| other != self.rank);
        let index = match self.exact {
            Exact::Sum | Exact::Mean => before.count(),
            Exact::Broadcast { .. } | Exact::AllGather => 0,
        };
        let shard = self.layout.shard(self.rank);
        let start = index * shard.len() + place.start - shard.start;
        start..start + place.len()
    }

    /// Closes `slot`, whose contributions have all arrived.
    fn close(&mut self, slot: u32) {
        let place = self.layout.slot(self.rank, slot);
        let sources = (0..self.ranks).filter(|&rank| self.exact.contributes(rank, self.rank));
        let mut sum = vec![0.0; place.len()];
        for source in sources {
            let values = match source == self.rank {
                true => &self.own[place.clone()],
                false => &self.received[self.received_at(source, place.clone())],
            };
            match self.exact {
                Exact::Sum | Exact::Mean => {
                    sum.iter_mut()
                        .zip(values)
                        .for_each(|(sum, value)| *sum += value);
                }
                // Bit by bit.
                Exact::Broadcast { .. } | Exact::AllGather => sum.copy_from_slice(values),
            }
        }
        if self.exact == Exact::Mean {
            let ranks = f32::from(self.ranks);
            sum.iter_mut().for_each(|sum| *sum /= ranks);
        }
        self.own[place.clone()].copy_from_slice(&sum);
        self.result[place].copy_from_slice(&sum);
        self.closed.push_back(slot);
        self.held = false;
        self.missing -= 1;
    }

    /// Handles another rank's request. Slots that cannot be sent are skipped; the rank requests them again.
    pub(super) fn request(&mut self, now: Time, header: &Header, request: RepairRequest<'_>) {
        let round = (now, self.spacing.first / 2);
        let wanted = (request.first, request.wanted);
        let to = header.source;
        let asked = match request.of {
            Requested::Aggregates => self.rank,
            Requested::Contributions => to,
        };
        let slots = self.layout.slots(asked);
        if header.slots != slots {
            return;
        }
        let peer = &mut self.peers[usize::from(to)];
        (peer.heard, peer.last) = (true, now);
        self.held = false;
        match request.of {
            Requested::Aggregates => {
                let open = &self.open;
                let closed = |slot: u32| open[slot as usize] == 0;
                peer.asked_aggregates.ask(round, slots, wanted, closed);
            }
            Requested::Contributions => {
                // Until all were sent once, this rank knows of no loss.
                let sent = self.scatter == 0 && self.exact.contributes(self.rank, to);
                peer.asked_contributions.ask(round, slots, wanted, |_| sent);
            }
        }
    }

    /// Ends the operation if it is complete or its limit has passed.
    pub(super) fn settle(
        &mut self,
        now: Time,
    ) -> Option<Result<(ExactOutcome, Vec<f32>), Incomplete>> {
        let complete = self.missing == 0;
        if self.ended || !(complete || now >= self.until) {
            return None;
        }
        self.ended = true;
        // Every participant has started by now, unless only one rank contributes, and ends within another
        // limit.
        self.until = now + self.limit;
        let duration = now.since(self.started);
        if !complete {
            return Some(Err(self.incomplete(duration)));
        }
        self.notice = Some(Notice {
            sent: 0,
            due: now,
            wait: self.spacing.first,
            turn: Turn::default(),
        });
        self.received = Vec::new();
        let outcome = ExactOutcome {
            id: self.id,
            duration,
            requests: self.requests,
        };
        Some(Ok((outcome, std::mem::take(&mut self.result))))
    }

    fn incomplete(&self, waited: Duration) -> Incomplete {
        let which = |is: &dyn Fn(&Peer) -> bool| -> Vec<u16> {
            let peers = (0u16..).zip(&self.peers);
            peers
                .filter(|(_, peer)| is(peer))
                .map(|(rank, _)| rank)
                .collect()
        };
        let lacks = |peer: &Peer| peer.contributions.missing() + peer.aggregates.missing() > 0;
        Incomplete {
            id: self.id,
            waited,
            contributions: which(&|peer| peer.contributions.missing() > 0),
            aggregates: which(&|peer| peer.aggregates.missing() > 0),
            silent: which(&|peer| !peer.heard && lacks(peer)),
            differing: which(&|peer| peer.differs),
        }
    }

    /// When [`ExactOperation::settle`] is due, or removal.
    pub(super) fn due(&self) -> Time {
        self.until
    }

    /// True if no rank can need anything of it: each other rank has reported the result, has left the step
    /// (`past`), or has given up.
    pub(super) fn is_over(&self, now: Time, past: impl Fn(u16) -> bool) -> bool {
        let unsent = !self.closed.is_empty() || self.notice.is_some();
        self.ended && (now >= self.until || !unsent && self.all_done(past))
    }

    fn all_done(&self, past: impl Fn(u16) -> bool) -> bool {
        let mut peers = (0u16..).zip(&self.peers);
        peers.all(|(rank, peer)| rank == self.rank || peer.done || past(rank))
    }

    /// For a rank that leaves: when the last rank that still responds can no longer need anything. A rank
    /// with missing slots requests them again and again; one that does not is gone. Ranks may start a
    /// broadcast only after this.
    pub(super) fn needed_until(&self, past: impl Fn(u16) -> bool) -> Option<Time> {
        let silence = self.spacing.longest * LONGEST_WAITS;
        let all_contribute = !matches!(self.exact, Exact::Broadcast { .. });
        let peers = (0u16..).zip(&self.peers);
        let lacking = peers.filter(|(rank, peer)| *rank != self.rank && !peer.done && !past(*rank));
        let until = lacking.map(|(_, peer)| match peer.heard || all_contribute {
            true => self.until.min(peer.last + silence),
            false => self.until,
        });
        until.max()
    }

    /// True if another rank may wait for data, or has not been notified that this rank is done.
    pub(super) fn may_be_needed(&self, past: impl Fn(u16) -> bool) -> bool {
        !self.ended || !self.closed.is_empty() || self.notice.is_some() || !self.all_done(past)
    }

    /// Notes that a receiver may have room again, or that another packet is to be sent.
    pub(super) fn release_held(&mut self) {
        self.held = false;
    }

    /// Stops notices: packets of the later step that started say the same.
    pub(super) fn stop_repeating(&mut self) {
        if self.ended {
            self.notice = None;
        }
    }

    fn has_data(&self) -> bool {
        let asked =
            |peer: &Peer| peer.asked_contributions.is_asked() || peer.asked_aggregates.is_asked();
        self.scatter > 0 || !self.closed.is_empty() || self.peers.iter().any(asked)
    }

    /// When a packet will be ready to send, if nothing else happens.
    pub(super) fn ready_at(&self) -> Option<Time> {
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
    pub(super) fn transmit(
        &mut self,
        now: Time,
        room: usize,
        past: impl Fn(u16) -> bool,
        (counters, credit): (&mut ExactCounters, &mut Credit),
    ) -> Option<Outgoing<'_>> {
        self.held = false;
        if self.scatter > 0 {
            if let Some((owner, slot, last)) = self.next_scatter(now, credit) {
                return Some(self.scatter_packet(owner, slot, last));
            }
        } else if let Some(&slot) = self.closed.front() {
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
                return Some(self.scatter_packet(to, slot, false));
            }
            if let Some(slot) = peer.asked_aggregates.next() {
                counters.repairs_sent += 1;
                return Some(self.aggregate(Kind::Repair, Destination::Rank(to), slot, false));
            }
        }
        if !self.ended
            && let Some((of, to, first)) = self.next_request(now, room)
        {
            counters.requests_sent += 1;
            self.requests += 1;
            let owner = match of {
                Requested::Aggregates => to,
                Requested::Contributions => self.rank,
            };
            return Some(Outgoing {
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

    /// The owner and slot of the next contribution, and whether it is the owner's last one.
    fn next_scatter(&mut self, now: Time, credit: &mut Credit) -> Option<(u16, u32, bool)> {
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
                let slot = self.rotation.slot(position, slots);
                Some((owner, slot, position + 1 == slots))
            }
            Visit::Blocked | Visit::Stalled | Visit::Done => {
                self.held = true;
                None
            }
        }
    }

    fn scatter_packet(&mut self, owner: u16, slot: u32, last: bool) -> Outgoing<'_> {
        self.phases.scatter.sent += 1;
        self.phases.scatter.copies += 1;
        Outgoing {
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

    /// True if the next aggregate may be sent.
    fn has_credit(&self, now: Time, credit: &mut Credit) -> bool {
        let (to, _) = self.turn.clone().next(self.gather, self.rank, self.ranks);
        let flow = match to {
            Destination::Rank(rank) => credit.flow(now, rank, self.limit),
            Destination::Group => credit.group_flow(now, self.limit),
        };
        flow == Flow::Open
    }

    fn next_gather(&mut self, slot: u32) -> Outgoing<'_> {
        let (to, sent_to_all) = self.turn.next(self.gather, self.rank, self.ranks);
        self.gather_left -= 1;
        self.phases.gather.sent += 1;
        self.phases.gather.copies += match to {
            Destination::Group => u64::from(self.ranks - 1),
            Destination::Rank(_) => 1,
        };
        if sent_to_all {
            self.closed.pop_front();
        }
        let last = self.closed.is_empty() && self.open.iter().all(|missing| *missing == 0);
        self.aggregate(Kind::Gather, to, slot, last)
    }

    fn aggregate(&self, kind: Kind, to: Destination, slot: u32, last: bool) -> Outgoing<'_> {
        Outgoing {
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

    fn next_request(&mut self, now: Time, room: usize) -> Option<(Requested, u16, u32)> {
        for (rank, peer) in (0u16..).zip(&mut self.peers) {
            let wants = [
                (Requested::Contributions, &mut peer.contributions),
                (Requested::Aggregates, &mut peer.aggregates),
            ];
            for (of, want) in wants {
                if let Some(first) = want.request(now, room, &mut self.wanted) {
                    return Some((of, rank, first));
                }
            }
        }
        None
    }

    /// A FEEDBACK that reports congestion.
    pub(super) fn congestion(&self, report: &CongestionReport) -> Outgoing<'static> {
        Outgoing {
            to: report.to,
            owner: self.rank,
            slots: self.layout.slots(self.rank),
            body: Body::Congestion(report.queues, report.echoed),
        }
    }

    /// The next notice that this rank has the result. Notices repeat until all others have the result, and a
    /// few times at least.
    fn next_notice(&mut self, now: Time, past: impl Fn(u16) -> bool) -> Option<Outgoing<'_>> {
        let done = self.all_done(past);
        let notice = self.notice.as_mut().filter(|notice| notice.due <= now)?;
        let (to, sent_to_all) = notice.turn.next(self.gather, self.rank, self.ranks);
        if sent_to_all {
            notice.sent += 1;
            notice.due = now + notice.wait;
            notice.wait = (notice.wait * 2).min(self.spacing.longest);
            if notice.sent >= NOTICE_COPIES && done {
                self.notice = None;
            }
        }
        Some(Outgoing {
            to,
            owner: self.rank,
            slots: self.layout.slots(self.rank),
            body: Body::Notice,
        })
    }

    /// The counters of a finished operation. Packets still owed count as never sent.
    pub(super) fn into_phases(mut self) -> Phases {
        self.phases.scatter.never_sent += self.scatter;
        self.phases.gather.never_sent += self.gather_left;
        self.phases
    }
}
