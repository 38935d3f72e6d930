//! Builds table entries from names and values (§9.1).

use super::field::missing_values;
use super::{ActionScope, FieldError, MatchField, MatchKind, NameError, Table};
use crate::bytestring::Bytestring;
use crate::v1::{self, field_match as fm, field_match::FieldMatchType, table_action};
use std::collections::BTreeMap;

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
    #[error("{place}: \"{field}\" is to be from {low} to {high}, which is no value")]
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
        /// Whether the table's entries have one.
        needed: bool,
    },
    /// An entry that is to be written has no action.
    #[error("{place}: the entry has no action")]
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
    #[error("{place}: the default entry has no key and no priority")]
    DefaultHasNoKey {
        /// The table.
        place: String,
    },
    /// Entries of the table name members or groups of its action profile.
    #[error("{place} takes its actions from an action profile; its entries don't name them")]
    Indirect {
        /// The table.
        place: String,
    },
}

impl From<NameError> for EntryError {
    fn from(error: NameError) -> Self {
        FieldError::from(error).into()
    }
}

/// A table entry in the making. A field that is not given matches anything, which all kinds but
/// exact allow.
#[derive(Debug, Clone)]
pub struct EntryBuilder<'a> {
    table: &'a Table,
    is_default: bool,
    /// By field id; `None` for a field that was given and matches anything.
    key: BTreeMap<u32, Option<FieldMatchType>>,
    priority: i32,
    action: Option<v1::Action>,
}

impl<'a> EntryBuilder<'a> {
    pub(super) fn new(table: &'a Table, is_default: bool) -> Self {
        EntryBuilder {
            table,
            is_default,
            key: BTreeMap::new(),
            priority: 0,
            action: None,
        }
    }

    /// An exact field equals a value.
    ///
    /// # Errors
    /// [`EntryError`] when the field is unknown, not exact, given twice or too narrow.
    pub fn exact(self, field: &str, value: impl Into<Bytestring>) -> Result<Self, EntryError> {
        let value = value.into();
        let field = self.fresh_field(field, MatchKind::Exact, &[&value])?;
        Ok(self.with(
            field,
            Some(FieldMatchType::Exact(fm::Exact {
                value: value.into(),
            })),
        ))
    }

    /// A field's `prefix_len` highest bits equal those of a value, whose others are 0. A length of
    /// 0 matches anything.
    ///
    /// # Errors
    /// [`EntryError`] when the field is unknown, not LPM, given twice or too narrow, or the value
    /// has bits behind the prefix.
    pub fn lpm(
        self,
        field: &str,
        value: impl Into<Bytestring>,
        prefix_len: u32,
    ) -> Result<Self, EntryError> {
        let value = value.into();
        let field = self.fresh_field(field, MatchKind::Lpm, &[&value])?;
        let bitwidth = field.field.bitwidth;
        let Some(behind) = bitwidth.checked_sub(prefix_len as usize) else {
            let (place, field) = (self.table.place(), field.field.name.clone());
            return Err(EntryError::PrefixTooLong {
                place,
                field,
                bitwidth,
                prefix_len,
            });
        };
        let inside = value.clear_low_bits(behind);
        self.refuse_stray_bits(field, &value, inside, || {
            format!("its /{prefix_len} prefix")
        })?;
        // The width fits an i32 as P4Info has it, and the length fits the width.
        let matches = (prefix_len > 0).then(|| {
            FieldMatchType::Lpm(fm::Lpm {
                value: value.into(),
                prefix_len: prefix_len as i32,
            })
        });
        Ok(self.with(field, matches))
    }

    /// A ternary field equals a value where `mask` has ones; elsewhere the value is 0. A mask of 0
    /// matches anything.
    ///
    /// # Errors
    /// [`EntryError`] when the field is unknown, not ternary, given twice or too narrow, or the
    /// value has bits outside the mask.
    pub fn ternary(
        self,
        field: &str,
        value: impl Into<Bytestring>,
        mask: impl Into<Bytestring>,
    ) -> Result<Self, EntryError> {
        let (value, mask) = (value.into(), mask.into());
        let field = self.fresh_field(field, MatchKind::Ternary, &[&value, &mask])?;
        self.refuse_stray_bits(field, &value, value.masked(&mask), || {
            format!("mask {mask}")
        })?;
        let matches = (!mask.is_zero()).then(|| {
            FieldMatchType::Ternary(fm::Ternary {
                value: value.into(),
                mask: mask.into(),
            })
        });
        Ok(self.with(field, matches))
    }

