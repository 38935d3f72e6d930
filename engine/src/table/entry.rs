//! Table entries for the control plane: P4Info ids and big-endian bytes.

use super::super::counter::CounterCell;
use super::super::meter::MeterConfig;
use super::super::value::canonical;

/// One match field of an entry. A field that matches anything is omitted (P4Runtime §9.1.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldMatch {
    /// The match field's P4Info id.
    pub field: u32,
    /// The match.
    pub matches: Match,
}

impl FieldMatch {
    /// With each value in its shortest form.
    pub(super) fn canonical(self) -> FieldMatch {
        let matches = match self.matches {
            Match::Exact(value) => Match::Exact(canonical(value)),
            Match::Optional(value) => Match::Optional(canonical(value)),
            Match::Lpm { value, prefix_len } => Match::Lpm {
                value: canonical(value),
                prefix_len,
            },
            Match::Ternary { value, mask } => Match::Ternary {
                value: canonical(value),
                mask: canonical(mask),
            },
            Match::Range { low, high } => Match::Range {
                low: canonical(low),
                high: canonical(high),
            },
        };
        FieldMatch { matches, ..self }
    }
}

/// A match on a field. Values are big-endian bytes, at most as wide as the field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Match {
    /// Equal to a value.
    Exact(Vec<u8>),
    /// Equal in the first `prefix_len` bits; the other bits of `value` are zero.
    Lpm {
        /// The prefix, as wide as the field.
        value: Vec<u8>,
        /// Length of the prefix, from 1 to the field's width.
        prefix_len: u32,
    },
    /// Equal where `mask` has ones; `value` is zero where `mask` is.
    Ternary {
        /// The value.
        value: Vec<u8>,
        /// The mask, not zero.
        mask: Vec<u8>,
    },
    /// From `low` to `high`, both included.
    Range {
        /// Lowest value.
        low: Vec<u8>,
        /// Highest value.
        high: Vec<u8>,
    },
    /// Equal to a value. Unlike `Exact`, the field may be omitted.
    Optional(Vec<u8>),
}

/// An action with its arguments.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ActionCall {
    /// The action's P4Info id.
    pub action: u32,
    /// Every parameter by its P4Info id, each as big-endian bytes.
    pub params: Vec<(u32, Vec<u8>)>,
}

/// The action of an entry: its own, or one of its table's action profile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryAction {
    /// An action, in a table without an action profile.
    Call(ActionCall),
    /// A member of the action profile, by id.
    Member(u32),
    /// A group of the action profile, by id.
    Group(u32),
    /// A one-shot action set (P4Runtime §9.2.3).
    OneShot(OneShot),
}

impl From<ActionCall> for EntryAction {
    fn from(call: ActionCall) -> EntryAction {
        EntryAction::Call(call)
    }
}

/// A one-shot action set, from which a selector picks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OneShot {
    /// The actions with their weights.
    pub actions: Vec<WeightedCall>,
}

/// An action of a set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightedCall {
    /// The action.
    pub call: ActionCall,
    /// Its weight, 1 or more.
    pub weight: u32,
    /// The port that must be up for the selector to pick it.
    pub watch: Option<u16>,
}

/// An entry to insert, or the new state of an existing one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TableEntry {
    /// Match fields, without those that match anything.
    pub key: Vec<FieldMatch>,
    /// 1 or more in a table with a ternary, range or optional field, where the highest wins;
    /// 0 in any other.
    pub priority: i32,
    /// The action on a match. In a modification, `None` keeps the entry's action ([`TableMut::modify`](super::TableMut::modify)),
    /// or restores the default entry's. An insertion needs an action. Reads return one, except for the default entry of a table with an action profile.
    pub action: Option<EntryAction>,
    /// A number for the controller's use.
    pub controller_metadata: u64,
    /// Bytes for the controller's use.
    pub metadata: Vec<u8>,
    /// Time without a hit after which the switch notifies the controller, in nanoseconds; 0 means never.
    pub idle_timeout_ns: u64,
}

/// An entry, for reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryView {
    /// The written entry, with canonical values, and match fields and parameters in order of ids.
    pub entry: TableEntry,
    /// Microseconds since the last hit or the insertion, if the table supports idle timeouts.
    pub idle_us: Option<u64>,
    /// True if the program declares the entry constant.
    pub is_const: bool,
    /// Its direct counter, if the table has one.
    pub counter: Option<CounterCell>,
    /// The configuration of its direct meter, if the table has one.
    pub meter: Option<Option<MeterConfig>>,
}
