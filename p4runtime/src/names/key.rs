//! Builds keys of table entries and members of value sets from names and values (§9.1.1).

use super::field::missing_values;
use super::{EntryError, FieldError, MatchField, MatchKind, NameError};
use crate::bytestring::Bytestring;
use crate::v1::{self, field_match as fm, field_match::FieldMatchType};
use std::collections::BTreeMap;

/// Builds a key. A field that is not given matches anything; an exact field must be given.
#[derive(Debug, Clone)]
pub struct KeyBuilder<'a> {
    /// The table or value set, for errors.
    place: String,
    fields: &'a [MatchField],
    /// Matches by field id; `None` for a field that was given and matches anything.
    given: BTreeMap<u32, Option<FieldMatchType>>,
}

/// The match field of a name.
pub(super) fn find<'a>(
    fields: &'a [MatchField],
    place: &str,
    name: &str,
) -> Result<&'a MatchField, NameError> {
    let found = fields.iter().find(|field| field.field.name == name);
    found.ok_or_else(|| {
        let existing = fields.iter().map(|field| field.field.name.as_str());
        NameError::new(place, "match field", name, existing)
    })
}

impl<'a> KeyBuilder<'a> {
    pub(super) fn new(place: String, fields: &'a [MatchField]) -> Self {
        KeyBuilder {
            place,
            fields,
            given: BTreeMap::new(),
        }
    }

    /// Matches an exact field.
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

    /// Matches the `prefix_len` highest bits of a field (LPM). The other bits of the value are 0. A length of 0 matches
    /// anything.
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
            let (place, field) = (self.place.clone(), field.field.name.clone());
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
        // P4Info's widths are i32, and the length is at most the width.
        let matches = (prefix_len > 0).then(|| {
            FieldMatchType::Lpm(fm::Lpm {
                value: value.into(),
                prefix_len: prefix_len as i32,
            })
        });
        Ok(self.with(field, matches))
    }

    /// Matches the bits of a ternary field that are set in `mask`. The other bits of the value are 0. A mask of 0 matches
    /// anything.
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

    /// Matches a range field between two bounds, both included. The whole range matches anything.
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
            let (place, field) = (self.place.clone(), field.field.name.clone());
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

    /// Matches an optional field.
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

    /// Returns the match fields.
    ///
    /// # Errors
    /// [`EntryError`] when an exact field has no value.
    pub fn build(self) -> Result<Vec<v1::FieldMatch>, EntryError> {
        let missing: Vec<_> = (self.fields.iter())
            .filter(|field| field.kind == MatchKind::Exact)
            .map(|field| &field.field)
            .filter(|field| !self.given.contains_key(&field.id))
            .collect();
        if !missing.is_empty() {
            return Err(missing_values(&self.place, missing).into());
        }
        let matches = self.given.into_iter().filter_map(|(field_id, given)| {
            given.map(|given| v1::FieldMatch {
                field_id,
                field_match_type: Some(given),
            })
        });
        Ok(matches.collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.given.is_empty()
    }

    /// Returns the field if it has this match kind, is not given yet, and can hold the values.
    fn fresh_field(
        &self,
        name: &str,
        given: MatchKind,
        values: &[&Bytestring],
    ) -> Result<&'a MatchField, EntryError> {
        let place = self.place.clone();
        let field = find(self.fields, &place, name)?;
        if field.kind != given {
            let (field, kind) = (name.into(), field.kind.clone());
            return Err(EntryError::Kind {
                place,
                field,
                kind,
                given,
            });
        }
        if self.given.contains_key(&field.field.id) {
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
        let (place, field, value) = (self.place.clone(), field.field.name.clone(), value.clone());
        Err(EntryError::StrayBits {
            place,
            field,
            value,
            bounds: bounds(),
            inside,
        })
    }

    fn with(mut self, field: &MatchField, matches: Option<FieldMatchType>) -> Self {
        self.given.insert(field.field.id, matches);
        self
    }
}
