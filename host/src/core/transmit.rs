//! Chooses the next datagram to send.

use ultima_wire::frame::FRAME_OVERHEAD;
use ultima_wire::{Kind, Ticks};

use crate::config::{Gather, GatherStart};
use crate::operation::{OperationId, Part};
use crate::rotation::Flow;
use crate::time::Time;

use super::congestion::{Congestion, CongestionReport, Queues};
use super::operation::Operation;
use super::packet::{self, FeedbackFields, Written};
use super::{Core, Destination, Transmit};

impl Core {
    /// Writes the next datagram to the front of `buf`. Values that are only counted are left out. None if there is
    /// nothing to send now. With [`Config::key`](crate::Config::key) it is sealed. The seal does not cover the packet
    /// number, which links assign.
    ///
    /// A `buf` shorter than [`Core::max_datagram`] only gets a grant of credit that follows the last datagram.
    ///
    /// # Panics
    /// If `buf` is shorter than a grant.
    pub fn poll_transmit(&mut self, now: Time, buf: &mut [u8]) -> Option<Transmit> {
        let transmit = self.transmit(now, buf)?;
        if let Some(sealer) = &mut self.sealer {
            sealer.seal(&mut buf[..transmit.len]);
        }
        self.tracer.sent(now, transmit.to, &buf[..transmit.head]);
        Some(transmit)
    }

    pub(super) fn transmit(&mut self, now: Time, buf: &mut [u8]) -> Option<Transmit> {
        self.handle_timeout(now);
        if let Some(transmit) = self.transmit_credit(now, buf, false) {
            return Some(transmit);
        }
        if buf.len() < self.max_datagram() {
            return None;
        }
        if let Some(transmit) = self.transmit_report(now, buf) {
            return Some(transmit);
        }
        if (self.congestion.as_ref()).is_some_and(|congestion| congestion.pacer.ready_at() > now) {
            return None;
        }
        if let Some(check) = self.checks.next() {
            let written = packet::write_check(&self.config, now, &check, buf);
            self.totals.control_sent += 1;
            return Some(self.sent(now, check.to, written));
        }
        if let Some(transmit) = self.transmit_request(now, buf) {
            return Some(transmit);
        }
        for operation in &mut self.operations {
            let id = operation.id;
            let (timeouts, credit) = (self.timeouts.as_mut(), &mut self.credit);
            let Some(outgoing) = operation.transmit(now, timeouts, credit) else {
                continue;
            };
            let (slot, ranks) = (outgoing.packet.slot, self.config.ranks);
            let incomplete =
                outgoing.packet.kind == Kind::Gather && outgoing.packet.contributions < ranks;
            let counted = match &mut self.recycler {
                Some(recycler) if incomplete => {
                    let counted = outgoing
                        .reduce
                        .map(|reduce| |rank| reduce.counts(slot, rank));
                    recycler.counted(id, slot, ranks, counted)
                }
                _ => &[],
            };
            let fields = FeedbackFields {
                queues: (self.congestion.as_ref()).map_or_else(Queues::default, Congestion::queues),
                notice: true,
                echoed: Ticks(match outgoing.packet.kind {
                    Kind::Feedback => 0,
                    _ => self.credit.sent(outgoing.packet.to),
                }),
                incast: self.incast.own(),
            };
            let written = packet::write(&self.config, now, id, &outgoing, &fields, counted, buf);
            let (kind, to) = (outgoing.packet.kind, outgoing.packet.to);
            if kind == Kind::Feedback {
                self.totals.feedback_sent += 1;
            }
            let transmit = self.sent(now, to, written);
            if kind == Kind::Scatter {
                self.scatter_sent(now, id);
            }
            return Some(transmit);
        }
        self.retire(now);
        // After the data of earlier steps: a packet of a step says that they are sent.
        if let Some(transmit) = self.transmit_exact(now, buf) {
            return Some(transmit);
        }
        let repair = self.transmit_repair(now, buf);
        repair.or_else(|| self.transmit_credit(now, buf, true))
    }

    /// Notes that a contribution of an operation was sent, perhaps the last one.
    fn scatter_sent(&mut self, now: Time, id: OperationId) {
        let sent = self.operations.iter().find(|o| o.id == id);
        match sent
            .filter(|o| o.outbox().scatter_is_out())
            .map(Operation::part)
        {
            Some(Part::Whole) => self.take_turns(now, id),
            Some(Part::Scatter) => self.settle(now),
            Some(Part::Gather) | None => {}
        }
    }

    pub(super) fn transmit_exact(&mut self, now: Time, buf: &mut [u8]) -> Option<Transmit> {
        let members = &self.members;
        let past = |rank, step| members.is_past(rank, step);
        let when = (now, self.incast.own());
        let credit = &mut self.credit;
        let sent = self.exact.transmit(&self.config, when, past, credit, buf)?;
        match sent.kind {
            Kind::Feedback => self.totals.feedback_sent += 1,
            Kind::Control => self.totals.control_sent += 1,
            _ => {}
        }
        Some(self.sent(now, sent.to, sent.written))
    }

