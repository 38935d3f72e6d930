//! Table entries as the control plane writes and reads them: P4Info ids and big-endian bytes.

use super::super::counter::CounterCell;
use super::super::meter::MeterConfig;

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

/// An entry to insert, or what to make of one that is there.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TableEntry {
    /// The match fields that matter.
    pub key: Vec<FieldMatch>,
    /// 1 or more in a table with a ternary, range or optional field, where the highest wins;
    /// 0 in any other.
    pub priority: i32,
    /// What happens on a match. `None` in a modification leaves it as it is, or restores the
    /// default entry's; an insertion needs one, and what is read has one.
    pub action: Option<ActionCall>,
    /// The controller's own number.
    pub controller_metadata: u64,
    /// The controller's own bytes.
    pub metadata: Vec<u8>,
}

/// An entry as it is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryView {
    /// What was written, values canonical, match fields and parameters in order of ids.
    pub entry: TableEntry,
    /// Whether the program declares it constant.
    pub is_const: bool,
    /// Its direct counter, if the table has one.
    pub counter: Option<CounterCell>,
    /// Its direct meter, if the table has one: `Some(None)` if that is not configured.
    pub meter: Option<Option<MeterConfig>>,
}
