//! Exact operations: losses are repaired, and an incomplete operation has no result.
//!
//! The two phases are the bounded operation's: contributions go to owners, aggregates to all ranks, in the
//! same packets with the flag EXACT. But a slot closes only with all of its contributions, and nothing is
//! replaced by zero. An owner requests missing slots from sources, a receiver from owners (CONTROL): at once
//! if a loss is known, else after a wait that doubles each time, until the slot arrives or the operation's
//! limit passes, which is an error. It is an error as soon as a rank has left that has to deliver some of them.
//!
//! A rank with the result announces it (FEEDBACK). It answers requests until all others have announced it, or
//! have started a later step, or its limit has passed once more. An operation to which all ranks contribute
//! ends nowhere before it has started everywhere, so any rank with missing slots has given up by then.
//!
//! | file | content |
//! | --- | --- |
//! | `operation/` | one operation: states, packets, its end |
//! | `want.rs` | slots that one rank still has to deliver, and when to request them |
//! | `repeats.rs` | slots that one rank requested, and how often it gets them |

mod operation;
mod repeats;
mod want;

use ultima_wire::{Feedback, Header, HostFlags, Kind, RepairRequest, Ticks};

use crate::config::Config;
use crate::element::Element;
use crate::exact::{ExactCounters, ExactOutcome, Incomplete};
use crate::operation::OperationId;
use crate::stats::{Phases, Rejection};
use crate::time::Time;

use super::congestion::{CongestionReport, Queues};
use super::credit::Credit;
use super::packet::{self, Written};
use super::{Destination, WithoutCredit, earlier};
pub(super) use operation::Start;
use operation::{Body, ExactOperation, ExactPacket};

/// Type of exact values in packets, whatever the job's element is: no rounding.
const ELEMENT: Element = Element::F32;

/// A result, or why there is none.
pub(super) type ExactResult = Result<(ExactOutcome, Vec<f32>), Incomplete>;

/// The exact operations that were started and may still be needed.
#[derive(Default)]
pub(super) struct ExactOperations {
    operations: Vec<ExactOperation>,
    counters: ExactCounters,
}

/// A packet that was written.
pub(super) struct WrittenPacket {
    pub(super) kind: Kind,
    pub(super) to: Destination,
    pub(super) written: Written,
}

impl ExactOperations {
    /// Notes that a receiver may have room again.
    pub(super) fn retry_held(&mut self) {
        self.operations
            .iter_mut()
            .for_each(ExactOperation::retry_held);
    }

    /// True if there is no operation.
    pub(super) fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    pub(super) fn start(&mut self, config: &Config, start: Start, values: Vec<f32>) {
        let operation = ExactOperation::new(config, start, values);
        self.operations.push(operation);
    }

    /// Notes that `rank` has left the job.
    pub(super) fn left(&mut self, rank: u16) {
        self.operations.iter_mut().for_each(|o| o.left(rank));
    }

    pub(super) fn counters(&self) -> ExactCounters {
        self.counters
    }

    /// Packet counters of operations that are not finished.
    pub(super) fn phases(&self) -> impl Iterator<Item = &Phases> {
        self.operations.iter().map(ExactOperation::phases)
    }

    /// An operation that has not ended.
    pub(super) fn running(&self) -> Option<OperationId> {
        let running = self.operations.iter().find(|o| o.is_running())?;
        Some(running.id)
    }

    pub(super) fn contains(&self, id: OperationId) -> bool {
        self.operations.iter().any(|o| o.id == id)
    }

    /// Notes a packet of a bounded operation with the same id.
    pub(super) fn differs(&mut self, id: OperationId, source: u16) {
        self.operations
            .iter_mut()
            .filter(|o| o.id == id)
            .for_each(|o| o.differs(source));
    }

    /// Gives a packet with the flag EXACT to its operation. Returns false if that is not here.
    pub(super) fn receive(
        &mut self,
        now: Time,
        id: OperationId,
        header: &Header,
        payload: &[u8],
    ) -> Result<bool, Rejection> {
        let operation = self.operations.iter_mut().find(|o| o.id == id);
        let here = operation.is_some();
        if let Some(operation) = operation {
            let received = operation.receive(now, header, payload);
            if let Err(Rejection::Exact | Rejection::Slot | Rejection::Length) = received {
                operation.differs(header.source);
            }
            received?;
        }
        self.counters.repairs_received += u64::from(header.kind == Kind::Repair);
        Ok(here)
    }

    /// Handles a rank's request for missing slots.
    pub(super) fn request(
        &mut self,
        now: Time,
        id: OperationId,
        header: &Header,
        request: RepairRequest<'_>,
    ) {
        self.counters.requests_received += 1;
        if let Some(operation) = self.operations.iter_mut().find(|o| o.id == id) {
            operation.request(now, header, request);
        }
    }

    /// Ends the next operation that is complete or late.
    pub(super) fn finish(&mut self, now: Time) -> Option<(OperationId, ExactResult)> {
        let mut ended = self.operations.iter_mut();
        let (id, ended) = ended.find_map(|o| Some((o.id, o.finish(now)?)))?;
        match &ended {
            Ok(_) => self.counters.complete += 1,
            Err(_) => self.counters.incomplete += 1,
        }
        Some((id, ended))
    }

    /// Removes operations that no rank needs, and returns their packet counters.
    pub(super) fn retire(&mut self, now: Time, past: impl Fn(u16, u32) -> bool) -> Phases {
        let over = |o: &mut ExactOperation| o.is_over(now, |rank| past(rank, o.id.step));
        let mut phases = Phases::default();
        for operation in self.operations.extract_if(.., over) {
            phases += operation.into_phases();
        }
        phases
    }

