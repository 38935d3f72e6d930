//! Chooses the next datagrams to send.

use std::collections::VecDeque;

use ultima_wire::frame::FRAME_OVERHEAD;
use ultima_wire::{Credit, Kind, Ticks, header_len};

use crate::config::{Gather, GatherStart};
use crate::element;
use crate::operation::{OperationId, Part};
use crate::rotation::Flow;
use crate::time::Time;
use crate::values::ValueStore;

use super::batch::{Batch, Carrier, InCore};
use super::congestion::{Congestion, CongestionReport, Queues};
use super::operation::Operation;
use super::packet::{self, FeedbackFields, Written};
use super::{Core, Destination, Transmit, WithoutCredit, earlier, exact};

/// Room for a grant of credit.
const SHORTEST: usize = header_len(true) + Credit::LEN;

fn in_core<'a, V: ValueStore>(
    operations: &'a VecDeque<Operation<V>>,
    values: &InCore,
) -> &'a [f32] {
    let operation = operations.iter().find(|o| o.number == values.operation);
    let operation = operation.expect("a batch is sent before operations end");
    operation.values(values)
}

impl<V: ValueStore> Core<V> {
    /// Adds the datagrams that are to be sent now to an empty `batch`, as far as it has room. It must be sent, or
    /// [`Batch::detach`]ed, before another method with `&mut self` is called. With [`Config::key`](crate::Config::key)
    /// datagrams are sealed. The seal does not cover the packet number, which links assign.
    pub fn poll_transmit(&mut self, now: Time, batch: &mut Batch) {
        self.retire(now);
        let carrier = batch.carrier();
        while batch.room().len() >= SHORTEST
            && let Some((transmit, values)) = self.transmit(now, batch.room(), carrier)
        {
            batch.push(transmit, values);
        }
        if batch.is_empty() {
            self.retire(now);
        }
    }

    /// Writes the next datagram to the front of `buf`, for simulators. None if there is nothing to send now.
    ///
    /// A `buf` shorter than [`Core::max_datagram`] only gets a grant of credit that follows the last datagram.
    ///
    /// # Panics
    /// If `buf` is shorter than a grant.
    pub fn next_datagram(&mut self, now: Time, buf: &mut [u8]) -> Option<Transmit> {
        let sent = self.transmit(now, buf, Carrier::Simulator);
        if sent.is_none() {
            self.retire(now);
        }
        sent.map(|(transmit, _)| transmit)
    }

    /// The values of a packet in a batch.
    pub(super) fn values(&self, values: &InCore) -> &[f32] {
        in_core(&self.operations, values)
    }

    /// Writes the next datagram to the front of `buf`. Values may stay where they are, if the carrier takes them from there.
    fn transmit(
        &mut self,
        now: Time,
        buf: &mut [u8],
        carrier: Carrier,
    ) -> Option<(Transmit, Option<InCore>)> {
        let (transmit, values) = self.write_next(now, buf, carrier)?;
        if let Some(sealer) = &mut self.sealer {
            match &values {
                _ if !carrier.needs_digest(transmit.to) => {
                    sealer.seal_header(&mut buf[..transmit.head]);
                }
                Some(values) => {
                    let payload = element::in_place(in_core(&self.operations, values));
                    sealer.seal_apart(&mut buf[..transmit.head], payload);
                }
                None => sealer.seal(&mut buf[..transmit.len]),
            }
        }
        self.tracer.sent(now, transmit.to, &buf[..transmit.head]);
        Some((transmit, values))
    }

