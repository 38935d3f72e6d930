//! The trace of a packet, which serde writes as JSON and `Display` as text.
//!
//! Names are those of the compiled program: `ethernet.dst` for `hdr.ethernet.dst`. Metadata of the program, which p4c moves to
//! `scalars`, has no struct name.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::super::octets::{Octets, plural};
use super::super::outcome::DropCause;

/// Version of the JSON document. It changes when a member is removed or changes its meaning.
pub const VERSION: u32 = 2;

/// The trace of a packet.
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

/// An event with its copy, time and source position.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// 0 for the packet that entered, else the number of one of its copies.
    pub copy: u16,
    /// Microseconds since the switch started.
    pub at_us: u64,
    /// 1 for a stage such as ingress, 2 for its steps, 3 for a step's own.
    pub depth: u8,
    /// The event. Further lines have details of the first.
    pub text: String,
    /// The position in the P4 source, if the compiler recorded it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
}

/// A position in the P4 source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// The file, as given to the compiler.
    pub file: String,
    /// Counted from 1.
    pub line: u32,
    /// The source text, shortened by the compiler.
    pub text: String,
}

/// Why a copy was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Origin {
    /// The packet itself, for `egress_spec`.
    Unicast,
    /// A replica of a multicast group.
    Multicast {
        /// The group's id.
        group: u32,
    },
    /// A clone, from ingress or egress.
    Clone {
        /// The session's id.
        session: u32,
    },
}

/// The outcome of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// It left its port.
    Left,
    /// The program or a limit of the switch dropped it.
    Dropped,
    /// It was recirculated, and ended there.
    Recirculated,
    /// The queue of its port was full.
    QueueFull,
    /// The port's wire lost it.
    LostOnWire,
    /// The port had no peer.
    NoPeer,
    /// It was longer than the medium's MTU.
    Oversize,
    /// The port does not exist.
    NoPort,
    /// Another program was committed while it was queued.
    Reconfigured,
    /// Still queued or on the wire when its port was removed.
    PortRemoved,
    /// It was in flight when the trace ended.
    UnderWay,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Unicast => f.write_str("unicast"),
            Origin::Multicast { group } => write!(f, "multicast group {group}"),
            Origin::Clone { session } => write!(f, "clone session {session}"),
        }
    }
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fate::Left => "left the port",
            Fate::Dropped => "gone in egress",
            Fate::Recirculated => "went through ingress again",
            Fate::QueueFull => "dropped: the queue is full",
            Fate::LostOnWire => "lost on the wire",
            Fate::NoPeer => "dropped: no peer is attached to the port",
            Fate::Oversize => "dropped: longer than the port's medium carries",
            Fate::NoPort => "dropped: there is no such port",
            Fate::Reconfigured => "dropped: another program was committed while it was queued",
            Fate::PortRemoved => "lost: the port was removed before it had left",
            Fate::UnderWay => "still under way when the trace ended",
        })
    }
}

/// Prints the packet first, then each copy, in the order of their numbers.
impl fmt::Display for PacketTrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, micros) = (self.at_us / 1_000_000, self.at_us % 1_000_000);
        let bytes = plural(self.frame.0.len() as u64, "byte");
        writeln!(f, "{bytes} at port {}, {seconds}.{micros:06} s", self.port)?;
        self.frame.dump(f)?;
        self.events(f, 0)?;
        for copy in &self.copies {
            write!(f, "copy {}", copy.copy)?;
            if copy.of > 0 {
                write!(f, " of copy {}", copy.of)?;
            }
            writeln!(
                f,
                ": to port {}{}, {}",
                copy.port,
                as_rid(copy.rid),
                copy.origin
            )?;
            self.events(f, copy.copy)?;
            if let Some(frame) = &copy.frame {
                frame.dump(f)?;
            }
            if copy.fate == Fate::UnderWay {
                writeln!(f, "  {}", copy.fate)?;
            }
        }
        match self.omitted {
            0 => Ok(()),
            omitted => writeln!(f, "{omitted} events were too many"),
        }
    }
}

impl PacketTrace {
    /// Prints the events of the packet (0) or of one of its copies.
    fn events(&self, f: &mut fmt::Formatter<'_>, copy: u16) -> fmt::Result {
        for step in self.events.iter().filter(|step| step.copy == copy) {
            let indent = usize::from(step.depth) * 2;
            for (at, line) in step.text.lines().enumerate() {
                write!(f, "{:indent$}{line}", "")?;
                match &step.source {
                    Some(source) if at == 0 => writeln!(f, "  [{}:{}]", source.file, source.line)?,
                    _ => writeln!(f)?,
                }
            }
        }
        Ok(())
    }
}

/// Returns the end of a port's name for a copy with a replication id.
pub(super) fn as_rid(rid: u16) -> String {
    match rid {
        0 => String::new(),
        rid => format!(" as RID {rid}"),
    }
}