    /// A range field is between two bounds, both included. The whole range matches anything.
    ///
    /// # Errors
    /// [`EntryError`] when the field is unknown, not a range, given twice or too narrow, or `high`
    /// is below `low`.
    pub fn range(
        self,
        field: &str,
        low: impl Into<Bytestring>,
        high: impl Into<Bytestring>,
    ) -> Result<Self, EntryError> {
        let (low, high) = (low.into(), high.into());
        let field = self.fresh_field(field, MatchKind::Range, &[&low, &high])?;
        if high < low {
            let (place, field) = (self.table.place(), field.field.name.clone());
            return Err(EntryError::EmptyRange {
                place,
                field,
                low,
                high,
            });
        }
        let is_all = low.is_zero() && high.is_max(field.field.bitwidth);
        let matches = (!is_all).then(|| {
            FieldMatchType::Range(fm::Range {
                low: low.into(),
                high: high.into(),
            })
        });
        Ok(self.with(field, matches))
    }

    /// An optional field equals a value.
    ///
    /// # Errors
    /// [`EntryError`] when the field is unknown, not optional, given twice or too narrow.
    pub fn optional(self, field: &str, value: impl Into<Bytestring>) -> Result<Self, EntryError> {
        let value = value.into();
        let field = self.fresh_field(field, MatchKind::Optional, &[&value])?;
        Ok(self.with(
            field,
            Some(FieldMatchType::Optional(fm::Optional {
                value: value.into(),
            })),
        ))
    }

    /// Priority among entries that match the same packet, above 0; the highest wins.
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// What a hit does.
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
        self.action = Some(action.call(values)?);
        Ok(self)
    }

    /// The entry's key alone, as a read or a deletion names it.
    ///
    /// # Errors
    /// [`EntryError`] when an exact field has no value, or a priority is missing or needless.
    pub fn key(self) -> Result<v1::TableEntry, EntryError> {
        let place = self.table.place();
        if self.is_default {
            if !self.key.is_empty() || self.priority != 0 {
                return Err(EntryError::DefaultHasNoKey { place });
            }
        } else {
            let missing: Vec<_> = (self.table.key.iter())
                .filter(|field| field.kind == MatchKind::Exact)
                .map(|field| &field.field)
                .filter(|field| !self.key.contains_key(&field.id))
                .collect();
            if !missing.is_empty() {
                return Err(missing_values(&place, missing).into());
            }
            let (priority, needed) = (self.priority, self.table.needs_priority());
            if priority < 0 || (priority > 0) != needed {
                return Err(EntryError::Priority {
                    place,
                    priority,
                    needed,
                });
            }
        }
        let matches = self.key.into_iter().filter_map(|(field_id, given)| {
            given.map(|given| v1::FieldMatch {
                field_id,
                field_match_type: Some(given),
            })
        });
        Ok(v1::TableEntry {
            table_id: self.table.id,
            r#match: matches.collect(),
            priority: self.priority,
            is_default_action: self.is_default,
            ..Default::default()
        })
    }

    /// The entry.
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
            r#type: Some(table_action::Type::Action(action)),
        };
        Ok(v1::TableEntry {
            action: Some(action),
            ..self.key()?
        })
    }

    /// The field, if it is matched this way, has not been given and holds the values.
    fn fresh_field(
        &self,
        name: &str,
        given: MatchKind,
        values: &[&Bytestring],
    ) -> Result<&'a MatchField, EntryError> {
        let field = self.table.field(name)?;
        let place = self.table.place();
        if field.kind != given {
            let (field, kind) = (name.into(), field.kind.clone());
            return Err(EntryError::Kind {
                place,
                field,
                kind,
                given,
            });
        }
        if self.key.contains_key(&field.field.id) {
            return Err(FieldError::Repeated {
                place,
                field: name.into(),
            }
            .into());
        }
        values
            .iter()
            .try_for_each(|value| field.field.check(&place, value))?;
        Ok(field)
    }

    fn refuse_stray_bits(
        &self,
        field: &MatchField,
        value: &Bytestring,
        inside: Bytestring,
        bounds: impl FnOnce() -> String,
    ) -> Result<(), EntryError> {
        if *value == inside {
            return Ok(());
        }
        let (place, field, value) = (self.table.place(), field.field.name.clone(), value.clone());
        Err(EntryError::StrayBits {
            place,
            field,
            value,
            bounds: bounds(),
            inside,
        })
    }

    fn with(mut self, field: &MatchField, matches: Option<FieldMatchType>) -> Self {
        self.key.insert(field.field.id, matches);
        self
    }
}
