//! The records of a trace.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use ultima_wire::Kind;

use crate::operation::OperationId;
use crate::stats::ClosedBy;
use crate::time::Time;

/// An event at one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Time in nanoseconds on the driver's clock. A packet that arrived before its operation started here has
    /// its arrival time, but is recorded at the start.
    pub time: Time,
    /// The rank.
    pub rank: u16,
    /// The operation's step.
    pub step: u32,
    /// The operation's bucket.
    pub bucket: u16,
    /// The event.
    #[serde(flatten)]
    pub happened: Happened,
}

impl Record {
    /// The operation.
    pub fn id(&self) -> OperationId {
        let Record { step, bucket, .. } = *self;
        OperationId { step, bucket }
    }
}

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Happened {
    /// An operation started, with its bounds in nanoseconds from here.
    Started {
        /// Values in its encoded bucket.
        values: u64,
        /// The time at which the own shard closes with the contributions that arrived.
        #[serde(with = "ns")]
        t_s: Duration,
        /// The time at which the operation ends.
        #[serde(with = "ns")]
        t_b: Duration,
        /// Time for missing contributions once all ranks have sent one of their last (*x* % of t_C).
        #[serde(with = "maybe_ns")]
        t_c_scatter: Option<Duration>,
        /// The same for aggregates.
        #[serde(with = "maybe_ns")]
        t_c_gather: Option<Duration>,
    },
    /// A packet was handed to the driver.
    Sent {
        /// Its kind.
        kind: PacketKind,
        /// The receiver; null for all.
        to: Option<u16>,
        /// The owner of its shard.
        owner: u16,
        /// Its slot.
        slot: u32,
        /// True for one of the sender's last packets of its phase.
        last: bool,
    },
    /// A packet arrived.
    Received {
        /// Its kind.
        kind: PacketKind,
        /// Its sender.
        source: u16,
        /// The owner of its shard.
        owner: u16,
        /// Its slot.
        slot: u32,
        /// Number of contributions in it.
        contributions: u16,
        /// True for one of the sender's last packets of its phase.
        last: bool,
        /// Its fate.
        fate: Fate,
    },
    /// A slot of the own shard closed.
    SlotClosed {
        /// The slot.
        slot: u32,
        /// Number of contributions in it, including the own one.
        contributions: u16,
        /// The cause of the close.
        by: ClosedBy,
    },
    /// A bound passed while packets were outstanding.
    Timer {
        /// The bound.
        timer: Timer,
    },
    /// The operation ended.
    Ended {
        /// The cause of the end.
        by: ClosedBy,
        /// The worst cause among the own shard's slots.
        shard: ClosedBy,
        /// Contributions missing from the own shard.
        lost_contributions: u64,
        /// Aggregates missing from other ranks.
        lost_aggregates: u64,
    },
    /// The writer was too slow, so the trace lacks records before this one.
    Dropped {
        /// Their number.
        records: u64,
    },
}

/// A packet's kind: [`Kind`], as in traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "they are ultima_wire's")]
pub enum PacketKind {
    Scatter,
    Gather,
    Feedback,
    Probe,
    Report,
    Repair,
    Control,
}

impl From<Kind> for PacketKind {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Scatter => PacketKind::Scatter,
            Kind::Gather => PacketKind::Gather,
            Kind::Feedback => PacketKind::Feedback,
            Kind::Probe => PacketKind::Probe,
            Kind::Report => PacketKind::Report,
            Kind::Repair => PacketKind::Repair,
            Kind::Control => PacketKind::Control,
        }
    }
}

/// The fate of a received packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fate {
    /// It counted.
    InTime,
    /// Its slot had closed, or its operation had ended.
    Late,
    /// It had arrived before.
    Duplicate,
    /// A switch removed its payload because the queue was full (TRIMMED).
    #[serde(rename = "cut-trimmed")]
    Trimmed,
    /// A switch removed its payload because its budget was used up (LATE).
    #[serde(rename = "cut-late")]
    MarkedLate,
    /// It carries no values, only information about its sender.
    Heard,
    /// It contradicts this rank's state.
    Refused,
}

/// A bound of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Timer {
    /// t_S.
    Flush,
    /// *x* % of t_C, of contributions.
    EarlyScatter,
    /// *x* % of t_C, of aggregates.
    EarlyGather,
    /// t_B.
    Deadline,
}

/// Durations as nanoseconds.
mod ns {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(span: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_nanos)
    }
}

/// The same for optional durations.
mod maybe_ns {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(span: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
        match span {
            Some(span) => super::ns::serialize(span, to),
            None => to.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<u64>::deserialize(from)?.map(Duration::from_nanos))
    }
}
