//! Received datagrams: parsing, and dispatch to operations, checks and recycling.

use ultima_wire::{Check, Credit, Feedback, Header, Kind, RepairRequest, Requested};

use crate::cause::{Cause, Phase};
use crate::config::Gather;
use crate::stats::Rejection;
use crate::time::Time;
use crate::trace::Fate;
use crate::values::ValueStore;

use super::batch::Carrier;
use super::operation::Received;
use super::packet;
use super::replay::Novelty;
use super::{Core, Event, OperationId, early, operation_of};

impl<V: ValueStore> Core<V> {
    /// Handles a received UDP payload. A payload that is not a packet of this job for this rank is counted
    /// and ignored.
    pub fn handle_datagram(&mut self, now: Time, datagram: &[u8]) {
        self.handle(now, Carrier::Sockets, datagram);
    }

    /// The same for a datagram that something else than a socket may have carried.
    pub(crate) fn handle(&mut self, now: Time, carrier: Carrier, datagram: &[u8]) {
        let sealer = self.sealer.as_mut();
        let (header, payload) = match packet::admit(&self.config, sealer, carrier, datagram) {
            Ok(admitted) => admitted,
            Err(reason) => return self.totals.rejected.count(reason),
        };
        // Replayed headers of other operations must not change the rate, measure a round trip or cause grants. Not so
        // two requests, which need no operation in progress: the last one for credit is granted again, and one for
        // repair measures a round trip for t_B.
        let id = operation_of(&header);
        let is_current = self.operations.iter().any(|o| o.id == id) || self.exact.contains(id);
        let may_start = self.may_start(id);
        let arrival = self.replays.arrival(&header, !is_current && !may_start);
        // An operation in progress tells copies from packets itself: a copy may lack the payload, which the tag does not cover.
        if arrival == Novelty::Repeated && !is_current {
            return self.totals.rejected.count(Rejection::Repeated);
        }
        // A copy must not count as a sign of its source, or as a measurement.
        let is_new = arrival == Novelty::New;
        if is_new || (is_current && arrival == Novelty::Old) {
            let is_proven = match self.sealer {
                Some(_) => is_new,
                None => is_current || may_start,
            };
            self.credit.received(&header, is_proven);
        }
        let is_measured = is_current && is_new;
        if let Some(recycler) = self.recycler.as_mut().filter(|_| is_measured) {
            recycler.heard(now, &header);
        }
        let mut congestion = self.congestion.as_mut().filter(|_| is_measured);
        if let Some(congestion) = &mut congestion {
            congestion.received(now, &header);
        }
        match header.kind {
            Kind::Control => return self.receive_control(now, &header, payload),
            Kind::Report => return self.receive_report(&header, payload),
            Kind::Repair => {
                // It shows nothing of its source's earlier packets: its operation has ended there, or is exact.
                if is_new {
                    self.members.heard_any(header.source);
                }
                return self.receive_repair(now, &header, payload);
            }
            _ => {}
        }
        if let Some(congestion) = congestion
            && let Some(feedback) =
                Feedback::parse(payload).filter(|_| header.kind == Kind::Feedback)
        {
            congestion.reported(now, &header, &feedback);
        }
        if is_new {
            self.heard_source(now, &header, payload);
        }
        if may_start {
            self.early
                .keep(now, id, header.kind, datagram, &mut self.totals.phases);
        } else {
            if is_new {
                self.time(now, &header, payload);
            }
            self.deliver(now, &header, payload);
        }
        self.close_complete(now);
    }

    /// True if operation `id` may still be started here.
    fn may_start(&self, id: OperationId) -> bool {
        match self.newest_step {
            None => true,
            Some(newest) if id.step == newest => !self.started_buckets.contains(&id.bucket),
            Some(newest) => id.step > newest,
        }
    }

    /// Notes that a packet's source is present, and its step.
    fn heard_source(&mut self, now: Time, header: &Header, payload: &[u8]) {
        self.incast.announced(header.source, header.incast);
        let step = header.step;
        if !self.keeps_order(header, payload) {
            self.members.heard_any(header.source);
        } else if (self.members).heard(header.source, step, self.newest_step) {
            for operation in self.operations.iter_mut().filter(|o| o.id.step < step) {
                operation.source_is_past(now, header.source);
                operation.catch_up(now);
            }
        }
        let refuted = self.members.take_refuted();
        self.totals.rejected.add(Rejection::Step, refuted);
    }

    /// True if all earlier packets of this packet's source have arrived or are lost. False for a packet that
    /// passed the host itself if earlier ones may have passed the switch, and for a congestion report, which is sent
    /// ahead of paced packets.
    pub(super) fn keeps_order(&self, header: &Header, payload: &[u8]) -> bool {
        if header.kind == Kind::Feedback && !packet::is_notice(payload) {
            return false;
        }
        let by_host = self.config.colocated.contains(&header.source)
            && (header.kind == Kind::Scatter || self.config.gather == Gather::Unicast);
        !by_host || !self.used_group
    }

