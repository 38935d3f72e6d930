//! What a trace tells.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use ultima_wire::Kind;

use crate::operation::OperationId;
use crate::stats::ClosedBy;
use crate::time::Time;

/// Something that happened at one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// When, in nanoseconds on the driver's clock. What came before its operation started here has the time when it
    /// came, but is told at the start.
    pub time: Time,
    /// At which rank.
    pub rank: u16,
    /// In which step's operation.
    pub step: u32,
    /// And which bucket's.
    pub bucket: u16,
    /// What.
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

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Happened {
    /// An operation started, with these bounds, in nanoseconds from here.
    Started {
        /// Values of its encoded bucket.
        values: u64,
        /// When the own shard closes with what is there.
        #[serde(with = "ns")]
        t_s: Duration,
        /// When the operation ends.
        #[serde(with = "ns")]
        t_b: Duration,
        /// How long the rest of the others' contributions may take once all have sent one of their last (*x* % of t_C).
        #[serde(with = "maybe_ns")]
        t_c_scatter: Option<Duration>,
        /// The same of aggregates.
        #[serde(with = "maybe_ns")]
        t_c_gather: Option<Duration>,
    },
    /// A packet went to the driver.
    Sent {
        /// Which kind.
        kind: PacketKind,
        /// To whom; null is everyone.
        to: Option<u16>,
        /// Whose shard it is about.
        owner: u16,
        /// Which slot of it.
        slot: u32,
        /// One of the sender's last of its phase.
        last: bool,
    },
    /// A packet came.
    Received {
        /// Which kind.
        kind: PacketKind,
        /// Who sent it.
        source: u16,
        /// Whose shard it is about.
        owner: u16,
        /// Which slot of it.
        slot: u32,
        /// Contributions in it.
        contributions: u16,
        /// One of the sender's last of its phase.
        last: bool,
        /// What became of it.
        fate: Fate,
    },
    /// A slot of the own shard closed.
    SlotClosed {
        /// Which.
        slot: u32,
        /// Contributions in it, the own one included.
        contributions: u16,
        /// By what.
        by: ClosedBy,
    },
    /// A bound passed while something was awaited.
    Timer {
        /// Which.
        timer: Timer,
    },
    /// The operation ended.
    Ended {
        /// By what.
        by: ClosedBy,
        /// What closed the worst of the own shard's slots.
        shard: ClosedBy,
        /// Contributions that the own shard lacks.
        lost_contributions: u64,
        /// Aggregates of the others that are missing.
        lost_aggregates: u64,
    },
    /// Records before this one are not in the trace, for its writer did not keep up.
    Dropped {
        /// How many.
        records: u64,
    },
}

/// A packet's kind: [`Kind`], as traces have it.
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

/// What became of a packet that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fate {
    /// It counted.
    InTime,
    /// Its slot had closed, or its operation had ended.
    Late,
    /// It had come before.
    Duplicate,
    /// A switch cut its payload because the queue onward was full.
    CutTrimmed,
    /// A switch cut its payload because its budget had run out.
    CutLate,
    /// It says something of its sender, and carries no values.
    Heard,
    /// It contradicts what this rank knows.
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

/// The same where there may be none.
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
