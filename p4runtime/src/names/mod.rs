//! P4Info by name: handles that know ids, widths and sizes.
//!
//! [`Names`] indexes a P4Info. Objects are found by their full name (`Ingress.routing.route`) or
//! their alias (`route`), and build the messages that refer to them:
//!
//! ```
//! # use ultima_p4runtime::{config::v1::P4Info, names::Names, text};
//! # let program = r#"
//! # tables { preamble { id: 33554433 name: "Ingress.routing.route" alias: "route" }
//! #   match_fields { id: 1 name: "dst_addr" bitwidth: 32 match_type: LPM }
//! #   action_refs { id: 16777217 } size: 1024 }
//! # actions { preamble { id: 16777217 name: "Ingress.routing.forward" alias: "forward" }
//! #   params { id: 1 name: "port" bitwidth: 9 } }
//! # counters { preamble { id: 301989889 name: "Ingress.received" alias: "received" }
//! #   spec { unit: BOTH } size: 512 }"#;
//! use std::net::Ipv4Addr;
//!
//! let p4info: P4Info = text::parse(program)?;
//! let names = Names::new(p4info)?;
//!
//! let route = names
//!     .table("Ingress.routing.route")?
//!     .entry()
//!     .lpm("dst_addr", Ipv4Addr::new(10, 0, 1, 0), 24)?
//!     .action("forward", &[("port", 7u16.into())])?
//!     .build()?;
//! assert_eq!(route.table_id, 33554433);
//!
//! let received = names.counter("received")?.cell(3)?;
//! assert_eq!(received.counter_id, 301989889);
//!
//! let error = names.table("rout").unwrap_err();
//! assert_eq!(error.to_string(), r#"P4Info has no table "rout"; there is "Ingress.routing.route""#);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod array;
mod catalog;
mod digest;
mod entry;
mod field;
mod header;
mod key;
mod profile;
mod table;
mod value_set;

pub use array::{Counter, IndexError, Meter, Register};
pub use catalog::{Catalog, Existing, NameError};
pub use digest::Digest;
pub use entry::{EntryBuilder, EntryError};
pub use field::{Field, FieldError, FieldList, ReadError};
pub use header::ControllerHeader;
pub use key::KeyBuilder;
pub use profile::ActionProfile;
pub use table::{Action, ActionScope, MatchField, MatchKind, Table};
pub use value_set::ValueSet;

use crate::config::v1::{P4Info, Preamble};
use std::collections::HashMap;
use std::sync::Arc;

/// Why a P4Info is inconsistent. p4c writes consistent ones.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum P4InfoError {
    /// Every object has a preamble with an id and a name (§6.1.2).
    #[error("{kind} number {position} of the P4Info has no id or no name")]
    Unnamed {
        /// Kind of object.
        kind: &'static str,
        /// Position among objects of the kind, from 1.
        position: usize,
    },
    /// A name or alias stands for more than one thing of a kind in one place.
    #[error("{kind} \"{name}\": name or alias is given twice, expected unique names")]
    RepeatedName {
        /// Kind of object.
        kind: &'static str,
        /// The name or alias.
        name: String,
    },
    /// A match field, parameter, or field of a controller header has id 0.
    #[error("{place}: \"{field}\" has id 0, expected at least 1")]
    NoFieldId {
        /// The object.
        place: String,
        /// The field.
        field: String,
    },
    /// An id is used twice.
    #[error("{place}: id {id} is given twice, expected unique ids")]
    RepeatedId {
        /// The kind of object whose ids repeat.
        place: String,
        /// The id.
        id: u32,
    },
    /// A width or size is negative.
    #[error("{place}: {what} is {value}, which is negative")]
    Negative {
        /// The object.
        place: String,
        /// The width or size.
        what: String,
        /// The value.
        value: i64,
    },
    /// An action profile refers to an unknown table.
    #[error("{place} refers to a table with id {id}, which the P4Info does not have")]
    NoTable {
        /// The action profile.
        place: String,
        /// The table's id.
        id: u32,
    },
    /// A table refers to an unknown action.
    #[error("{place} refers to an action with id {id}, which the P4Info does not have")]
    NoAction {
        /// The table.
        place: String,
        /// The action's id.
        id: u32,
    },
    /// A match field has no match type.
    #[error("{place}: match field \"{field}\" has no match type")]
    NoMatchType {
        /// The table.
        place: String,
        /// The field.
        field: String,
    },
    /// A digest has a struct type that the P4Info does not describe.
    #[error("{place} has type \"{name}\", which the P4Info does not describe")]
    NoType {
        /// The digest.
        place: String,
        /// The type.
        name: String,
    },
}

/// A P4Info and its objects by name.
#[derive(Debug, Clone)]
pub struct Names {
    p4info: P4Info,
    /// Match-action tables.
    pub tables: Catalog<Table>,
    /// Actions, whichever tables use them.
    pub actions: Catalog<Arc<Action>>,
    /// Action profiles, with or without a selector.
    pub action_profiles: Catalog<ActionProfile>,
    /// Parser value sets.
    pub value_sets: Catalog<ValueSet>,
    /// Indirect counters.
    pub counters: Catalog<Counter>,
    /// Indirect meters.
    pub meters: Catalog<Meter>,
    /// Registers.
    pub registers: Catalog<Register>,
    /// Digests.
    pub digests: Catalog<Digest>,
    /// Headers of packet-in and packet-out.
    pub controller_headers: Catalog<ControllerHeader>,
}