    pub(super) fn receive_control(&mut self, now: Time, header: &Header, payload: &[u8]) {
        if let Some(check) = Check::parse(payload) {
            self.checks.received(header, check);
            self.totals.control_received += 1;
            return;
        }
        if let Some(message) = Credit::parse(payload) {
            self.totals.control_received += 1;
            if self.credit.heard(now, header.source, message) {
                for operation in &mut self.operations {
                    operation.outbox_mut().retry_held();
                }
                self.exact.retry_held();
                if let Some(recycler) = &mut self.recycler {
                    recycler.store.release();
                }
            }
            return;
        }
        let id = operation_of(header);
        match (RepairRequest::parse(payload), &mut self.recycler) {
            (Some(request), _) if header.host_flags.exact => {
                self.exact.request(now, id, header, request);
            }
            (Some(request), Some(recycler)) if request.of == Requested::Aggregates => {
                recycler.request(now, header, id, request);
            }
            _ => return self.totals.rejected.count(Rejection::Kind),
        }
        self.totals.control_received += 1;
        self.close_complete(now);
    }

    /// Handles a REPAIR.
    pub(super) fn receive_repair(&mut self, now: Time, header: &Header, payload: &[u8]) {
        if header.host_flags.exact {
            self.deliver_exact(now, header, payload);
            return self.close_complete(now);
        }
        if let Some(recycler) = &mut self.recycler {
            recycler.store.count_received();
        }
        self.receive_late_aggregate(header, payload);
    }

    /// Gives a packet with the flag EXACT to its operation, if that is running or finished.
    pub(super) fn deliver_exact(&mut self, arrival: Time, header: &Header, payload: &[u8]) {
        let id = operation_of(header);
        if let Some(operation) = self.operations.iter_mut().find(|o| o.id == id) {
            operation.differs(header.source);
            return self.totals.rejected.count(Rejection::Exact);
        }
        match self.exact.receive(arrival, id, header, payload) {
            Err(reason) => self.totals.rejected.count(reason),
            Ok(_) if header.kind == Kind::Feedback => self.totals.feedback_received += 1,
            Ok(true) => {}
            Ok(false) => early::count(header.kind, &mut self.totals.phases, |phase| {
                &mut phase.late
            }),
        }
    }

    /// Handles an aggregate that arrived after its operation's end.
    pub(super) fn receive_late_aggregate(&mut self, header: &Header, payload: &[u8]) {
        let Some(recycler) = &mut self.recycler else {
            return;
        };
        let id = operation_of(header);
        if let Err(reason) = recycler.aggregate(&self.config, id, header, payload) {
            self.totals.rejected.count(reason);
        }
    }

    pub(super) fn receive_report(&mut self, header: &Header, payload: &[u8]) {
        match packet::probed(payload) {
            Some((report, check)) => {
                self.totals.control_received += 1;
                let answer = (operation_of(header), report);
                self.checks.answered(check.token, answer);
            }
            None => self.totals.rejected.count(Rejection::Kind),
        }
    }

    /// Gives a packet to its operation, which was started.
    pub(super) fn deliver(&mut self, arrival: Time, header: &Header, payload: &[u8]) {
        let id = operation_of(header);
        if header.host_flags.exact {
            return self.deliver_exact(arrival, header, payload);
        }
        if self.exact.contains(id) {
            self.exact.differs(id, header.source);
            return self.totals.rejected.count(Rejection::Exact);
        }
        if header.kind == Kind::Feedback {
            self.totals.feedback_received += 1;
        }
        let Some(operation) = self.operations.iter_mut().find(|o| o.id == id) else {
            early::count(header.kind, &mut self.totals.phases, |phase| {
                &mut phase.late
            });
            let fate = match header.kind {
                Kind::Feedback => Fate::Heard,
                _ => Fate::Late,
            };
            self.tracer.received(arrival, header, fate);
            if header.kind != Kind::Feedback {
                self.reordering.came_after_the_end(arrival, header);
            }
            if header.kind == Kind::Gather {
                self.receive_late_aggregate(header, payload);
            }
            return;
        };
        let late = header.kind == Kind::Gather && !operation.is_waiting();
        match operation.receive(arrival, &self.config, header, payload) {
            Ok(Received { fate, trimmed }) => {
                if fate == Fate::Late && !operation.is_waiting() {
                    self.reordering.came_after_the_end(arrival, header);
                }
                self.tracer.received(arrival, header, fate);
                self.events.extend(trimmed.map(Event::SlotTrimmed));
            }
            Err(reason) => {
                self.tracer.received(arrival, header, Fate::Refused);
                self.totals.rejected.count(reason);
            }
        }
        if late {
            self.receive_late_aggregate(header, payload);
        }
    }

    /// Reports the arrival time of a packet to the timeouts, if its operation is bounded and was started.
    pub(super) fn time(&mut self, arrival: Time, header: &Header, payload: &[u8]) {
        let id = operation_of(header);
        if header.host_flags.exact || self.exact.contains(id) {
            return;
        }
        if let Some((stage, t_c)) = packet::shared_t_c(header) {
            self.timeouts
                .peer_t_c(header.bucket, stage, header.source, t_c);
        }
        let Some(started) = self.started.iter_mut().rev().find(|s| s.id == id) else {
            return;
        };
        let (phase, packets) = match (header.kind, header.host_flags.last) {
            (Kind::Scatter, _) => (Phase::Scatter, 1),
            (Kind::Gather, _) => (Phase::Gather, 1),
            // Its sender is present, and has sent the contributions that it will send.
            (Kind::Feedback, false)
                if packet::is_notice(payload) && started.finished.insert(header.source.into()) =>
            {
                (Phase::Scatter, started.slots)
            }
            _ => return,
        };
        if packet::cause_of(header.switch_flags) != Some(Cause::Trimmed) {
            let after = arrival.since(started.at);
            let source = Some(header.source);
            self.timeouts
                .record_packets(id.bucket, phase, source, after, packets);
        }
    }
}
