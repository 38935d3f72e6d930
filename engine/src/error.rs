//! Errors of programs and of control-plane requests.

use std::fmt;

/// Why a program does not load.
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
    /// The program uses a construct that this interpreter does not implement.
    #[error("{at}: {what} is not supported by this switch")]
    Unsupported {
        /// The construct, by its name in the format.
        what: String,
        /// The object that uses it.
        at: String,
    },
    /// The file is inconsistent, such as an unknown reference or a wrong width.
    #[error("{at}: {what}")]
    Malformed {
        /// The reason.
        what: String,
        /// The object.
        at: String,
    },
    /// The program and its P4Info describe different things.
    #[error("program and P4Info disagree: {what}")]
    P4Info {
        /// The object that is missing or differs.
        what: String,
    },
    /// The program exceeds a limit.
    #[error("{at}: {what} is {found}, the limit is {limit}")]
    Limit {
        /// The limited quantity.
        what: &'static str,
        /// The object.
        at: String,
        /// The program's value.
        found: u64,
        /// The limit.
        limit: u64,
    },
}

impl LoadError {
    /// Returns the error of a construct, by its name in the format, and the object that uses it.
    pub fn unsupported(what: impl fmt::Display, at: impl fmt::Display) -> LoadError {
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

    /// Checks a value against a limit.
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

    /// Returns the error of a P4Info that does not describe the program.
    pub fn p4info(what: impl fmt::Display) -> LoadError {
        LoadError::P4Info {
            what: what.to_string(),
        }
    }
}

/// The gRPC status code of a [`ControlError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request is invalid for this program.
    InvalidArgument,
    /// An index is outside its array, or a value does not fit its type (P4Runtime §8.3).
    OutOfRange,
    /// The object does not exist.
    NotFound,
    /// The object exists.
    AlreadyExists,
    /// The table, group or session table is full.
    ResourceExhausted,
    /// The program declares the object constant.
    PermissionDenied,
    /// Another object refers to the object.
    FailedPrecondition,
    /// This switch does not implement the request.
    Unimplemented,
}

/// Why a control-plane request is rejected. It then changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// The P4Info has no object of this kind with this id.
    #[error("{kind} {id:#010x} is not in the P4Info")]
    UnknownId {
        /// Kind of object: `table`, `counter`, …
        kind: &'static str,
        /// The id.
        id: u32,
    },
    /// A match field is unknown, given twice or missing.
    #[error("{owner}: match field {field}: {what}")]
    MatchField {
        /// The table or value set, by kind and name.
        owner: String,
        /// The match field's id.
        field: u32,
        /// The reason.
        what: String,
    },
    /// The priority is missing or must not be given.
    #[error("{owner}: priority {priority}: {what}")]
    Priority {
        /// The table, by kind and name.
        owner: String,
        /// The priority given.
        priority: i32,
        /// The expected value.
        what: &'static str,
    },
    /// The table does not have the action, or the action does not have these parameters.
    #[error("{owner}: action {action:#010x}: {what}")]
    Action {
        /// The table or action profile, by kind and name.
        owner: String,
        /// The action's id.
        action: u32,
        /// The reason.
        what: String,
    },
    /// The table does not allow the action there.
    #[error("{owner}: action {action:#010x}: {what}")]
    ActionScope {
        /// The table or action profile, by kind and name.
        owner: String,
        /// The action's id.
        action: u32,
        /// Where the table allows it.
        what: &'static str,
    },
    /// A value is empty or does not fit its width.
    #[error("{what} is {bits} bits wide: {fault}")]
    Value {
        /// The field or parameter.
        what: String,
        /// Its width in bits.
        bits: u32,
        /// The reason.
        fault: &'static str,
    },
    /// The table has no key, so only a default entry.
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
        /// The constant object.
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
    /// The table is full: it has as many entries as its size in P4Info.
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
    /// A write to an action profile is invalid.
    #[error("action profile {profile}: {what}")]
    Profile {
        /// The profile's name.
        profile: String,
        /// The reason and the expected value.
        what: String,
    },
    /// A set uses other size semantics than the program.
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
    /// The member or group exists.
    #[error("action profile {profile} has {kind} {id} already")]
    SharedExists {
        /// The profile's name.
        profile: String,
        /// `member` or `group`.
        kind: &'static str,
        /// Its id.
        id: u32,
    },
    /// The member or group cannot be deleted because something refers to it.
    #[error("action profile {profile}: {by} refers to {kind} {id}")]
    InUse {
        /// The profile's name.
        profile: String,
        /// `member` or `group`.
        kind: &'static str,
        /// Its id.
        id: u32,
        /// The object that refers to it.
        by: &'static str,
    },
    /// The action profile is full.
    #[error("action profile {profile}: {what} would be {found}, the limit is {limit}")]
    ProfileFull {
        /// The profile's name.
        profile: String,
        /// The limited quantity.
        what: &'static str,
        /// The value after the request.
        found: usize,
        /// The limit.
        limit: usize,
    },
    /// The value set has fewer places than members.
    #[error("value set {set}: {found} members, there is room for {size}")]
    ValueSetFull {
        /// The value set's name.
        set: String,
        /// Number of members after the request.
        found: usize,
        /// The value set's size.
        size: usize,
    },
    /// Two members of a value set are equal.
    #[error("value set {set}: member {member} is there twice")]
    ValueSetTwice {
        /// The value set's name.
        set: String,
        /// Position of the member that repeats an earlier one, from 0.
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
    /// A meter's rates or bursts are inconsistent.
    #[error("meter {name}: {what}")]
    Meter {
        /// The meter's name.
        name: String,
        /// The expected value.
        what: &'static str,
    },
    /// A multicast group or clone session is invalid.
    #[error("{kind} {id}: {what}")]
    Replication {
        /// `multicast group` or `clone session`.
        kind: &'static str,
        /// Its id.
        id: u32,
        /// The reason.
        what: String,
    },
    /// The multicast group or clone session does not exist.
    #[error("there is no {kind} {id}")]
    NoSuchReplication {
        /// `multicast group` or `clone session`.
        kind: &'static str,
        /// Its id.
        id: u32,
    },
    /// The multicast group or clone session exists.
    #[error("{kind} {id} exists already")]
    ReplicationExists {
        /// `multicast group` or `clone session`.
        kind: &'static str,
        /// Its id.
        id: u32,
    },
    /// The replication engine is full.
    #[error("{kind} {id}: {what} would be {found}, the limit is {limit}")]
    ReplicationFull {
        /// `multicast group` or `clone session`.
        kind: &'static str,
        /// Its id.
        id: u32,
        /// The limited quantity.
        what: &'static str,
        /// The value after the request.
        found: usize,
        /// The limit.
        limit: usize,
    },
}

impl ControlError {
    /// Returns the gRPC status code that the P4Runtime specification assigns to this error.
    pub fn kind(&self) -> ErrorKind {
        use ControlError::*;
        match self {
            Value { .. } | Index { .. } => ErrorKind::OutOfRange,
            MatchField { .. } | Priority { .. } | Action { .. } | Keyless { .. } => {
                ErrorKind::InvalidArgument
            }
            NoDirect { .. } | Meter { .. } | Replication { .. } => ErrorKind::InvalidArgument,
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