impl Names {
    /// Indexes a P4Info.
    ///
    /// # Errors
    /// [`P4InfoError`] if the P4Info is inconsistent.
    pub fn new(p4info: P4Info) -> Result<Self, P4InfoError> {
        check_ids(&p4info)?;
        let mut actions = Catalog::new("action");
        for action in &p4info.actions {
            actions.add(action.preamble.as_ref(), |id, name| {
                Action::new(id, name, action).map(Arc::new)
            })?;
        }
        let mut tables = Catalog::new("table");
        for table in &p4info.tables {
            tables.add(table.preamble.as_ref(), |id, name| {
                Table::new(id, name, table, &actions)
            })?;
        }
        let mut action_profiles = Catalog::new("action profile");
        for profile in &p4info.action_profiles {
            action_profiles.add(profile.preamble.as_ref(), |id, name| {
                ActionProfile::new(id, name, profile, &tables)
            })?;
        }
        let mut value_sets = Catalog::new("value set");
        for set in &p4info.value_sets {
            value_sets.add(set.preamble.as_ref(), |id, name| {
                ValueSet::new(id, name, set)
            })?;
        }
        let mut counters = Catalog::new("counter");
        for counter in &p4info.counters {
            counters.add(counter.preamble.as_ref(), |id, name| {
                Counter::new(id, name, counter)
            })?;
        }
        let mut meters = Catalog::new("meter");
        for meter in &p4info.meters {
            meters.add(meter.preamble.as_ref(), |id, name| {
                Meter::new(id, name, meter)
            })?;
        }
        let mut registers = Catalog::new("register");
        for register in &p4info.registers {
            registers.add(register.preamble.as_ref(), |id, name| {
                Register::new(id, name, register)
            })?;
        }
        let types = p4info.type_info.clone().unwrap_or_default();
        let mut digests = Catalog::new("digest");
        for digest in &p4info.digests {
            digests.add(digest.preamble.as_ref(), |id, name| {
                Digest::new(id, name, digest, &types)
            })?;
        }
        let mut controller_headers = Catalog::new("controller header");
        for header in &p4info.controller_packet_metadata {
            controller_headers.add(header.preamble.as_ref(), |id, name| {
                ControllerHeader::new(id, name, header)
            })?;
        }
        Ok(Names {
            p4info,
            tables,
            actions,
            action_profiles,
            value_sets,
            counters,
            meters,
            registers,
            digests,
            controller_headers,
        })
    }

    /// Returns the P4Info.
    pub fn p4info(&self) -> &P4Info {
        &self.p4info
    }

    /// Returns the table of this name or alias.
    ///
    /// # Errors
    /// [`NameError`] with the nearest names.
    pub fn table(&self, name: &str) -> Result<&Table, NameError> {
        self.tables.get(name)
    }

    /// Returns the action profile of this name or alias.
    ///
    /// # Errors
    /// [`NameError`] with the nearest names.
    pub fn action_profile(&self, name: &str) -> Result<&ActionProfile, NameError> {
        self.action_profiles.get(name)
    }

    /// Returns the parser value set of this name or alias.
    ///
    /// # Errors
    /// [`NameError`] with the nearest names.
    pub fn value_set(&self, name: &str) -> Result<&ValueSet, NameError> {
        self.value_sets.get(name)
    }

    /// Returns the counter of this name or alias.
    ///
    /// # Errors
    /// [`NameError`] with the nearest names.
    pub fn counter(&self, name: &str) -> Result<&Counter, NameError> {
        self.counters.get(name)
    }

    /// Returns the meter of this name or alias.
    ///
    /// # Errors
    /// [`NameError`] with the nearest names.
    pub fn meter(&self, name: &str) -> Result<&Meter, NameError> {
        self.meters.get(name)
    }

    /// Returns the register of this name or alias.
    ///
    /// # Errors
    /// [`NameError`] with the nearest names.
    pub fn register(&self, name: &str) -> Result<&Register, NameError> {
        self.registers.get(name)
    }

    /// Returns the digest of this name or alias.
    ///
    /// # Errors
    /// [`NameError`] with the nearest names.
    pub fn digest(&self, name: &str) -> Result<&Digest, NameError> {
        self.digests.get(name)
    }

    /// Returns the controller header `packet_in` or `packet_out`.
    ///
    /// # Errors
    /// [`NameError`] when the program has no such header.
    pub fn controller_header(&self, name: &str) -> Result<&ControllerHeader, NameError> {
        self.controller_headers.get(name)
    }
}

/// Checks that objects of different kinds have different ids (§6.1.2). A [`Catalog`] checks objects of one kind.
fn check_ids(p4info: &P4Info) -> Result<(), P4InfoError> {
    let mut kinds = HashMap::new();
    let mut check = |kind: &'static str, preamble: Option<&Preamble>| {
        let Some(Preamble { id, name, .. }) = preamble else {
            return Ok(());
        };
        match *kinds.entry(*id).or_insert(kind) == kind {
            true => Ok(()),
            false => Err(P4InfoError::RepeatedId {
                place: format!("{kind} \"{name}\""),
                id: *id,
            }),
        }
    };
    macro_rules! check {
        ($($list:ident: $kind:literal),+) => {
            $(for object in &p4info.$list {
                check($kind, object.preamble.as_ref())?;
            })+
        };
    }
    check!(
        tables: "table",
        actions: "action",
        action_profiles: "action profile",
        counters: "counter",
        direct_counters: "direct counter",
        meters: "meter",
        direct_meters: "direct meter",
        controller_packet_metadata: "controller header",
        value_sets: "value set",
        registers: "register",
        digests: "digest"
    );
    Ok(())
}
