//! What a trace consists of: typed events, as JSON by serde.
//!
//! Names are those of the program as p4c compiled it: `ethernet.dst` for `hdr.ethernet.dst`, and
//! without the struct for metadata of the program's own, which p4c gathers in `scalars`.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::super::DropCause;
use super::value::{Octets, Value};

/// Where the P4 source has what happens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// The file, as it was named to the compiler.
    pub file: String,
    /// Counted from 1.
    pub line: u32,
    /// What stands there; the compiler shortens it.
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

/// How a packet came to its pass through ingress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arrival {
    /// From a port.
    Entered,
    /// `resubmit`: the frame as it came, from ingress.
    Resubmitted,
    /// `recirculate`: the frame as it would have left, from egress.
    Recirculated,
}

/// Why a copy was ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Origin {
    /// The packet itself, to `egress_spec`.
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

/// A match field of a table's key, as the packet had it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyField {
    /// Its P4Info name.
    pub name: String,
    /// `exact`, `lpm`, `ternary`, `range` or `optional`.
    pub kind: String,
    /// The packet's value.
    pub value: Value,
    /// What the entry asks of it; left out where there is none or where it does not matter.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub matched: Option<Matched>,
}

/// What an entry asks of a field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Matched {
    /// The first bits of a value.
    Prefix {
        /// The prefix, the other bits zero.
        prefix: Value,
        /// Bits that matter.
        prefix_len: u32,
    },
    /// Some bits of a value.
    Masked {
        /// The bits wanted.
        entry: Value,
        /// The bits that matter.
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

/// What an entry of a table with an action profile refers to.
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
    /// A set of the entry's own, from which the selector picks an action.
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

/// Packets and bytes that a counter cell has counted, this packet included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

/// What happened to a packet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A pass through parser and ingress starts.
    Ingress {
        /// How the packet came here.
        arrival: Arrival,
        /// The port it came from; none when it did not come from one.
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
        /// What it looks at; empty for an unconditional transition.
        key: Vec<Named>,
        /// The case that was taken: `default`, a value, a value under a mask, or a value set's name.
        case: String,
        /// The state; `accept` for the parser's end.
        next: String,
    },
    /// An error ends the parser; the packet goes on to ingress with it in `parser_error`.
    ParserError {
        /// The program's name for it.
        error: String,
        /// Bytes consumed before.
        at: usize,
    },
    /// The parser is done.
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
        /// What the packet has.
        value: Value,
        /// What it should have.
        computed: Value,
    },
    /// A condition of the program.
    Condition {
        /// The compiler's name for it.
        name: String,
        /// Whether it holds.
        holds: bool,
    },
    /// A table is applied.
    Table {
        /// Its P4 name.
        name: String,
        /// Its key, with what the entry that was hit asks of it.
        key: Vec<KeyField>,
        /// Whether an entry matched.
        hit: bool,
        /// The entry's priority, where the table has priorities.
        #[serde(skip_serializing_if = "Option::is_none")]
        priority: Option<i32>,
        /// Where the action is from, in a table with an action profile.
        #[serde(skip_serializing_if = "Option::is_none")]
        via: Option<Via>,
        /// What is executed; nothing on a miss in a table with an action profile, and for a group
        /// without a live member.
        #[serde(skip_serializing_if = "Option::is_none")]
        action: Option<Call>,
        /// The entry's direct counter, or that of the default entry.
        #[serde(skip_serializing_if = "Option::is_none")]
        counter: Option<Counted>,
    },
    /// Statements of a control that are in no table.
    Statements {
        /// The compiler's name for them.
        name: String,
    },
    /// A field is written.
    Write {
        /// Header and field.
        field: String,
        /// Before.
        old: Value,
        /// After.
        new: Value,
        /// The header is not valid: the packet will not have it.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        invalid: bool,
    },
    /// A header becomes valid or invalid.
    Validity {
        /// Its name.
        header: String,
        /// After.
        valid: bool,
    },
    /// A counter counts.
    Count {
        /// Its P4 name.
        counter: String,
        /// The cell.
        index: Value,
        /// What the cell holds now; none outside the array.
        #[serde(skip_serializing_if = "Option::is_none")]
        cell: Option<Counted>,
    },
    /// A meter is executed; the colour is written to a field.
    Meter {
        /// Its P4 name; none for the direct meter of the table that was applied last.
        #[serde(skip_serializing_if = "Option::is_none")]
        meter: Option<String>,
        /// The cell; none for a direct meter.
        #[serde(skip_serializing_if = "Option::is_none")]
        index: Option<Value>,
        /// 0 green, 1 yellow, 2 red; none outside the array.
        #[serde(skip_serializing_if = "Option::is_none")]
        color: Option<u8>,
    },
    /// A register is read.
    RegisterRead {
        /// Its P4 name.
        register: String,
        /// The cell.
        index: Value,
        /// What it holds; none outside the array.
        #[serde(skip_serializing_if = "Option::is_none")]
        value: Option<Value>,
    },
    /// A register is written.
    RegisterWrite {
        /// Its P4 name.
        register: String,
        /// The cell.
        index: Value,
        /// Before; none outside the array.
        #[serde(skip_serializing_if = "Option::is_none")]
        old: Option<Value>,
        /// After; none outside the array.
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
        /// Whether it holds; the packet ends if not.
        holds: bool,
    },
    /// `log_msg`.
    Log {
        /// Its text, values filled in.
        text: String,
    },
    /// A clone is wanted of a session that is not there or has no replicas.
    NoSession {
        /// The session's id.
        session: u32,
    },
    /// A copy is ordered to a port.
    Ordered {
        /// Its number in this trace; 0 if it is one too many to be followed.
        number: u16,
        /// Egress port.
        port: u16,
        /// Replication id.
        rid: u16,
        /// Why.
        #[serde(flatten)]
        origin: Origin,
    },
    /// Clones that the limits do not allow: one pass too many, or too many descendants.
    CloneRefused {
        /// Replicas of the session that were not ordered.
        replicas: usize,
    },
    /// Replicas that are too many descendants of one packet.
    ReplicasRefused {
        /// Replicas of the group that were not ordered.
        replicas: usize,
    },
    /// A copy leaves its queue, and egress starts.
    Egress {
        /// Egress port.
        port: u16,
        /// Replication id.
        rid: u16,
        /// Packets that were in the queue before it.
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
        /// Before.
        old: Value,
        /// After.
        new: Value,
    },
    /// The deparser puts the frame together.
    Deparse {
        /// Headers in order.
        headers: Vec<String>,
        /// Bytes of payload behind them.
        payload: usize,
        /// Bytes that truncation cut off.
        cut: usize,
        /// Length of the frame.
        bytes: usize,
        /// The frame; left out when there is too much to keep.
        #[serde(skip_serializing_if = "Option::is_none")]
        frame: Option<Octets>,
    },
    /// The program, or a limit of the switch, ends the packet.
    Dropped {
        /// Why.
        cause: DropCause,
    },
    /// What became of a copy behind egress, or in the queue.
    Fate {
        /// That.
        fate: Fate,
    },
}

impl Event {
    /// About how many bytes it keeps beyond what every event does.
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

/// What became of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// It left its port.
    Left,
    /// The program, or a limit of the switch, dropped it.
    Dropped,
    /// It went through ingress again, and its own way ended there.
    Recirculated,
    /// The queue of its port was full.
    QueueFull,
    /// The wire behind the port lost it.
    LostOnWire,
    /// Nobody was attached to the port.
    NoPeer,
    /// It was longer than the port's medium carries.
    Oversize,
    /// The port does not exist.
    NoPort,
    /// Another program was committed while it was queued.
    Reconfigured,
    /// Still queued or on the wire when its port was removed.
    PortRemoved,
    /// It was still under way when the trace ended.
    UnderWay,
}

/// An event, whose it is, and where it comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// 0 for the packet that entered, else the number of one of its copies.
    pub copy: u16,
    /// Microseconds since the switch started.
    pub at_us: u64,
    /// The place in the P4 source, if the compiler wrote it down.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// What happened.
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
