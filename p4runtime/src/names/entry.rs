//! Builds table entries from names and values (§9.1).

use super::{ActionScope, FieldError, KeyBuilder, MatchKind, NameError, Table};
use crate::bytestring::Bytestring;
use crate::v1::{self, table_action};

/// Why an entry cannot be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    /// A match field or parameter is unknown, missing, given twice or too narrow.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// A match field is compared in another way.
    #[error("{place}: \"{field}\" is matched {kind}, not {given}")]
    Kind {
        /// The table.
        place: String,
        /// The field.
        field: String,
        /// How it is matched.
        kind: MatchKind,
        /// How it was given.
        given: MatchKind,
    },
    /// A prefix is longer than its field.
    #[error("{place}: \"{field}\" has {bitwidth} bits, too few for a prefix of {prefix_len}")]
    PrefixTooLong {
        /// The table.
        place: String,
        /// The field.
        field: String,
        /// Its width.
        bitwidth: usize,
        /// The prefix's length.
        prefix_len: u32,
    },
    /// A value has bits where its prefix or mask says that they don't count (§9.1.1).
    #[error("{place}: \"{field}\" is {value}, with bits outside {bounds}; inside it is {inside}")]
    StrayBits {
        /// The table.
        place: String,
        /// The field.
        field: String,
        /// The value given.
        value: Bytestring,
        /// The prefix's length or the mask.
        bounds: String,
        /// The value that would be right.
        inside: Bytestring,
    },
    /// A range ends before it starts.
    #[error("{place}: \"{field}\": range {low} to {high} is empty, expected low <= high")]
    EmptyRange {
        /// The table.
        place: String,
        /// The field.
        field: String,
        /// Lower bound.
        low: Bytestring,
        /// Upper bound.
        high: Bytestring,
    },
    /// Whether an entry has a priority follows from its table's key (§9.1).
    #[error(
        "{place}: priority {priority}; {}",
        if *needed { "ternary, range and optional fields need one above 0" }
        else { "without ternary, range or optional fields it has to be 0" }
    )]
    Priority {
        /// The table.
        place: String,
        /// The priority given, 0 if none.
        priority: i32,
        /// True if the table's entries have a priority.
        needed: bool,
    },
    /// An entry that is to be written has no action.
    #[error("{place}: the entry has no action, expected one")]
    NoAction {
        /// The table.
        place: String,
    },
    /// The program allows the action in the table's other role only.
    #[error("{place}: action \"{action}\" may not be used in {role}")]
    ActionScope {
        /// The table.
        place: String,
        /// The action.
        action: String,
        /// Entries or the default entry.
        role: &'static str,
    },
    /// The default entry matches what no other entry does.
    #[error("{place}: key or priority in the default entry, expected neither")]
    DefaultHasNoKey {
        /// The table.
        place: String,
    },
    /// Entries of the table name members or groups of its action profile.
    #[error("{place} has an action profile: expected a member, a group or a set, not an action")]
    Indirect {
        /// The table.
        place: String,
    },
    /// The table has no action profile.
    #[error("{place} has no action profile: expected an action, not a member, a group or a set")]
    Direct {
        /// The table.
        place: String,
    },
}

impl From<NameError> for EntryError {
    fn from(error: NameError) -> Self {
        FieldError::from(error).into()
    }
}

/// Builds a table entry.
#[derive(Debug, Clone)]
pub struct EntryBuilder<'a> {
    table: &'a Table,
    is_default: bool,
    key: KeyBuilder<'a>,
    priority: i32,
    action: Option<table_action::Type>,
}

impl<'a> EntryBuilder<'a> {
    pub(super) fn new(table: &'a Table, is_default: bool) -> Self {
        EntryBuilder {
            table,
            is_default,
            key: KeyBuilder::new(table.place(), &table.key),
            priority: 0,
            action: None,
        }
    }

    /// Matches an exact field.
    ///
    /// # Errors
    /// As [`KeyBuilder::exact`].
    pub fn exact(mut self, field: &str, value: impl Into<Bytestring>) -> Result<Self, EntryError> {
        self.key = self.key.exact(field, value)?;
        Ok(self)
    }

    /// Matches the first bits of a field (LPM).
    ///
    /// # Errors
    /// As [`KeyBuilder::lpm`].
    pub fn lpm(
        mut self,
        field: &str,
        value: impl Into<Bytestring>,
        prefix_len: u32,
    ) -> Result<Self, EntryError> {
        self.key = self.key.lpm(field, value, prefix_len)?;
        Ok(self)
    }

    /// Matches a ternary field under a mask.
    ///
    /// # Errors
    /// As [`KeyBuilder::ternary`].
    pub fn ternary(
        mut self,
        field: &str,
        value: impl Into<Bytestring>,
        mask: impl Into<Bytestring>,
    ) -> Result<Self, EntryError> {
        self.key = self.key.ternary(field, value, mask)?;
        Ok(self)
    }

