//! Exact operations: what is lost is asked for until it is there, and what is not all there is no result.
//!
//! The two phases are the bounded operation's: contributions go to owners, aggregates to everyone, in the same packets
//! with the flag EXACT. Only a slot never closes without all of its contributions, and nothing is taken for zero: an
//! owner asks sources, a receiver owners (CONTROL), at once when something is known to be gone and after a while when
//! nothing comes, then twice as long each time, until it is here or the operation's limit has passed, which is an
//! error.
//!
//! A rank that has the result says so (FEEDBACK) and goes on answering until all others said so too, or have
//! started a later step, or its limit has passed once more: an operation that all contribute to ends nowhere before it
//! has started everywhere, so that whoever lacks something of it has given up by then.
//!
//! | file | what it knows |
//! | --- | --- |
//! | `operation.rs` | one operation: states, packets, its end |
//! | `want.rs` | what one rank still has to deliver, and when it is asked for |
//! | `answer.rs` | what one rank asked for, and how often it gets it |

mod answer;
mod operation;
mod want;

use std::time::Duration;

use ultima_wire::{Feedback, Header, HostFlags, Kind, RepairRequest, Ticks};

use crate::config::Config;
use crate::element::Element;
use crate::exact::{Exact, ExactCounters, ExactOutcome, Incomplete};
use crate::operation::OperationId;
use crate::stats::{Phases, Rejection};
use crate::time::Time;

use super::Destination;
use super::congestion::{Queues, Told};
use super::packet::{self, Payload, Written};
use operation::{Body, ExactOperation, Outgoing};

/// What values are on the wire, whatever the job's buckets are: nothing is rounded.
const ELEMENT: Element = Element::F32;

/// A result, or why there is none.
pub(super) type Ended = Result<(ExactOutcome, Vec<f32>), Incomplete>;

/// The exact operations that were started and may still be needed.
#[derive(Default)]
pub(super) struct ExactOperations {
    operations: Vec<ExactOperation>,
    counters: ExactCounters,
}

/// A packet that was written.
pub(super) struct Sent {
    pub(super) kind: Kind,
    pub(super) to: Destination,
    pub(super) written: Written,
}

impl ExactOperations {
    pub(super) fn start(
        &mut self,
        config: &Config,
        what: (OperationId, Exact, u16),
        values: Vec<f32>,
        limit: Duration,
        now: Time,
    ) {
        let operation = ExactOperation::new(config, what, values, limit, now);
        self.operations.push(operation);
    }

    pub(super) fn counters(&self) -> ExactCounters {
        self.counters
    }

    /// Packets of operations that are not over.
    pub(super) fn phases(&self) -> impl Iterator<Item = &Phases> {
        self.operations.iter().map(ExactOperation::phases)
    }

    /// One that has not ended.
    pub(super) fn running(&self) -> Option<OperationId> {
        let running = self.operations.iter().find(|o| o.is_running())?;
        Some(running.id)
    }

    pub(super) fn contains(&self, id: OperationId) -> bool {
        self.operations.iter().any(|o| o.id == id)
    }

    /// A packet came of a bounded operation with the same id.
    pub(super) fn differs(&mut self, id: OperationId, source: u16) {
        self.operations
            .iter_mut()
            .filter(|o| o.id == id)
            .for_each(|o| o.differs(source));
    }

