//! Table entries as the control plane writes and reads them: P4Info ids and big-endian bytes.

use super::super::counter::CounterCell;
use super::super::meter::MeterView;
use super::super::profile::Watch;

/// One match field of an entry. A field that does not matter is left out, as P4Runtime asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldMatch {
    /// The match field's P4Info id.
    pub field: u32,
    /// What it must be.
    pub matches: Match,
}

/// What a match field must be. Values are big-endian bytes, at most as wide as the field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Match {
    /// Equal.
    Exact(Vec<u8>),
    /// Equal in the first `prefix_len` bits; the other bits of `value` are zero.
    Lpm {
        /// The prefix, as wide as the field.
        value: Vec<u8>,
        /// Bits that matter, from 1 to the field's width.
        prefix_len: u32,
    },
    /// Equal where `mask` has ones; `value` is zero where `mask` is.
    Ternary {
        /// The bits wanted.
        value: Vec<u8>,
        /// The bits that matter; not zero.
        mask: Vec<u8>,
    },
    /// From `low` to `high`, both included.
    Range {
        /// Lowest value.
        low: Vec<u8>,
        /// Highest value.
        high: Vec<u8>,
    },
    /// Equal; differs from `Exact` in that the field may be left out.
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

/// What an entry does: an action of its own, or one that its table's action profile holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryAction {
    /// An action of its own, in tables without an action profile.
    Call(ActionCall),
    /// A member of the action profile, by id.
    Member(u32),
    /// A group of the action profile, by id.
    Group(u32),
    /// Members and a group for this entry alone (P4Runtime §9.2.3).
    OneShot(OneShot),
}

impl From<ActionCall> for EntryAction {
    fn from(call: ActionCall) -> EntryAction {
        EntryAction::Call(call)
    }
}

/// A set of actions from which a selector picks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OneShot {
    /// The actions with their weights.
    pub actions: Vec<WeightedCall>,
    /// Whether the selector's own way to pick was asked for by name.
    pub names_mode: bool,
    /// The selector's own way to count sizes, if it was asked for by name.
    pub names_size: Option<SizeUnit>,
}

/// What sizes of groups are counted in (P4Runtime §6.4.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SizeUnit {
    /// The weights of members.
    Weights,
    /// Members, whatever their weight.
    Members,
}

/// An action of a set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightedCall {
    /// The action.
    pub call: ActionCall,
    /// Its share among the set's weights: 1 or more, 0 where the program disallows weights.
    pub weight: u32,
    /// The port without which it is not picked.
    pub watch: Option<Watch>,
}

/// An entry to insert, or what to make of one that is there.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TableEntry {
    /// The match fields that matter.
    pub key: Vec<FieldMatch>,
    /// 1 or more in a table with a ternary, range or optional field, where the highest wins;
    /// 0 in any other.
    pub priority: i32,
    /// What happens on a match. `None` in a modification leaves it as it is, or restores the
    /// default entry's; an insertion needs one, and what is read has one, but for the default entry
    /// of a table with an action profile.
    pub action: Option<EntryAction>,
    /// The controller's own number.
    pub controller_metadata: u64,
    /// The controller's own bytes.
    pub metadata: Vec<u8>,
    /// The time without a hit after which the controller is told, nanoseconds; 0 for never.
    pub idle_timeout_ns: u64,
}

/// An entry as it is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryView {
    /// What was written, values canonical, match fields and parameters in order of ids.
    pub entry: TableEntry,
    /// Microseconds since a packet last hit it, or since it was inserted, if the table supports
    /// idle timeouts.
    pub idle_us: Option<u64>,
    /// Whether the program declares it constant.
    pub is_const: bool,
    /// Its direct counter, if the table has one.
    pub counter: Option<CounterCell>,
    /// Its direct meter, if the table has one.
    pub meter: Option<MeterView>,
}
