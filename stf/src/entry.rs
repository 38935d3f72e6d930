//! Builds table entries from a test's lines.

use num_bigint::BigUint;
use ultima_p4runtime::bytestring::Bytestring;
use ultima_p4runtime::names::{
    Action, ActionProfile, EntryBuilder, EntryError, MatchField, MatchKind, Table,
};
use ultima_p4runtime::v1::{ActionProfileMember, TableEntry};

use super::literal::{Literal, bytestring};
use super::lookup::{self, LookupError};
use super::script::{Call, KeyValue};

/// Why an entry cannot be built.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum BuildError {
    /// An unknown or ambiguous name.
    #[error(transparent)]
    Lookup(#[from] LookupError),
    /// An entry that is invalid for the table.
    #[error(transparent)]
    Entry(#[from] EntryError),
    /// A match of the wrong kind.
    #[error("key field {field} is {kind}: expected {expected}")]
    Form {
        /// The field.
        field: String,
        /// The match kind.
        kind: MatchKind,
        /// The expected form.
        expected: &'static str,
    },
}

/// The action of a hit.
pub enum Hit<'a> {
    /// An action.
    Call(&'a Call),
    /// The action of a member of the table's action profile.
    Member(u32),
}

/// Builds an entry to add. A missing key field is zero if it is exact, and otherwise matches anything. Priorities start at 0 in
/// tests and at 1 in P4Runtime.
pub fn added(
    table: &Table,
    priority: Option<i32>,
    key: &[(String, KeyValue)],
    hit: Hit<'_>,
) -> Result<TableEntry, BuildError> {
    let mut entry = table.entry();
    if table.needs_priority() {
        entry = entry.priority(priority.unwrap_or(0).saturating_add(1));
    }
    let mut missing: Vec<&MatchField> = table.key.iter().collect();
    for (name, value) in key {
        let field = lookup::key_field(table, name)?;
        missing.retain(|other| other.field.id != field.field.id);
        entry = with_field(entry, field, value)?;
    }
    for field in missing {
        if field.kind == MatchKind::Exact {
            entry = entry.exact(&field.field.name, 0u8)?;
        }
    }
    let entry = match hit {
        Hit::Call(call) => with_action(entry, table, call)?,
        Hit::Member(id) => entry.member(id)?,
    };
    Ok(entry.build()?)
}

/// Builds a member of an action profile.
pub fn member(
    profile: &ActionProfile,
    id: u32,
    call: &Call,
) -> Result<ActionProfileMember, BuildError> {
    let actions = profile.actions.iter().map(AsRef::as_ref);
    let action: &Action = lookup::find("action", &call.action, actions, |one| &one.name)?;
    let member = profile.member(id, &action.name, &arguments(call));
    Ok(member.map_err(EntryError::from)?)
}

/// Builds a default entry.
pub fn default(table: &Table, call: &Call) -> Result<TableEntry, BuildError> {
    Ok(with_action(table.default_entry(), table, call)?.build()?)
}

fn with_action<'a>(
    entry: EntryBuilder<'a>,
    table: &Table,
    call: &Call,
) -> Result<EntryBuilder<'a>, BuildError> {
    let action = lookup::action(table, &call.action)?;
    Ok(entry.action(&action.name, &arguments(call))?)
}

fn arguments(call: &Call) -> Vec<(&str, Bytestring)> {
    let arguments = call.arguments.iter();
    arguments
        .map(|(name, value)| (name.as_str(), value.bytestring()))
        .collect()
}

fn with_field<'a>(
    entry: EntryBuilder<'a>,
    field: &MatchField,
    value: &KeyValue,
) -> Result<EntryBuilder<'a>, BuildError> {
    let width = field.field.bitwidth as u32;
    let name = field.field.name.as_str();
    let all = (BigUint::from(1u8) << width) - 1u8;
    let form = |expected| BuildError::Form {
        field: name.to_owned(),
        kind: field.kind.clone(),
        expected,
    };
    Ok(match field.kind {
        MatchKind::Exact => match value {
            KeyValue::Plain(literal) if !literal.open => entry.exact(name, literal.bytestring())?,
            _ => return Err(form("one number")),
        },
        MatchKind::Optional => match value {
            KeyValue::Plain(literal) if !literal.open => {
                entry.optional(name, literal.bytestring())?
            }
            KeyValue::Plain(literal) if literal.prefix == 0 => entry,
            _ => return Err(form("one number, or * in all places")),
        },
        MatchKind::Lpm => {
            let (literal, prefix) = match value {
                KeyValue::Prefix(literal, prefix) => (literal, *prefix),
                // Like p4c's runner: as many bits as the written digits have.
                KeyValue::Plain(literal @ Literal { mask: Some(_), .. }) => {
                    (literal, literal.prefix.min(width))
                }
                KeyValue::Plain(literal) => (literal, width),
                _ => return Err(form("a number, a number/length or one that ends in *")),
            };
            let behind = width.saturating_sub(prefix) as usize;
            let inside = literal.bytestring().clear_low_bits(behind);
            entry.lpm(name, inside, prefix)?
        }
        MatchKind::Ternary => {
            let (literal, mask) = match value {
                KeyValue::Plain(literal) => (literal, literal.mask.clone().unwrap_or(all.clone())),
                KeyValue::Masked(literal, mask) => (literal, mask.value.clone()),
                KeyValue::Prefix(literal, prefix) => {
                    let behind = width.saturating_sub(*prefix);
                    (literal, (&all >> behind) << behind)
                }
                KeyValue::Range(..) => {
                    return Err(form("a number with or without *, or number&&&mask"));
                }
            };
            // Digits beyond the field's width are zeros.
            let mask = mask & all;
            entry.ternary(
                name,
                bytestring(&(&literal.value & &mask)),
                bytestring(&mask),
            )?
        }
        MatchKind::Range => match value {
            KeyValue::Range(low, high) => entry.range(name, low.bytestring(), high.bytestring())?,
            KeyValue::Plain(literal) if !literal.open => {
                entry.range(name, literal.bytestring(), literal.bytestring())?
            }
            _ => return Err(form("a number or low->high")),
        },
        MatchKind::Other(_) => return Err(form("a match kind of STF")),
    })
}
