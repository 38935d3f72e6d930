//! A decoder for updates of table entries.
//!
//! prost's decoder takes some 5,500 instructions for an entry with one match field and three arguments, because it reads each
//! field through a generic buffer and moves messages several times. This one knows the fields that entries usually have. It
//! leaves everything else to prost's decoder: other fields, a message that is given twice, which prost merges, and malformed
//! bytes.

use crate::v1::action::Param;
use crate::v1::entity::Entity as Kind;
use crate::v1::field_match::{Exact, FieldMatchType, Lpm, Ternary};
use crate::v1::table_action::Type;
use crate::v1::{Action, Entity, FieldMatch, TableAction, TableEntry, Update};

// Tags of fields with a number, whose wire type is 0.
const NUMBER_1: u8 = 1 << 3;
const NUMBER_2: u8 = 2 << 3;
const NUMBER_4: u8 = 4 << 3;
// Tags of fields with bytes or a message, whose wire type is 2.
const BYTES_1: u8 = 1 << 3 | 2;
const BYTES_2: u8 = 2 << 3 | 2;
const BYTES_3: u8 = 3 << 3 | 2;
const BYTES_4: u8 = 4 << 3 | 2;

/// A field's content: a number, or bytes.
#[derive(Clone, Copy)]
struct Value<'a> {
    number: u64,
    bytes: &'a [u8],
}

/// Passes each field of a message to `take` by its tag. Returns `None` if `take` does, or if a field has another wire type.
#[inline]
fn fields<'a>(
    mut encoded: &'a [u8],
    mut take: impl FnMut(u8, Value<'a>) -> Option<()>,
) -> Option<()> {
    while let Some((tag, rest)) = encoded.split_first() {
        encoded = rest;
        let number = varint(&mut encoded)?;
        let mut bytes = &[][..];
        match tag & 7 {
            0 => {}
            2 => (bytes, encoded) = encoded.split_at_checked(usize::try_from(number).ok()?)?,
            _ => return None,
        }
        take(*tag, Value { number, bytes })?;
    }
    Some(())
}

/// Reads a number of at most nine bytes.
#[inline]
fn varint(encoded: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for (at, byte) in encoded.iter().take(9).enumerate() {
        number |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            *encoded = &encoded[at + 1..];
            return Some(number);
        }
    }
    None
}

/// Sets a message's part. Returns `None` if the message has it already.
fn once<T>(place: &mut Option<T>, value: T) -> Option<()> {
    place.replace(value).is_none().then_some(())
}

/// Decodes an update of a table entry. Returns `None` for any other update, and if it has something unusual.
pub(super) fn decode(encoded: &[u8]) -> Option<Update> {
    let (mut kind, mut entity, mut entry) = (0, None, None);
    fields(encoded, |tag, value| match tag {
        NUMBER_1 => {
            kind = value.number as i32;
            Some(())
        }
        BYTES_2 => once(&mut entity, value.bytes),
        _ => None,
    })?;
    fields(entity?, |tag, value| match tag {
        BYTES_2 => once(&mut entry, value.bytes),
        _ => None,
    })?;
    let entity = Some(Kind::TableEntry(table_entry(entry?)?));
    Some(Update {
        r#type: kind,
        entity: Some(Entity { entity }),
    })
}

fn table_entry(encoded: &[u8]) -> Option<TableEntry> {
    let mut entry = TableEntry::default();
    fields(encoded, |tag, value| {
        match tag {
            NUMBER_1 => entry.table_id = value.number as u32,
            BYTES_2 => entry.r#match.push(field_match(value.bytes)?),
            BYTES_3 => once(&mut entry.action, table_action(value.bytes)?)?,
            NUMBER_4 => entry.priority = value.number as i32,
            _ => return None,
        }
        Some(())
    })?;
    Some(entry)
}

fn field_match(encoded: &[u8]) -> Option<FieldMatch> {
    let mut field = FieldMatch::default();
    fields(encoded, |tag, value| {
        let given = match tag {
            NUMBER_1 => {
                field.field_id = value.number as u32;
                return Some(());
            }
            BYTES_2 => FieldMatchType::Exact(exact(value.bytes)?),
            BYTES_3 => FieldMatchType::Ternary(ternary(value.bytes)?),
            BYTES_4 => FieldMatchType::Lpm(lpm(value.bytes)?),
            _ => return None,
        };
        once(&mut field.field_match_type, given)
    })?;
    Some(field)
}

fn exact(encoded: &[u8]) -> Option<Exact> {
    let mut exact = Exact::default();
    fields(encoded, |tag, value| {
        match tag {
            BYTES_1 => exact.value = value.bytes.to_vec(),
            _ => return None,
        }
        Some(())
    })?;
    Some(exact)
}

