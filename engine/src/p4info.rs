//! A program's P4Info: ids, names, and what the control plane may access (P4Runtime §6).

use std::collections::HashMap;

/// A program's objects for the control plane, by the names that p4c's JSON gives them.
///
/// Ids are any numbers but 0; two objects of one kind have two ids.
#[derive(Debug, Clone, Default)]
pub struct P4Info {
    /// Match-action tables.
    pub tables: HashMap<String, TableInfo>,
    /// Actions, by id.
    pub actions: HashMap<u32, ActionInfo>,
    /// Indirect counters.
    pub counters: HashMap<String, ArrayInfo>,
    /// Indirect meters.
    pub meters: HashMap<String, ArrayInfo>,
    /// Registers.
    pub registers: HashMap<String, ArrayInfo>,
    /// Action profiles and selectors.
    pub profiles: HashMap<String, ProfileInfo>,
    /// Parser value sets.
    pub value_sets: HashMap<String, ValueSetInfo>,
    /// Ids of the tables of direct counters and meters.
    pub direct: HashMap<String, u32>,
    /// Digests.
    pub digests: HashMap<String, DigestInfo>,
    /// The header in front of packets to the controller.
    pub packet_in: Vec<MetadataInfo>,
    /// The header in front of packets from the controller.
    pub packet_out: Vec<MetadataInfo>,
}

/// A match-action table.
#[derive(Debug, Clone, Default)]
pub struct TableInfo {
    /// The table's id.
    pub id: u32,
    /// The match fields, in the order of the program's key.
    pub fields: Vec<FieldInfo>,
    /// Ids of the actions.
    pub actions: Vec<(u32, ActionScope)>,
    /// Largest number of entries.
    pub size: u64,
    /// True if the program's entries are the only ones.
    pub is_const: bool,
    /// True if the default entry cannot change.
    pub default_is_const: bool,
    /// True if entries may have idle timeouts.
    pub idle_timeouts: bool,
    /// The id of the table's action profile.
    pub profile: Option<u32>,
}

/// A match field of a table or value set.
#[derive(Debug, Clone)]
pub struct FieldInfo {
    /// The field's id, unique in its owner.
    pub id: u32,
    /// The field's name; empty for the only field of a value set of plain numbers.
    pub name: String,
    /// The field's match kind.
    pub kind: MatchKind,
    /// Width in the control plane, in bits; 0 if values are not numbers there.
    pub width: u32,
    /// True if the control plane sees another type than the program (P4Runtime §18.1).
    pub is_translated: bool,
}

/// An action.
#[derive(Debug, Clone)]
pub struct ActionInfo {
    /// The action's name.
    pub name: String,
    /// The parameters, in the program's order.
    pub params: Vec<MetadataInfo>,
}

/// A counter, meter or register array.
#[derive(Debug, Clone, Default)]
pub struct ArrayInfo {
    /// The array's id.
    pub id: u32,
    /// Number of cells.
    pub size: u64,
    /// True for a register of signed cells.
    pub signed: bool,
}

/// An action profile.
#[derive(Debug, Clone)]
pub struct ProfileInfo {
    /// The profile's id.
    pub id: u32,
    /// True if a selector picks among the members of groups.
    pub with_selector: bool,
    /// Largest number of members; with a selector, also the size of all groups together.
    pub size: u64,
    /// Largest sum of weights of a group; 0 for any.
    pub max_group_size: u32,
}

/// A parser value set.
#[derive(Debug, Clone)]
pub struct ValueSetInfo {
    /// The set's id.
    pub id: u32,
    /// The fields of a member.
    pub fields: Vec<FieldInfo>,
    /// Largest number of members.
    pub size: u64,
}

/// A digest.
#[derive(Debug, Clone)]
pub struct DigestInfo {
    /// The digest's id.
    pub id: u32,
    /// The type of a message, or the part of it that is not supported: a program that sends the digest does not load.
    pub data: Result<DigestType, String>,
}

/// A field of a controller header, or a parameter of an action.
#[derive(Debug, Clone)]
pub struct MetadataInfo {
    /// The field's id, unique in its header or action.
    pub id: u32,
    /// The field's name.
    pub name: String,
    /// Width in the control plane, in bits.
    pub width: u32,
    /// True if the control plane sees another type than the program (P4Runtime §18.1).
    pub is_translated: bool,
}

/// The match kind of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MatchKind {
    /// With one value.
    Exact,
    /// With a prefix; the longest wins.
    Lpm,
    /// With a value under a mask.
    Ternary,
    /// With a lowest and a highest value.
    Range,
    /// With one value, or any.
    Optional,
}

/// The places in which a table allows an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActionScope {
    /// In entries, and as the default action.
    Everywhere,
    /// In entries.
    EntriesOnly,
    /// As the default action.
    DefaultOnly,
}

/// The type of a digest, as the control plane sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DigestType {
    /// `bit<W>` or `int<W>`, whichever the program's field is.
    Bits,
    /// `bool`.
    Bool,
    /// An enumeration with a representation, which is sent.
    EnumValue,
    /// An enumeration without a representation: the names of its members, in order.
    Enum(Vec<String>),
    /// `error`.
    Error,
    /// A struct, by its members.
    Struct(Vec<DigestType>),
    /// A tuple, by its members.
    Tuple(Vec<DigestType>),
}