    /// Removes all operations.
    pub(super) fn shut_down(&mut self) -> Phases {
        let mut phases = Phases::default();
        for operation in self.operations.drain(..) {
            phases += operation.into_phases();
        }
        phases
    }

    /// Stops repeated notices, because an operation of a later step starts.
    pub(super) fn stop_repeating(&mut self) {
        self.operations
            .iter_mut()
            .for_each(ExactOperation::stop_repeating);
    }

    /// The time at which [`ExactOperations::finish`] or [`ExactOperations::retire`] is due.
    pub(super) fn due(&self) -> Option<Time> {
        self.operations.iter().map(ExactOperation::due).min()
    }

    /// The time of the next packet to send, if nothing else happens. `waiting`: see [`ExactOperations::transmit`].
    pub(super) fn ready_at(&self, waiting: Option<WithoutCredit>) -> Option<Time> {
        let operations = self.operations.iter();
        let sending = operations.filter(|o| earlier(waiting, o.id).is_none());
        sending.filter_map(ExactOperation::ready_at).min()
    }

    /// The time from which no rank that still responds needs anything. None if no rank needs anything.
    pub(super) fn needed_until(&self, past: impl Fn(u16, u32) -> bool) -> Option<Time> {
        let until = |o: &ExactOperation| o.needed_until(|rank| past(rank, o.id.step));
        self.operations.iter().filter_map(until).max()
    }

    /// True if another rank may wait for data that only this rank has.
    pub(super) fn may_be_needed(&self, past: impl Fn(u16, u32) -> bool) -> bool {
        let needed = |o: &ExactOperation| o.may_be_needed(|rank| past(rank, o.id.step));
        self.operations.iter().any(needed)
    }

    /// Writes a congestion report, as a packet of a running operation, to the front of `buf`.
    pub(super) fn write_report(
        &self,
        config: &Config,
        now: Time,
        incast: u8,
        report: &CongestionReport,
        buf: &mut [u8],
    ) -> Option<Written> {
        let operation = self.operations.iter().find(|o| o.is_running())?;
        let outgoing = operation.congestion(report);
        let stamp = Stamp {
            now,
            incast,
            sequence: 0,
        };
        Some(write(config, stamp, operation.id, &outgoing, buf))
    }

    /// Writes the next packet to the front of `buf`, unless data of an earlier step is `waiting` for credit. Sets the sequence
    /// number of `stamp`.
    pub(super) fn transmit(
        &mut self,
        config: &Config,
        stamp: Stamp,
        waiting: Option<WithoutCredit>,
        past: impl Fn(u16, u32) -> bool,
        credit: &mut Credit,
        buf: &mut [u8],
    ) -> Option<WrittenPacket> {
        let room = packet::request_room(config);
        let counters = &mut self.counters;
        let operations = self.operations.iter_mut();
        let mut sending = operations.filter(|o| earlier(waiting, o.id).is_none());
        sending.find_map(|operation| {
            let id = operation.id;
            let past = |rank| past(rank, id.step);
            let outgoing = operation.transmit(stamp.now, room, past, counters, credit)?;
            let to = outgoing.to;
            let sequence = match outgoing.body {
                Body::Values { .. } => credit.sent(to),
                _ => 0,
            };
            let stamp = Stamp { sequence, ..stamp };
            let kind = outgoing.kind();
            let written = write(config, stamp, id, &outgoing, buf);
            Some(WrittenPacket { kind, to, written })
        })
    }
}

fn feedback(queues: Queues, notice: bool) -> Feedback {
    Feedback {
        wait: Ticks(0),
        queue: queues.queue,
        marked: queues.marked,
        trimmed: queues.trimmed,
        notice,
    }
}

/// The fields of a packet that its operation does not decide.
pub(super) struct Stamp {
    pub(super) now: Time,
    /// This rank's incast limit.
    pub(super) incast: u8,
    /// The packet's sequence number, or 0.
    pub(super) sequence: u32,
}

/// Writes a packet to the front of `buf`.
fn write(
    config: &Config,
    stamp: Stamp,
    id: OperationId,
    outgoing: &ExactPacket<'_>,
    buf: &mut [u8],
) -> Written {
    let mut header = Header {
        // It is never late.
        budget: Ticks::MAX,
        step: id.step,
        bucket: id.bucket,
        host_flags: HostFlags {
            exact: true,
            ..HostFlags::default()
        },
        slots: outgoing.slots,
        incast: stamp.incast,
        ..packet::header(config, stamp.now, outgoing.kind(), outgoing.owner)
    };
    match outgoing.body {
        Body::Values {
            slot,
            contributions,
            last,
            values,
            ..
        } => {
            (header.slot, header.contributions) = (slot, contributions);
            header.echoed = Ticks(stamp.sequence);
            (header.dtype, header.host_flags.last) = (ELEMENT.dtype(), last);
            let start = header.emit(buf);
            let (count, payload) = (values.len(), &mut buf[start..]);
            packet::write_values(ELEMENT, Some(values), count, &[], payload).behind(start)
        }
        Body::Request(request) => {
            let start = header.emit(buf);
            Written::whole(start + request.emit(&mut buf[start..]))
        }
        Body::Notice => {
            (header.slot, header.host_flags.last) = (outgoing.slots, true);
            let start = header.emit(buf);
            feedback(Queues::default(), true).emit(&mut buf[start..]);
            Written::whole(start + Feedback::LEN)
        }
        Body::Congestion(queues, echoed) => {
            header.echoed = echoed;
            let start = header.emit(buf);
            feedback(queues, false).emit(&mut buf[start..]);
            Written::whole(start + Feedback::LEN)
        }
    }
}