    /// Writes a grant of credit or a request for it. It is sent whatever the rate: others wait for it.
    fn transmit_credit(&mut self, now: Time, buf: &mut [u8], idle: bool) -> Option<Transmit> {
        let asks = self.may_need_credit();
        let (to, message) = self.credit.next(now, asks, idle)?;
        let written = packet::write_credit(&self.config, now, message, buf);
        self.totals.control_sent += 1;
        Some(self.sent(now, Destination::Rank(to), written))
    }

    /// Writes a congestion report or an echo. It is sent at once, whatever the rate, so that a round trip
    /// measures the network.
    pub(super) fn transmit_report(&mut self, now: Time, buf: &mut [u8]) -> Option<Transmit> {
        let congestion = self.congestion.as_mut()?;
        if !congestion.has_report() {
            return None;
        }
        let operation = self.operations.iter().find(|o| o.is_waiting());
        let report =
            congestion.next_report(operation.is_some() || self.exact.running().is_some())?;
        let incast = self.incast.own();
        let Some(operation) = operation else {
            let written = self
                .exact
                .write_report(&self.config, (now, incast), &report, buf)?;
            self.totals.feedback_sent += 1;
            return Some(self.sent(now, report.to, written));
        };
        let CongestionReport { to, queues, echoed } = report;
        let fields = FeedbackFields {
            queues,
            notice: false,
            echoed,
            incast,
        };
        let outgoing = operation.feedback(self.config.rank, to, now);
        let written = packet::write(
            &self.config,
            now,
            operation.id,
            &outgoing,
            &fields,
            &[],
            buf,
        );
        self.totals.feedback_sent += 1;
        Some(self.sent(now, to, written))
    }

    /// Delays this rank's first aggregate by its turn.
    ///
    /// If all owners multicast their first aggregate when their contributions are sent, they fill every queue
    /// with one packet each. With turns, in the time that one aggregate of each owner takes on a receiver's
    /// link, the owners start one after the other, at intervals of the length of a shard's last packet. All
    /// links are full from the first turn to the last packet, so turns cost nothing.
    pub(super) fn take_turns(&mut self, now: Time, id: OperationId) {
        let turns = self.config.gather_start == GatherStart::Turns;
        let Some(congestion) = self.congestion.as_ref().filter(|_| turns) else {
            return;
        };
        let Some(operation) = self.operations.iter_mut().find(|o| o.id == id) else {
            return;
        };
        if self.config.gather == Gather::Multicast {
            let frame = FRAME_OVERHEAD
                + self.config.header_len()
                + operation.longest_slot(self.config.rank, self.config.element);
            let before = frame as u64 * u64::from(self.config.rank);
            let turn = congestion.pacer.time(before);
            // Contributions stay in queues for the target time, or twice that. A longer wait is for a rank.
            let at_most = congestion.scale.target * 2;
            operation.outbox_mut().hold_gather(now, turn, at_most);
        }
    }

    /// Requests a missing slot from its owner. Requests precede data, which they are few compared with.
    pub(super) fn transmit_request(&mut self, now: Time, buf: &mut [u8]) -> Option<Transmit> {
        let room = packet::request_room(&self.config);
        let recycler = self.recycler.as_mut()?;
        let request = recycler.ledger.request(now, room)?;
        let to = Destination::Rank(request.owner);
        let echo = recycler.round_trips.echo(now, request.owner);
        let written = packet::write_request(&self.config, now, (&request, echo), buf);
        self.totals.control_sent += 1;
        Some(self.sent(now, to, written))
    }

    /// Sends a requested slot again, after all data, which is urgent.
    pub(super) fn transmit_repair(&mut self, now: Time, buf: &mut [u8]) -> Option<Transmit> {
        let (credit, t_b) = (&mut self.credit, self.config.t_b);
        let has_room = |rank| credit.flow(now, rank, t_b) == Flow::Open;
        let repair = self.recycler.as_mut()?.store.next(now, has_room)?;
        let to = Destination::Rank(repair.to);
        let sequence = self.credit.sent(to);
        let written = packet::write_repair(&self.config, now, (&repair, sequence), buf);
        Some(self.sent(now, to, written))
    }

    pub(super) fn sent(&mut self, now: Time, to: Destination, written: Written) -> Transmit {
        let Written { len, head } = written;
        if let Some(congestion) = &mut self.congestion {
            let receivers = match to {
                Destination::Rank(_) => 1,
                Destination::Group => u64::from(self.config.ranks - 1),
            };
            congestion.sent(now, receivers * (FRAME_OVERHEAD + len) as u64);
        }
        Transmit { to, len, head }
    }
}
