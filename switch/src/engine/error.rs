//! What can be wrong with a program and with a control-plane request.

use std::fmt;

/// Why a program was refused. Nothing of a refused program runs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The file is not BMv2 JSON as p4c prints it.
    #[error("line {line}, column {column}: {message}")]
    Json {
        /// Line of the fault, from 1.
        line: usize,
        /// Column of the fault, from 1.
        column: usize,
        /// What was found and what was expected.
        message: String,
    },
    /// The program uses something that the format has and this interpreter does not implement.
    #[error("{at}: {what} is not supported by this switch")]
    Unsupported {
        /// The construct, by the name that the format gives it.
        what: String,
        /// The object that uses it.
        at: String,
    },
    /// The file contradicts itself: a reference to nothing, a width that does not fit.
    #[error("{at}: {what}")]
    Malformed {
        /// What is wrong.
        what: String,
        /// The object in which it is wrong.
        at: String,
    },
    /// The program and its P4Info describe different things.
    #[error("program and P4Info disagree: {what}")]
    P4Info {
        /// The object that only one of them has, or that differs.
        what: String,
    },
    /// The program asks for more than the configured limit.
    #[error("{at}: {what} is {found}, the limit is {limit}")]
    Limit {
        /// What is too large.
        what: &'static str,
        /// The object.
        at: String,
        /// What the program asks for.
        found: u64,
        /// What the switch allows.
        limit: u64,
    },
}

impl LoadError {
    pub(super) fn unsupported(what: impl fmt::Display, at: impl fmt::Display) -> LoadError {
        LoadError::Unsupported {
            what: what.to_string(),
            at: at.to_string(),
        }
    }

    pub(super) fn malformed(what: impl fmt::Display, at: impl fmt::Display) -> LoadError {
        LoadError::Malformed {
            what: what.to_string(),
            at: at.to_string(),
        }
    }

    /// Refuses what is more than the limit.
    pub(super) fn check(
        what: &'static str,
        found: u64,
        limit: u64,
        at: impl fmt::Display,
    ) -> Result<(), LoadError> {
        if found <= limit {
            return Ok(());
        }
        let at = at.to_string();
        Err(LoadError::Limit {
            what,
            at,
            found,
            limit,
        })
    }

    pub(super) fn p4info(what: impl fmt::Display) -> LoadError {
        LoadError::P4Info {
            what: what.to_string(),
        }
    }
}

/// The gRPC status that a [`ControlError`] is reported with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request can never be right for this program.
    InvalidArgument,
    /// The object it names is not there.
    NotFound,
    /// The object it inserts is there already.
    AlreadyExists,
    /// The table, group or session table is full.
    ResourceExhausted,
    /// The program declares it constant.
    PermissionDenied,
    /// Something else refers to it.
    FailedPrecondition,
    /// The specification has it, this switch does not.
    Unimplemented,
}

