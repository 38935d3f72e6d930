//! The events of a trace, which serde writes as JSON.
//!
//! Names are those of the compiled program: `ethernet.dst` for `hdr.ethernet.dst`. Metadata of the program, which p4c moves to
//! `scalars`, has no struct name.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::super::DropCause;
use super::value::{Octets, Value};

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

/// A named value: a field of a header, a parameter of an action.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    /// The name.
    pub name: String,
    /// The value, unsigned.
    pub value: Value,
}

/// Why a packet passes ingress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arrival {
    /// It arrived at a port.
    Entered,
    /// `resubmit`, from ingress, with the frame on arrival.
    Resubmitted,
    /// `recirculate`, from egress, with the deparsed frame.
    Recirculated,
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

/// A match field of a table's key, with the packet's value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyField {
    /// Its P4Info name.
    pub name: String,
    /// `exact`, `lpm`, `ternary`, `range` or `optional`.
    pub kind: String,
    /// The packet's value.
    pub value: Value,
    /// The entry's match; absent on a miss or if the entry matches any value.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub matched: Option<Matched>,
}

/// An entry's match on a field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Matched {
    /// The first bits of a value.
    Prefix {
        /// The prefix, the other bits zero.
        prefix: Value,
        /// Length of the prefix.
        prefix_len: u32,
    },
    /// Some bits of a value.
    Masked {
        /// The value.
        entry: Value,
        /// The mask.
        mask: Value,
    },
    /// A range.
    Range {
        /// Lowest value.
        low: Value,
        /// Highest value.
        high: Value,
    },
    /// A value.
    Equal {
        /// The value.
        entry: Value,
    },
}

/// The target of an entry in a table with an action profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Via {
    /// A member.
    Member {
        /// Its id.
        member: u32,
    },
    /// A group, from which the selector picks a member.
    Group {
        /// Its id.
        group: u32,
    },
    /// A one-shot set, from which the selector picks an action.
    Set,
}

impl fmt::Display for Via {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Via::Member { member } => write!(f, "member {member}"),
            Via::Group { group } => write!(f, "group {group}"),
            Via::Set => f.write_str("the entry's set"),
        }
    }
}

/// An action with its arguments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// Its P4 name.
    pub name: String,
    /// Parameters in order.
    pub params: Vec<Named>,
}

/// Packets and bytes of a counter cell, including this packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