fn ternary(encoded: &[u8]) -> Option<Ternary> {
    let mut ternary = Ternary::default();
    fields(encoded, |tag, value| {
        match tag {
            BYTES_1 => ternary.value = value.bytes.to_vec(),
            BYTES_2 => ternary.mask = value.bytes.to_vec(),
            _ => return None,
        }
        Some(())
    })?;
    Some(ternary)
}

fn lpm(encoded: &[u8]) -> Option<Lpm> {
    let mut lpm = Lpm::default();
    fields(encoded, |tag, value| {
        match tag {
            BYTES_1 => lpm.value = value.bytes.to_vec(),
            NUMBER_2 => lpm.prefix_len = value.number as i32,
            _ => return None,
        }
        Some(())
    })?;
    Some(lpm)
}

fn table_action(encoded: &[u8]) -> Option<TableAction> {
    let mut given = None;
    fields(encoded, |tag, value| {
        let one = match tag {
            BYTES_1 => Type::Action(action(value.bytes)?),
            NUMBER_2 => Type::ActionProfileMemberId(value.number as u32),
            _ => return None,
        };
        once(&mut given, one)
    })?;
    Some(TableAction { r#type: given })
}

fn action(encoded: &[u8]) -> Option<Action> {
    let mut action = Action::default();
    fields(encoded, |tag, value| {
        match tag {
            NUMBER_1 => action.action_id = value.number as u32,
            BYTES_4 => action.params.push(param(value.bytes)?),
            _ => return None,
        }
        Some(())
    })?;
    Some(action)
}

fn param(encoded: &[u8]) -> Option<Param> {
    let mut param = Param::default();
    fields(encoded, |tag, value| {
        match tag {
            NUMBER_2 => param.param_id = value.number as u32,
            BYTES_3 => param.value = value.bytes.to_vec(),
            _ => return None,
        }
        Some(())
    })?;
    Some(param)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use prost::Message;

    use super::*;

    fn usual_match() -> impl Strategy<Value = FieldMatch> {
        let bytes = || vec(any::<u8>(), 0..20);
        let matches = prop_oneof![
            bytes().prop_map(|value| FieldMatchType::Exact(Exact { value })),
            (bytes(), bytes())
                .prop_map(|(value, mask)| FieldMatchType::Ternary(Ternary { value, mask })),
            (bytes(), 0..i32::MAX)
                .prop_map(|(value, prefix_len)| FieldMatchType::Lpm(Lpm { value, prefix_len })),
        ];
        (any::<u32>(), prop::option::of(matches)).prop_map(|(field_id, field_match_type)| {
            FieldMatch {
                field_id,
                field_match_type,
            }
        })
    }

    fn usual_action() -> impl Strategy<Value = TableAction> {
        let param = (any::<u32>(), vec(any::<u8>(), 0..20));
        let param = param.prop_map(|(param_id, value)| Param { param_id, value });
        let action = (any::<u32>(), vec(param, 0..4));
        let given = prop_oneof![
            action.prop_map(|(action_id, params)| Type::Action(Action { action_id, params })),
            any::<u32>().prop_map(Type::ActionProfileMemberId),
        ];
        prop::option::of(given).prop_map(|r#type| TableAction { r#type })
    }

    prop_compose! {
        fn usual_update()(
            kind in 0..4,
            table_id: u32,
            fields in vec(usual_match(), 0..4),
            action in prop::option::of(usual_action()),
            priority in 0..i32::MAX,
        ) -> Update {
            let entry = TableEntry { table_id, r#match: fields, action, priority, ..TableEntry::default() };
            Update { r#type: kind, entity: Some(entry.into()) }
        }
    }

    proptest! {
        #[test]
        fn usual_entries_are_decoded_as_prost_does(update in usual_update()) {
            prop_assert_eq!(decode(&update.encode_to_vec()), Some(update));
        }

        /// Changed bytes are read as prost reads them, or left to it.
        #[test]
        fn unusual_bytes_are_decoded_as_prost_does(
            update in usual_update(),
            changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
            twice: bool,
        ) {
            let mut encoded = update.encode_to_vec().repeat(1 + usize::from(twice));
            for (at, byte) in changes {
                if !encoded.is_empty() {
                    *at.get_mut(encoded.as_mut_slice()) = byte;
                }
            }
            if let Some(decoded) = decode(&encoded) {
                prop_assert_eq!(Update::decode(encoded.as_slice()).ok(), Some(decoded));
            }
        }
    }
}
