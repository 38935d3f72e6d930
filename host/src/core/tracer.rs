//! Passes records to a trace sink, if there is one.

use ultima_wire::Header;

use crate::operation::OperationId;
use crate::time::Time;
use crate::trace::{Fate, Happened, Record, Sink};

use super::{Destination, operation_of};

/// The destination of a core's records.
#[derive(Default)]
pub(super) struct Tracer {
    rank: u16,
    sink: Option<Box<dyn Sink>>,
}

impl Tracer {
    pub(super) fn new(rank: u16, sink: Box<dyn Sink>) -> Self {
        Self {
            rank,
            sink: Some(sink),
        }
    }

    /// Records an event. It is built only if there is a sink.
    pub(super) fn record(
        &mut self,
        time: Time,
        id: OperationId,
        happened: impl FnOnce() -> Happened,
    ) {
        if let Some(sink) = &mut self.sink {
            sink.record(&Record {
                time,
                rank: self.rank,
                step: id.step,
                bucket: id.bucket,
                happened: happened(),
            });
        }
    }

    /// Records a sent packet, whose bytes begin with `head`.
    pub(super) fn sent(&mut self, time: Time, to: Destination, head: &[u8]) {
        if self.sink.is_none() {
            return;
        }
        if let Ok((header, _)) = Header::parse(head) {
            self.record(time, operation_of(&header), || Happened::Sent {
                kind: header.kind.into(),
                to: match to {
                    Destination::Rank(rank) => Some(rank),
                    Destination::Group => None,
                },
                owner: header.owner,
                slot: header.slot,
                last: header.host_flags.last,
            });
        }
    }

    /// Records a received packet and its fate.
    pub(super) fn received(&mut self, time: Time, header: &Header, fate: Fate) {
        self.record(time, operation_of(header), || Happened::Received {
            kind: header.kind.into(),
            source: header.source,
            owner: header.owner,
            slot: header.slot,
            contributions: header.contributions,
            last: header.host_flags.last,
            fate,
        });
    }
}