/// An event in the processing of a packet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A pass through parser and ingress starts.
    Ingress {
        /// Why the packet passes ingress.
        arrival: Arrival,
        /// The ingress port; absent if it did not arrive at a port.
        #[serde(skip_serializing_if = "Option::is_none")]
        port: Option<u16>,
        /// Length of the frame.
        bytes: usize,
    },
    /// The parser enters a state.
    State {
        /// Its name.
        name: String,
        /// Bytes of the frame consumed before.
        at: usize,
    },
    /// The parser extracts a header.
    Extract {
        /// Its name.
        header: String,
        /// Where it starts in the frame.
        at: usize,
        /// Its length.
        bytes: usize,
        /// Its fields in order.
        fields: Vec<Named>,
    },
    /// The parser skips bytes.
    Advance {
        /// How many.
        bytes: usize,
    },
    /// The parser chooses the next state.
    Select {
        /// The key; empty for an unconditional transition.
        key: Vec<Named>,
        /// The case that was taken: `default`, a value, a value under a mask, or a value set's name.
        case: String,
        /// The next state; `accept` at the parser's end.
        next: String,
    },
    /// An error ends the parser. The packet continues to ingress with `parser_error` set.
    ParserError {
        /// The program's name for it.
        error: String,
        /// Bytes consumed before.
        at: usize,
    },
    /// The parser ends.
    Parsed {
        /// Bytes consumed.
        bytes: usize,
        /// Bytes of the frame that are left.
        payload: usize,
    },
    /// A checksum is verified.
    Verify {
        /// The field that holds it.
        field: String,
        /// The packet's checksum.
        value: Value,
        /// The correct checksum.
        computed: Value,
    },
    /// A condition of the program.
    Condition {
        /// The compiler's name for it.
        name: String,
        /// The result.
        holds: bool,
    },
    /// A table is applied.
    Table {
        /// Its P4 name.
        name: String,
        /// The key, with the matching entry's match on each field.
        key: Vec<KeyField>,
        /// True if an entry matched.
        hit: bool,
        /// The entry's priority, if the table has priorities.
        #[serde(skip_serializing_if = "Option::is_none")]
        priority: Option<i32>,
        /// The member or group of the action, in a table with an action profile.
        #[serde(skip_serializing_if = "Option::is_none")]
        via: Option<Via>,
        /// The executed action; absent on a miss in a table with an action profile, and for a group without a live member.
        #[serde(skip_serializing_if = "Option::is_none")]
        action: Option<Call>,
        /// The entry's direct counter, or that of the default entry.
        #[serde(skip_serializing_if = "Option::is_none")]
        counter: Option<Counted>,
    },
    /// Statements of a control outside tables.
    Statements {
        /// The compiler's name for them.
        name: String,
    },
    /// A field is written.
    Write {
        /// Header and field.
        field: String,
        /// The value before.
        old: Value,
        /// The value after.
        new: Value,
        /// True if the header is not valid, so that the packet will not contain the field.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        invalid: bool,
    },
    /// A header becomes valid or invalid.
    Validity {
        /// Its name.
        header: String,
        /// The value after.
        valid: bool,
    },
    /// A counter counts.
    Count {
        /// Its P4 name.
        counter: String,
        /// The cell.
        index: Value,
        /// The cell's counts; absent outside the array.
        #[serde(skip_serializing_if = "Option::is_none")]
        cell: Option<Counted>,
    },
    /// A meter is executed; the colour is written to a field.
    Meter {
        /// Its P4 name; absent for the direct meter of the last table.
        #[serde(skip_serializing_if = "Option::is_none")]
        meter: Option<String>,
        /// The cell; absent for a direct meter.
        #[serde(skip_serializing_if = "Option::is_none")]
        index: Option<Value>,
        /// 0 green, 1 yellow, 2 red; absent outside the array.
        #[serde(skip_serializing_if = "Option::is_none")]
        color: Option<u8>,
    },
    /// A register is read.
    RegisterRead {
        /// Its P4 name.
        register: String,
        /// The cell.
        index: Value,
        /// The value; absent outside the array.
        #[serde(skip_serializing_if = "Option::is_none")]
        value: Option<Value>,
    },
    /// A register is written.
    RegisterWrite {
        /// Its P4 name.
        register: String,
        /// The cell.
        index: Value,
        /// The value before; absent outside the array.
        #[serde(skip_serializing_if = "Option::is_none")]
        old: Option<Value>,
        /// The value after; absent outside the array.
        #[serde(skip_serializing_if = "Option::is_none")]
        new: Option<Value>,
    },
    /// A hash is computed; the result is written to a field.
    Hash {
        /// The compiler's name for the calculation.
        calculation: String,
    },
    /// `clone`, `resubmit`, `recirculate`, `truncate`, `random`, `mark_to_drop` or `exit` is
    /// called.
    Primitive {
        /// Its name.
        name: String,
        /// Session, or length.
        #[serde(skip_serializing_if = "Option::is_none")]
        argument: Option<Value>,
    },
    /// `digest`: values for the controller, if it has enabled them.
    Digest {
        /// The digest's P4Info id.
        digest: u32,
        /// The values in order.
        values: Vec<Value>,
    },
    /// `assert` or `assume`.
    Assert {
        /// The result. If false, the packet is dropped.
        holds: bool,
    },
    /// `log_msg`.
    Log {
        /// The text with its values.
        text: String,
    },
    /// A clone to a session that does not exist or has no replicas.
    NoSession {
        /// The session's id.
        session: u32,
    },
    /// A copy for a port is made.
    Ordered {
        /// Its number in this trace; 0 if there are too many copies to follow.
        number: u16,
        /// Egress port.
        port: u16,
        /// Replication id.
        rid: u16,
        /// The reason.
        #[serde(flatten)]
        origin: Origin,
    },
    /// Clones beyond the limits on passes or descendants.
    CloneRefused {
        /// Number of replicas that were not made.
        replicas: usize,
    },
    /// Replicas beyond the limit on descendants.
    ReplicasRefused {
        /// Number of replicas that were not made.
        replicas: usize,
    },
    /// A copy leaves its queue, and egress starts.
    Egress {
        /// Egress port.
        port: u16,
        /// Replication id.
        rid: u16,
        /// Number of packets in the queue before it.
        depth: u32,
        /// Microseconds in the queue.
        queued_us: u32,
    },
    /// The traffic manager marks the packet with ECN's Congestion Experienced.
    CongestionExperienced,
    /// A checksum is updated.
    Update {
        /// The field that holds it.
        field: String,
        /// The value before.
        old: Value,
        /// The value after.
        new: Value,
    },
    /// The deparser builds the frame.
    Deparse {
        /// Headers in order.
        headers: Vec<String>,
        /// Bytes of payload.
        payload: usize,
        /// Bytes removed by truncation.
        cut: usize,
        /// Length of the frame.
        bytes: usize,
        /// The frame; absent if the trace is too large.
        #[serde(skip_serializing_if = "Option::is_none")]
        frame: Option<Octets>,
    },
    /// The program or a limit of the switch drops the packet.
    Dropped {
        /// The reason.
        cause: DropCause,
    },
    /// The outcome of a copy.
    Fate {
        /// The outcome.
        fate: Fate,
    },
}

impl Event {
    /// Returns the approximate size of the event's values, in bytes.
    pub(super) fn weight(&self) -> usize {
        let all = |values: &[Named]| values.iter().map(|named| named.value.len()).sum();
        match self {
            Event::Extract { fields, .. } => all(fields),
            Event::Select { key, .. } => all(key),
            Event::Table { action, key, .. } => {
                let key: usize = key.iter().map(|field| field.value.len()).sum();
                // The entry has as much again, or twice that.
                action.as_ref().map_or(0, |call| all(&call.params)) + 3 * key
            }
            Event::Write { old, new, .. } => old.len() + new.len(),
            Event::RegisterWrite { old, new, .. } => [old, new]
                .into_iter()
                .flatten()
                .map(|value| value.len())
                .sum(),
            Event::Digest { values, .. } => values.iter().map(|value| value.len()).sum(),
            Event::Log { text } => text.len(),
            Event::Deparse { frame, .. } => frame.as_ref().map_or(0, |frame| frame.0.len()),
            _ => 0,
        }
    }
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

/// An event with its copy, time and source position.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// 0 for the packet that entered, else the number of one of its copies.
    pub copy: u16,
    /// Microseconds since the switch started.
    pub at_us: u64,
    /// The position in the P4 source, if the compiler recorded it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// The event.
    #[serde(flatten)]
    pub event: Event,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_flat_objects_that_come_back() {
        let step = Step {
            copy: 2,
            at_us: 9,
            source: None,
            event: Event::Ordered {
                number: 3,
                port: 4,
                rid: 5,
                origin: Origin::Multicast { group: 6 },
            },
        };
        let json = serde_json::to_value(&step).unwrap();
        let expected = serde_json::json!({"copy": 2, "at_us": 9, "event": "ordered"});
        assert_eq!(json["event"], expected["event"]);
        assert_eq!(serde_json::from_value::<Step>(json).unwrap(), step);
    }
}