    /// Matches a range field between two bounds, both included.
    ///
    /// # Errors
    /// As [`KeyBuilder::range`].
    pub fn range(
        mut self,
        field: &str,
        low: impl Into<Bytestring>,
        high: impl Into<Bytestring>,
    ) -> Result<Self, EntryError> {
        self.key = self.key.range(field, low, high)?;
        Ok(self)
    }

    /// Matches an optional field.
    ///
    /// # Errors
    /// As [`KeyBuilder::optional`].
    pub fn optional(
        mut self,
        field: &str,
        value: impl Into<Bytestring>,
    ) -> Result<Self, EntryError> {
        self.key = self.key.optional(field, value)?;
        Ok(self)
    }

    /// Sets the priority, above 0. Of the entries that match a packet, the highest wins.
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// Sets the action of a hit.
    ///
    /// # Errors
    /// [`EntryError`] when the table does not have the action in this role, or a parameter is
    /// unknown, missing, given twice or too narrow.
    pub fn action(mut self, name: &str, values: &[(&str, Bytestring)]) -> Result<Self, EntryError> {
        let place = || self.table.place();
        if self.table.is_indirect {
            return Err(EntryError::Indirect { place: place() });
        }
        let (scope, action) = self.table.action(name)?;
        let (forbidden, role) = match self.is_default {
            true => (ActionScope::TableOnly, "the default entry"),
            false => (ActionScope::DefaultOnly, "entries other than the default"),
        };
        if *scope == forbidden || *scope == ActionScope::GroupAction {
            let action = action.name.clone();
            return Err(EntryError::ActionScope {
                place: place(),
                action,
                role,
            });
        }
        self.action = Some(table_action::Type::Action(action.call(values)?));
        Ok(self)
    }

    /// Sets the action of a hit to a member of the table's action profile.
    ///
    /// # Errors
    /// [`EntryError::Direct`] when the table has no action profile.
    pub fn member(self, id: u32) -> Result<Self, EntryError> {
        self.indirect(table_action::Type::ActionProfileMemberId(id))
    }

    /// Sets the action of a hit to a group of the table's action profile.
    ///
    /// # Errors
    /// [`EntryError::Direct`] when the table has no action profile.
    pub fn group(self, id: u32) -> Result<Self, EntryError> {
        self.indirect(table_action::Type::ActionProfileGroupId(id))
    }

    /// Sets the action of a hit to a one-shot action set: actions of [`Action::call`](super::Action::call) with weights
    /// (§9.2.3).
    ///
    /// # Errors
    /// [`EntryError::Direct`] when the table has no action profile.
    pub fn one_shot(
        self,
        actions: impl IntoIterator<Item = (v1::Action, i32)>,
    ) -> Result<Self, EntryError> {
        let actions = actions
            .into_iter()
            .map(|(action, weight)| v1::ActionProfileAction {
                action: Some(action),
                weight,
                watch_kind: None,
            });
        let set = v1::ActionProfileActionSet {
            action_profile_actions: actions.collect(),
            ..Default::default()
        };
        self.indirect(table_action::Type::ActionProfileActionSet(set))
    }

    fn indirect(mut self, action: table_action::Type) -> Result<Self, EntryError> {
        if !self.table.is_indirect {
            return Err(EntryError::Direct {
                place: self.table.place(),
            });
        }
        self.action = Some(action);
        Ok(self)
    }

    /// Returns the entry's key alone, for a read or a deletion.
    ///
    /// # Errors
    /// [`EntryError`] when an exact field has no value, or a priority is missing or needless.
    pub fn key(self) -> Result<v1::TableEntry, EntryError> {
        let place = self.table.place();
        let key = match self.is_default {
            true if !self.key.is_empty() || self.priority != 0 => {
                return Err(EntryError::DefaultHasNoKey { place });
            }
            true => Vec::new(),
            false => self.key.build()?,
        };
        let (priority, needed) = (self.priority, self.table.needs_priority());
        if !self.is_default && (priority < 0 || (priority > 0) != needed) {
            return Err(EntryError::Priority {
                place,
                priority,
                needed,
            });
        }
        Ok(v1::TableEntry {
            table_id: self.table.id,
            r#match: key,
            priority: self.priority,
            is_default_action: self.is_default,
            ..Default::default()
        })
    }

    /// Returns the entry.
    ///
    /// # Errors
    /// As [`key`](Self::key), and when there is no action.
    pub fn build(mut self) -> Result<v1::TableEntry, EntryError> {
        let Some(action) = self.action.take() else {
            return Err(EntryError::NoAction {
                place: self.table.place(),
            });
        };
        let action = v1::TableAction {
            r#type: Some(action),
        };
        Ok(v1::TableEntry {
            action: Some(action),
            ..self.key()?
        })
    }
}