    fn write_next(
        &mut self,
        now: Time,
        buf: &mut [u8],
        carrier: Carrier,
    ) -> Option<(Transmit, Option<InCore>)> {
        let whole = |transmit| (transmit, None);
        if let Some(transmit) = self.transmit_credit(now, buf, false) {
            return Some(whole(transmit));
        }
        if buf.len() < self.max_datagram() {
            return None;
        }
        if let Some(transmit) = self.transmit_report(now, buf) {
            return Some(whole(transmit));
        }
        if (self.congestion.as_ref()).is_some_and(|congestion| congestion.pacer.ready_at() > now) {
            return None;
        }
        if let Some(check) = self.checks.next() {
            let written = packet::write_check(&self.config, now, &check, buf);
            self.totals.control_sent += 1;
            return Some(whole(self.sent(now, check.to, written)));
        }
        if let Some(transmit) = self.transmit_request(now, buf) {
            return Some(whole(transmit));
        }
        let mut waiting = None;
        for operation in &mut self.operations {
            let (id, number, part) = (operation.id, operation.number, operation.part());
            let operation_len = operation.shape.layout.len();
            let (timeouts, credit) = (self.timeouts.as_mut(), &mut self.credit);
            let next = operation.transmit(now, timeouts, credit, earlier(waiting, id));
            let Some(mut outgoing) = next else {
                waiting = waiting.or(operation.without_credit());
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
            let kind = outgoing.packet.kind;
            // Half an operation may end while its packets leave.
            let stays = operation_len >= carrier.zero_copy_from()
                && part == Part::Whole
                && counted.is_empty()
                && !outgoing.range.is_empty()
                // The digest of a seal is of the bytes of values.
                && (self.sealer.is_none() || !carrier.needs_digest(outgoing.packet.to) || self.config.element.is_in_place());
            let values = outgoing.values.take_if(|_| stays).map(|_| InCore {
                operation: number,
                range: outgoing.range.clone(),
                aggregates: kind == Kind::Gather,
            });
            let written = packet::write(&self.config, now, id, &outgoing, &fields, counted, buf);
            let to = outgoing.packet.to;
            if kind == Kind::Feedback {
                self.totals.feedback_sent += 1;
            }
            let transmit = self.sent(now, to, written);
            if kind == Kind::Scatter {
                self.scatter_sent(now, id);
            }
            return Some((transmit, values));
        }
        // After the data of earlier steps: a packet of a step says that they are sent.
        if let Some(transmit) = self.transmit_exact(now, waiting, buf) {
            return Some(whole(transmit));
        }
        let repair = self.transmit_repair(now, buf);
        let last = repair.or_else(|| self.transmit_credit(now, buf, true));
        last.map(whole)
    }

    /// Notes that a contribution of an operation was sent, perhaps the last one.
    fn scatter_sent(&mut self, now: Time, id: OperationId) {
        let sent = self.operations.iter().find(|o| o.id == id);
        match sent
            .filter(|o| o.outbox().scatter_is_out())
            .map(|o| o.part())
        {
            Some(Part::Whole) => self.take_turns(now, id),
            Some(Part::Scatter) => self.close_complete(now),
            Some(Part::Gather) | None => {}
        }
    }

    /// Writes the next packet of an exact operation, unless data of an earlier step is `waiting` for credit.
    fn transmit_exact(
        &mut self,
        now: Time,
        waiting: Option<WithoutCredit>,
        buf: &mut [u8],
    ) -> Option<Transmit> {
        let members = &self.members;
        let past = |rank, step| members.is_done_with(rank, step);
        let stamp = exact::Stamp {
            now,
            incast: self.incast.own(),
            sequence: 0,
        };
        let credit = &mut self.credit;
        let sent = (self.exact).transmit(&self.config, stamp, waiting, past, credit, buf)?;
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
                .write_report(&self.config, now, incast, &report, buf)?;
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
            operation.outbox_mut().delay_gather(now, turn, at_most);
        }
    }

    /// Requests a missing slot from its owner. Requests precede data, which they are few compared with.
    pub(super) fn transmit_request(&mut self, now: Time, buf: &mut [u8]) -> Option<Transmit> {
        let room = packet::request_room(&self.config);
        let recycler = self.recycler.as_mut()?;
        let request = recycler.ledger.request(now, room)?;
        let to = Destination::Rank(request.owner);
        let echo = recycler.round_trips.echo(now, request.owner);
        let written = packet::write_request(&self.config, now, &request, echo, buf);
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
        let written = packet::write_repair(&self.config, now, &repair, sequence, buf);
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