    /// Takes a packet with the flag EXACT of an operation that is here; false if it is not.
    pub(super) fn receive(
        &mut self,
        now: Time,
        id: OperationId,
        header: &Header,
        payload: Payload<'_>,
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

    /// A rank asks for what did not come.
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

    /// What ended since this was last called.
    pub(super) fn settle(&mut self, now: Time) -> Option<(OperationId, Ended)> {
        let mut ended = self.operations.iter_mut();
        let (id, ended) = ended.find_map(|o| Some((o.id, o.settle(now)?)))?;
        match &ended {
            Ok(_) => self.counters.complete += 1,
            Err(_) => self.counters.incomplete += 1,
        }
        Some((id, ended))
    }

    /// Forgets what nobody needs any more; returns the packets counted.
    pub(super) fn retire(&mut self, now: Time, past: impl Fn(u16, u32) -> bool) -> Phases {
        let over = |o: &mut ExactOperation| o.is_over(now, |rank| past(rank, o.id.step));
        let mut phases = Phases::default();
        for operation in self.operations.extract_if(.., over) {
            phases += operation.into_phases();
        }
        phases
    }

    /// Forgets everything.
    pub(super) fn shut_down(&mut self) -> Phases {
        let mut phases = Phases::default();
        for operation in self.operations.drain(..) {
            phases += operation.into_phases();
        }
        phases
    }

    /// An operation of a later step starts.
    pub(super) fn stop_repeating(&mut self) {
        self.operations
            .iter_mut()
            .for_each(ExactOperation::stop_repeating);
    }

    /// When [`ExactOperations::settle`] or [`ExactOperations::retire`] is due.
    pub(super) fn due(&self) -> Option<Time> {
        self.operations.iter().map(ExactOperation::due).min()
    }

    /// When there is something to send, if nothing else happens.
    pub(super) fn ready_at(&self) -> Option<Time> {
        self.operations
            .iter()
            .filter_map(ExactOperation::ready_at)
            .min()
    }

    /// When nobody who lives can need anything of them any more; none where nobody does.
    pub(super) fn needed_until(&self, past: impl Fn(u16, u32) -> bool) -> Option<Time> {
        let until = |o: &ExactOperation| o.needed_until(|rank| past(rank, o.id.step));
        self.operations.iter().filter_map(until).max()
    }

    /// Whether others may be waiting for something that only this rank has.
    pub(super) fn may_be_needed(&self, past: impl Fn(u16, u32) -> bool) -> bool {
        let needed = |o: &ExactOperation| o.may_be_needed(|rank| past(rank, o.id.step));
        self.operations.iter().any(needed)
    }

    /// Writes what is told of queues, as a packet of an operation that runs, to the front of `buf`.
    pub(super) fn tell(
        &self,
        config: &Config,
        when: (Time, u8),
        told: &Told,
        buf: &mut [u8],
    ) -> Option<Written> {
        let operation = self.operations.iter().find(|o| o.is_running())?;
        let outgoing = operation.told(told);
        Some(write(config, when, operation.id, &outgoing, buf).1)
    }

    /// Writes the next packet to the front of `buf`.
    pub(super) fn transmit(
        &mut self,
        config: &Config,
        (now, incast): (Time, u8),
        past: impl Fn(u16, u32) -> bool,
        buf: &mut [u8],
    ) -> Option<Sent> {
        let room = packet::request_room(config);
        let counters = &mut self.counters;
        self.operations.iter_mut().find_map(|operation| {
            let id = operation.id;
            let past = |rank| past(rank, id.step);
            let outgoing = operation.transmit(now, room, past, counters)?;
            let (kind, written) = write(config, (now, incast), id, &outgoing, buf);
            let to = outgoing.to;
            Some(Sent { kind, to, written })
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

/// Writes a packet, which says how many senders at once this rank can take, to the front of `buf`.
fn write(
    config: &Config,
    (now, incast): (Time, u8),
    id: OperationId,
    outgoing: &Outgoing<'_>,
    buf: &mut [u8],
) -> (Kind, Written) {
    let kind = match outgoing.body {
        Body::Values { kind, .. } => kind,
        Body::Request(_) => Kind::Control,
        Body::Notice | Body::Told(..) => Kind::Feedback,
    };
    let mut header = Header {
        // It is never too late.
        budget: Ticks::MAX,
        step: id.step,
        bucket: id.bucket,
        host_flags: HostFlags {
            exact: true,
            ..HostFlags::default()
        },
        slots: outgoing.slots,
        incast,
        ..packet::header(config, now, kind, outgoing.owner)
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
            (header.dtype, header.host_flags.last) = (ELEMENT.dtype(), last);
            let start = header.emit(buf);
            let values = (Some(values), values.len());
            let written = packet::write_values(ELEMENT, values, &[], &mut buf[start..]);
            (kind, written.behind(start))
        }
        Body::Request(request) => {
            let start = header.emit(buf);
            (
                kind,
                Written::whole(start + request.emit(&mut buf[start..])),
            )
        }
        Body::Notice => {
            (header.slot, header.host_flags.last) = (outgoing.slots, true);
            let start = header.emit(buf);
            feedback(Queues::default(), true).emit(&mut buf[start..]);
            (kind, Written::whole(start + Feedback::LEN))
        }
        Body::Told(queues, echoed) => {
            header.echoed = echoed;
            let start = header.emit(buf);
            feedback(queues, false).emit(&mut buf[start..]);
            (kind, Written::whole(start + Feedback::LEN))
        }
    }
}
