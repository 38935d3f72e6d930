//! One packet's way through the switch, for people and for programs.
//!
//! A [`PacketTrace`] is all that parser, tables, actions, traffic manager and deparser did for one
//! packet and its copies. As JSON it is what serde makes of it; [`text`] is for reading.
//!
//! [`Bench`] traces packets through a program that no switch runs; a running switch does it over
//! gRPC (`proto/ultima/switch/v1/trace.proto`).

mod bench;
mod text;
pub(crate) mod tracer;

use serde::{Deserialize, Serialize};

pub use crate::engine::trace::{
    Arrival, Call, Counted, Event, Fate, KeyField, MAX_COPIES, MAX_EVENTS, Matched, Named, Octets,
    Origin, Source, Step, Value, Via,
};
pub use bench::{Bench, BenchError};
pub use text::text;

use crate::engine::DropCause;
use crate::engine::trace::Recorder;

/// The version of the document that a trace is in JSON; it changes when something is removed from
/// it or means something else.
pub const VERSION: u32 = 1;

/// What happened to a packet that entered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PacketTrace {
    /// [`VERSION`].
    pub version: u32,
    /// Port at which it entered.
    pub port: u16,
    /// Microseconds since the switch started.
    pub at_us: u64,
    /// As it entered.
    pub frame: Octets,
    /// Why ingress ordered no copy for the packet itself; left out if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dropped: Option<DropCause>,
    /// Whether all copies were followed to their end, and no event is missing.
    pub complete: bool,
    /// Events that were too many, or too large, to keep.
    pub omitted: u64,
    /// The copies that were followed, by number.
    pub copies: Vec<CopyTrace>,
    /// What happened, in order of time.
    pub events: Vec<Step>,
}

/// What became of a copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyTrace {
    /// Its number, from 1.
    pub copy: u16,
    /// The copy that it was ordered for, 0 for the packet that entered.
    pub of: u16,
    /// Egress port.
    pub port: u16,
    /// Replication id.
    pub rid: u16,
    /// Why it was ordered.
    #[serde(flatten)]
    pub origin: Origin,
    /// What became of it.
    pub fate: Fate,
    /// Why egress dropped it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<DropCause>,
    /// The frame that left the deparser; left out when there is too much to keep.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frame: Option<Octets>,
}

impl PacketTrace {
    /// Puts together what was recorded of a packet.
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