/// Why a control-plane request was refused. A refused request changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// No object of that kind has that id in the P4Info.
    #[error("{kind} {id:#010x} is not in the P4Info")]
    UnknownId {
        /// What the id should name: `table`, `counter`, …
        kind: &'static str,
        /// The id.
        id: u32,
    },
    /// A match field that is not there, twice the same, or one that may not be omitted.
    #[error("{owner}: match field {field}: {what}")]
    MatchField {
        /// The table or value set, by kind and name.
        owner: String,
        /// The match field's id.
        field: u32,
        /// What is wrong with it.
        what: String,
    },
    /// The priority is missing where one is needed, or given where none is.
    #[error("{owner}: priority {priority}: {what}")]
    Priority {
        /// The table, by kind and name.
        owner: String,
        /// The priority given.
        priority: i32,
        /// What would be right.
        what: &'static str,
    },
    /// The action is not one of the table's, or its parameters are not the action's.
    #[error("{owner}: action {action:#010x}: {what}")]
    Action {
        /// The table or action profile, by kind and name.
        owner: String,
        /// The action's id.
        action: u32,
        /// What is wrong.
        what: String,
    },
    /// The action is one of the table's, but not where it was used.
    #[error("{owner}: action {action:#010x}: {what}")]
    ActionScope {
        /// The table or action profile, by kind and name.
        owner: String,
        /// The action's id.
        action: u32,
        /// Where it may be used.
        what: &'static str,
    },
    /// A value is not canonical or does not fit its width.
    #[error("{what} is {bits} bits wide: {fault}")]
    Value {
        /// What the value is for.
        what: String,
        /// Its width in bits.
        bits: u32,
        /// What is wrong with it.
        fault: &'static str,
    },
    /// The table has no key, so it has only a default entry.
    #[error("table {table} has no key: only its default entry can be changed")]
    Keyless {
        /// The table's name.
        table: String,
    },
    /// The program declares the entry, the table's entries or the default action constant.
    #[error("table {table}: {what} is constant in the program")]
    Constant {
        /// The table's name.
        table: String,
        /// What is constant.
        what: &'static str,
    },
    /// No entry has this key (and priority).
    #[error("table {table} has no such entry")]
    NoSuchEntry {
        /// The table's name.
        table: String,
    },
    /// An entry with this key (and priority) exists.
    #[error("table {table} has this entry already")]
    EntryExists {
        /// The table's name.
        table: String,
    },
    /// The table holds as many entries as its P4Info size says.
    #[error("table {table} is full: {size} entries")]
    TableFull {
        /// The table's name.
        table: String,
        /// Its size in entries.
        size: usize,
    },
    /// The entry has an idle timeout, and its table supports none.
    #[error("table {table} does not support idle timeouts: expected idle_timeout_ns 0")]
    NoIdleTimeouts {
        /// The table's name.
        table: String,
    },
    /// The entry refers to an action profile, and its table has none.
    #[error("table {table} has no action profile: expected an action, not a member, group or set")]
    NoProfile {
        /// The table's name.
        table: String,
    },
    /// An action profile is not written like that.
    #[error("action profile {profile}: {what}")]
    Profile {
        /// The profile's name.
        profile: String,
        /// What is wrong, and what would be right.
        what: String,
    },
    /// A set asks for sizes to be counted otherwise than the program says.
    #[error(
        "action profile {profile} counts sizes by {own}, which cannot be changed for one group"
    )]
    SizeSemantics {
        /// The profile's name.
        profile: String,
        /// `members` or `weights`.
        own: &'static str,
    },
    /// The action profile has no such member or group.
    #[error("action profile {profile} has no {kind} {id}")]
    NoSuchShared {
        /// The profile's name.
        profile: String,
        /// `member` or `group`.
        kind: &'static str,
        /// Its id.
        id: u32,
    },
    /// The action profile has this member or group already.
    #[error("action profile {profile} has {kind} {id} already")]
    SharedExists {
        /// The profile's name.
        profile: String,
        /// `member` or `group`.
        kind: &'static str,
        /// Its id.
        id: u32,
    },
    /// The member or group cannot go while something refers to it.
    #[error("action profile {profile}: {by} refers to {kind} {id}")]
    InUse {
        /// The profile's name.
        profile: String,
        /// `member` or `group`.
        kind: &'static str,
        /// Its id.
        id: u32,
        /// What refers to it.
        by: &'static str,
    },
    /// The action profile has no room for it.
    #[error("action profile {profile}: {what} would be {found}, the limit is {limit}")]
    ProfileFull {
        /// The profile's name.
        profile: String,
        /// What there is too much of.
        what: &'static str,
        /// How much it would be.
        found: usize,
        /// How much there is room for.
        limit: usize,
    },
    /// The value set would hold more members than its P4Info size says.
    #[error("value set {set}: {found} members, there is room for {size}")]
    ValueSetFull {
        /// The value set's name.
        set: String,
        /// How many members it would have.
        found: usize,
        /// How many it has room for.
        size: usize,
    },
    /// Two members of a value set are the same.
    #[error("value set {set}: member {member} is there twice")]
    ValueSetTwice {
        /// The value set's name.
        set: String,
        /// Which of the members given repeats an earlier one, from 0.
        member: usize,
    },
    /// The table has no direct resource of that kind.
    #[error("table {table} has no direct {kind}")]
    NoDirect {
        /// The table's name.
        table: String,
        /// `counter` or `meter`.
        kind: &'static str,
    },
    /// The index is outside the array.
    #[error("{kind} {name}: index {index} is outside 0..{size}")]
    Index {
        /// `counter`, `meter` or `register`.
        kind: &'static str,
        /// The array's name.
        name: String,
        /// The index asked for.
        index: u64,
        /// The array's size.
        size: usize,
    },
    /// A meter's rates or bursts contradict each other.
    #[error("meter {name}: {what}")]
    Meter {
        /// The meter's name.
        name: String,
        /// What would be right.
        what: &'static str,
    },
    /// A multicast group or clone session cannot be so.
    #[error("{kind} {id}: {what}")]
    Replication {
        /// `multicast group` or `clone session`.
        kind: &'static str,
        /// Its id.
        id: u32,
        /// What is wrong with it.
        what: String,
    },
    /// The multicast group or clone session is not there.
    #[error("there is no {kind} {id}")]
    NoSuchReplication {
        /// `multicast group` or `clone session`.
        kind: &'static str,
        /// Its id.
        id: u32,
    },
    /// The multicast group or clone session is there already.
    #[error("{kind} {id} exists already")]
    ReplicationExists {
        /// `multicast group` or `clone session`.
        kind: &'static str,
        /// Its id.
        id: u32,
    },
    /// The replication engine holds as much as its limit allows.
    #[error("{kind} {id}: {what} would be {found}, the limit is {limit}")]
    ReplicationFull {
        /// `multicast group` or `clone session`.
        kind: &'static str,
        /// Its id.
        id: u32,
        /// What there is too much of.
        what: &'static str,
        /// How much it would be.
        found: usize,
        /// How much is allowed.
        limit: usize,
    },
}

impl ControlError {
    /// The gRPC status of this error, as the P4Runtime specification assigns them.
    pub fn kind(&self) -> ErrorKind {
        use ControlError::*;
        match self {
            MatchField { .. } | Priority { .. } | Action { .. } | Value { .. } | Keyless { .. } => {
                ErrorKind::InvalidArgument
            }
            NoDirect { .. } | Index { .. } | Meter { .. } | Replication { .. } => {
                ErrorKind::InvalidArgument
            }
            NoProfile { .. } | Profile { .. } | NoIdleTimeouts { .. } => ErrorKind::InvalidArgument,
            UnknownId { .. } | NoSuchEntry { .. } | NoSuchReplication { .. } => ErrorKind::NotFound,
            NoSuchShared { .. } => ErrorKind::NotFound,
            EntryExists { .. } | ReplicationExists { .. } => ErrorKind::AlreadyExists,
            SharedExists { .. } | ValueSetTwice { .. } => ErrorKind::AlreadyExists,
            TableFull { .. } | ReplicationFull { .. } => ErrorKind::ResourceExhausted,
            ProfileFull { .. } | ValueSetFull { .. } => ErrorKind::ResourceExhausted,
            InUse { .. } => ErrorKind::FailedPrecondition,
            SizeSemantics { .. } => ErrorKind::Unimplemented,
            ActionScope { .. } | Constant { .. } => ErrorKind::PermissionDenied,
        }
    }
}
