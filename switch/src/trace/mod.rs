//! Packet traces.
//!
//! A [`PacketTrace`] records everything that parser, tables, actions, traffic manager and deparser did for one packet and its
//! copies. serde writes it as JSON; [`text`] prints it for people.
//!
//! A [`PacketLog`] receives the trace of every packet. [`Bench`] traces packets through a program without a switch. A running switch serves traces over gRPC
//! (`proto/ultima/switch/v1/trace.proto`).

mod bench;
mod log;
mod text;
pub(crate) mod tracer;

use serde::{Deserialize, Serialize};

pub use crate::engine::trace::{
    Arrival, Call, Counted, Event, Fate, KeyField, MAX_COPIES, MAX_EVENTS, Matched, Named, Octets,
    Origin, Source, Step, Value, Via,
};
pub use bench::{Bench, BenchError};
pub use log::{LogEntry, PacketLog};
pub use text::text;

use crate::engine::DropCause;
use crate::engine::trace::Recorder;

/// Version of the JSON document. It changes when a member is removed or changes its meaning.
pub const VERSION: u32 = 1;

/// The trace of a packet that entered the switch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PacketTrace {
    /// [`VERSION`].
    pub version: u32,
    /// Port at which it entered.
    pub port: u16,
    /// Microseconds since the switch started.
    pub at_us: u64,
    /// The frame on arrival.
    pub frame: Octets,
    /// Why ingress made no copy of the packet itself; absent if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dropped: Option<DropCause>,
    /// True if all copies were followed to their end and no event is missing.
    pub complete: bool,
    /// Number of events that were too many or too large to keep.
    pub omitted: u64,
    /// The copies that were followed, by number.
    pub copies: Vec<CopyTrace>,
    /// Events in order of time.
    pub events: Vec<Step>,
}

/// A copy and its outcome.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyTrace {
    /// Its number, from 1.
    pub copy: u16,
    /// Number of the copy from which it was made; 0 is the packet that entered.
    pub of: u16,
    /// Egress port.
    pub port: u16,
    /// Replication id.
    pub rid: u16,
    /// Why it was made.
    #[serde(flatten)]
    pub origin: Origin,
    /// The outcome.
    pub fate: Fate,
    /// Why egress dropped it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<DropCause>,
    /// The deparsed frame; absent if the trace is too large.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frame: Option<Octets>,
}

impl PacketTrace {
    /// Returns the trace of a recorded packet.
    fn new(port: u16, at_us: u64, frame: Vec<u8>, recorder: Recorder) -> PacketTrace {
        let (events, omitted) = recorder.into_steps();
        let mut trace = PacketTrace {
            version: VERSION,
            port,
            at_us,
            frame: Octets(frame),
            dropped: None,
            complete: omitted == 0,
            omitted,
            copies: Vec::new(),
            events: Vec::new(),
        };
        for step in &events {
            trace.sum_up(step);
        }
        trace.complete &= trace.copies.iter().all(|copy| copy.fate != Fate::UnderWay);
        trace.events = events;
        trace
    }

    fn sum_up(&mut self, step: &Step) {
        match &step.event {
            // More copies than are followed.
            Event::Ordered { number: 0, .. } => self.complete = false,
            Event::Ordered {
                number,
                port,
                rid,
                origin,
            } => self.copies.push(CopyTrace {
                copy: *number,
                of: step.copy,
                port: *port,
                rid: *rid,
                origin: *origin,
                fate: Fate::UnderWay,
                cause: None,
                frame: None,
            }),
            Event::Dropped { cause } => match self.copy(step.copy) {
                Some(copy) => copy.cause = Some(*cause),
                None => self.dropped = Some(*cause),
            },
            Event::Deparse { frame, .. } => {
                if let Some(copy) = self.copy(step.copy) {
                    copy.frame.clone_from(frame);
                }
            }
            Event::Fate { fate } => {
                if let Some(copy) = self.copy(step.copy) {
                    copy.fate = *fate;
                }
            }
            _ => {}
        }
    }

    fn copy(&mut self, number: u16) -> Option<&mut CopyTrace> {
        // They are numbered from 1 in the order in which they come.
        self.copies.get_mut(usize::from(number).checked_sub(1)?)
    }
}
