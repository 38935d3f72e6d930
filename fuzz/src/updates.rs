//! Updates that a program's P4Info makes sense of, or nearly so.
//!
//! Bytes that are mutated blindly seldom become an entry with the right ids, kinds of match and
//! widths, and what lies behind these checks would hardly be reached.

use arbitrary::{Arbitrary, Result, Unstructured};
use ultima_p4runtime::config::v1::match_field::{Match as MatchKind, MatchType};
use ultima_p4runtime::config::v1::{MatchField, P4Info, Preamble, Table};
use ultima_p4runtime::v1::action_profile_group::Member;
use ultima_p4runtime::v1::entity::Entity as Kind;
use ultima_p4runtime::v1::field_match::{Exact, FieldMatchType, Lpm, Optional, Range, Ternary};
use ultima_p4runtime::v1::p4_data::Data;
use ultima_p4runtime::v1::replica::PortKind;
use ultima_p4runtime::v1::table_action::Type as Hit;
use ultima_p4runtime::v1::update::Type;
use ultima_p4runtime::v1::{self, Entity, FieldMatch, P4Data, TableAction, Update, digest_entry};

/// Ids of members, groups and sessions: few, so that updates meet each other.
const IDS: u32 = 4;

/// An update of whatever kind the program has entities of.
pub fn update(input: &mut Unstructured, p4info: &P4Info) -> Result<Update> {
    let has_profiles = !p4info.action_profiles.is_empty();
    let entity: Entity = match u8::arbitrary(input)? % 16 {
        0 | 1 if has_profiles => member(input, p4info)?.into(),
        2 if has_profiles => group(input, p4info)?.into(),
        3 if !p4info.value_sets.is_empty() => value_set(input, p4info)?.into(),
        4 if !p4info.digests.is_empty() => digest(input, p4info)?.into(),
        5 => multicast_group(input)?.into(),
        6 => clone_session(input)?.into(),
        7 => cell(input, p4info)?,
        8 => direct(input, p4info)?,
        _ => table_entry(input, p4info)?.into(),
    };
    let shape = u8::arbitrary(input)?;
    let kind = match shape % 16 {
        15 => Type::Unspecified,
        _ if is_only_modified(&entity) => Type::Modify,
        0..8 => Type::Insert,
        8..12 => Type::Modify,
        _ => Type::Delete,
    };
    Ok(Update {
        r#type: kind.into(),
        entity: Some(entity),
    })
}

/// True if the entity always exists, so that only MODIFY applies to it.
fn is_only_modified(entity: &Entity) -> bool {
    match &entity.entity {
        Some(Kind::TableEntry(entry)) => entry.is_default_action,
        Some(
            Kind::CounterEntry(_)
            | Kind::DirectCounterEntry(_)
            | Kind::MeterEntry(_)
            | Kind::DirectMeterEntry(_)
            | Kind::RegisterEntry(_)
            | Kind::ValueSetEntry(_),
        ) => true,
        _ => false,
    }
}

/// Everything that can be read.
pub fn everything() -> Vec<Entity> {
    let with_resources = v1::TableEntry {
        counter_data: Some(v1::CounterData::default()),
        meter_config: Some(v1::MeterConfig::default()),
        ..v1::TableEntry::default()
    };
    let default_entries = v1::TableEntry {
        is_default_action: true,
        ..with_resources.clone()
    };
    vec![
        with_resources.into(),
        default_entries.into(),
        v1::ActionProfileMember::default().into(),
        v1::ActionProfileGroup::default().into(),
        v1::CounterEntry::default().into(),
        v1::MeterEntry::default().into(),
        v1::RegisterEntry::default().into(),
        v1::MulticastGroupEntry::default().into(),
        v1::CloneSessionEntry::default().into(),
        v1::ValueSetEntry::default().into(),
        v1::DigestEntry::default().into(),
    ]
}

fn table_entry(input: &mut Unstructured, p4info: &P4Info) -> Result<v1::TableEntry> {
    if p4info.tables.is_empty() {
        return Ok(v1::TableEntry::default());
    }
    let table = input.choose(&p4info.tables)?;
    let is_default_action = input.ratio(1, 8)?;
    let fields = match is_default_action {
        true => Vec::new(),
        false => key(input, &table.match_fields)?,
    };
    let ranked = table.match_fields.iter().any(|field| {
        let kind = match_type(field);
        !matches!(kind, MatchType::Exact | MatchType::Lpm)
    });
    let priority = match ranked && !is_default_action {
        true => i32::from(u8::arbitrary(input)? % 8),
        false => 0,
    };
    let mut entry = v1::TableEntry {
        table_id: id(&table.preamble),
        r#match: fields,
        action: Some(action(input, p4info, table)?),
        priority,
        is_default_action,
        ..v1::TableEntry::default()
    };
    // Rare fields of an entry.
    let more = u8::arbitrary(input)?;
    if more & 0xc0 == 0xc0 {
        entry.idle_timeout_ns = i64::from(more & 3) * 1_000_000;
        entry.meter_config = (more & 4 != 0).then(|| meter(more));
        entry.counter_data = (more & 8 != 0).then(|| counter(more));
        entry.metadata = vec![more; usize::from(more & 16)];
    }
    Ok(entry)
}

fn key(input: &mut Unstructured, fields: &[MatchField]) -> Result<Vec<FieldMatch>> {
    let mut key = Vec::new();
    for field in fields {
        let width = field.bitwidth;
        let kind = match match_type(field) {
            MatchType::Exact => {
                let value = value(input, width)?;
                FieldMatchType::Exact(Exact { value })
            }
            // The others may be left out.
            _ if input.ratio(1, 4)? => continue,
            MatchType::Optional => {
                let value = value(input, width)?;
                FieldMatchType::Optional(Optional { value })
            }
            MatchType::Lpm => {
                let prefix_len = input.int_in_range(0..=width.max(1))?;
                let low = bits(width, width - prefix_len);
                let value = both(&value(input, width)?, &low, |value, low| value & !low);
                FieldMatchType::Lpm(Lpm { value, prefix_len })
            }
            MatchType::Ternary => {
                let mask = value(input, width)?;
                let value = both(&value(input, width)?, &mask, |value, mask| value & mask);
                FieldMatchType::Ternary(Ternary { value, mask })
            }
            MatchType::Range => {
                let (low, high) = (value(input, width)?, value(input, width)?);
                let swapped = (low.len(), &low) > (high.len(), &high);
                let (low, high) = if swapped { (high, low) } else { (low, high) };
                FieldMatchType::Range(Range { low, high })
            }
            MatchType::Unspecified => continue,
        };
        key.push(FieldMatch {
            field_id: field.id,
            field_match_type: Some(kind),
        });
    }
    Ok(key)
}

fn action(input: &mut Unstructured, p4info: &P4Info, table: &Table) -> Result<TableAction> {
    let hit = match (table.implementation_id, u8::arbitrary(input)? % 4) {
        (0, _) => Hit::Action(call(input, p4info, table)?),
        (_, 0) => Hit::ActionProfileMemberId(u32::arbitrary(input)? % IDS),
        (_, 1) => Hit::ActionProfileGroupId(u32::arbitrary(input)? % IDS),
        _ => {
            let mut set = v1::ActionProfileActionSet::default();
            for _ in 0..u8::arbitrary(input)? % 4 {
                set.action_profile_actions.push(v1::ActionProfileAction {
                    action: Some(call(input, p4info, table)?),
                    weight: i32::from(u8::arbitrary(input)? % 8),
                    watch_kind: None,
                });
            }
            Hit::ActionProfileActionSet(set)
        }
    };
    Ok(TableAction { r#type: Some(hit) })
}

/// One of a table's actions, with arguments.
fn call(input: &mut Unstructured, p4info: &P4Info, table: &Table) -> Result<v1::Action> {
    if table.action_refs.is_empty() {
        return Ok(v1::Action::default());
    }
    let action_id = input.choose(&table.action_refs)?.id;
    let mut actions = p4info.actions.iter();
    let action = actions.find(|action| id(&action.preamble) == action_id);
    let mut params = Vec::new();
    for param in action.map_or(&[][..], |action| &action.params) {
        params.push(v1::action::Param {
            param_id: param.id,
            value: value(input, param.bitwidth)?,
        });
    }
    Ok(v1::Action { action_id, params })
}

fn member(input: &mut Unstructured, p4info: &P4Info) -> Result<v1::ActionProfileMember> {
    let (action_profile_id, table) = profile(input, p4info)?;
    Ok(v1::ActionProfileMember {
        action_profile_id,
        member_id: u32::arbitrary(input)? % IDS,
        action: match table {
            Some(table) => Some(call(input, p4info, table)?),
            None => None,
        },
    })
}

fn group(input: &mut Unstructured, p4info: &P4Info) -> Result<v1::ActionProfileGroup> {
    let (action_profile_id, _) = profile(input, p4info)?;
    let mut members = Vec::new();
    for _ in 0..u8::arbitrary(input)? % 4 {
        members.push(Member {
            member_id: u32::arbitrary(input)? % IDS,
            weight: i32::from(u8::arbitrary(input)? % 8),
            watch_kind: None,
        });
    }
    Ok(v1::ActionProfileGroup {
        action_profile_id,
        group_id: u32::arbitrary(input)? % IDS,
        members,
        max_size: i32::from(u8::arbitrary(input)? % 8),
    })
}

/// An action profile, and a table that has it.
fn profile<'a>(input: &mut Unstructured, p4info: &'a P4Info) -> Result<(u32, Option<&'a Table>)> {
    let profile = id(&input.choose(&p4info.action_profiles)?.preamble);
    let mut tables = p4info.tables.iter();
    Ok((
        profile,
        tables.find(|table| table.implementation_id == profile),
    ))
}

fn multicast_group(input: &mut Unstructured) -> Result<v1::MulticastGroupEntry> {
    Ok(v1::MulticastGroupEntry {
        multicast_group_id: u32::arbitrary(input)? % IDS,
        replicas: replicas(input)?,
        ..v1::MulticastGroupEntry::default()
    })
}

fn clone_session(input: &mut Unstructured) -> Result<v1::CloneSessionEntry> {
    Ok(v1::CloneSessionEntry {
        session_id: u32::arbitrary(input)? % IDS,
        replicas: replicas(input)?,
        class_of_service: u32::from(u8::arbitrary(input)? % 9),
        packet_length_bytes: i32::from(u8::arbitrary(input)?),
    })
}

fn replicas(input: &mut Unstructured) -> Result<Vec<v1::Replica>> {
    let mut replicas = Vec::new();
    for _ in 0..u8::arbitrary(input)? % 4 {
        replicas.push(v1::Replica {
            instance: u32::from(u8::arbitrary(input)? % 4),
            port_kind: Some(PortKind::Port(value(input, 9)?)),
            ..v1::Replica::default()
        });
    }
    Ok(replicas)
}

/// A cell of a counter, a meter or a register, or all of them.
fn cell(input: &mut Unstructured, p4info: &P4Info) -> Result<Entity> {
    let index = match u8::arbitrary(input)? % 16 {
        15 => None,
        index => Some(v1::Index {
            index: i64::from(index),
        }),
    };
    let amount = u8::arbitrary(input)?;
    Ok(match u8::arbitrary(input)? % 3 {
        0 if !p4info.counters.is_empty() => v1::CounterEntry {
            counter_id: id(&input.choose(&p4info.counters)?.preamble),
            index,
            data: Some(counter(amount)),
        }
        .into(),
        1 if !p4info.meters.is_empty() => v1::MeterEntry {
            meter_id: id(&input.choose(&p4info.meters)?.preamble),
            index,
            config: (amount != 0).then(|| meter(amount)),
            ..v1::MeterEntry::default()
        }
        .into(),
        _ => v1::RegisterEntry {
            register_id: match p4info.registers.is_empty() {
                true => 0,
                false => id(&input.choose(&p4info.registers)?.preamble),
            },
            index,
            data: Some(P4Data {
                data: Some(Data::Bitstring(value(input, 64)?)),
            }),
        }
        .into(),
    })
}

/// The counter or the meter of an entry.
fn direct(input: &mut Unstructured, p4info: &P4Info) -> Result<Entity> {
    let table_entry = Some(v1::TableEntry {
        action: None,
        ..table_entry(input, p4info)?
    });
    let amount = u8::arbitrary(input)?;
    Ok(match amount % 2 {
        0 => v1::DirectCounterEntry {
            table_entry,
            data: Some(counter(amount)),
        }
        .into(),
        _ => v1::DirectMeterEntry {
            table_entry,
            config: (amount != 1).then(|| meter(amount)),
            ..v1::DirectMeterEntry::default()
        }
        .into(),
    })
}

fn value_set(input: &mut Unstructured, p4info: &P4Info) -> Result<v1::ValueSetEntry> {
    let set = input.choose(&p4info.value_sets)?;
    let mut members = Vec::new();
    for _ in 0..u8::arbitrary(input)? % 4 {
        members.push(v1::ValueSetMember {
            r#match: key(input, &set.r#match)?,
        });
    }
    Ok(v1::ValueSetEntry {
        value_set_id: id(&set.preamble),
        members,
    })
}

fn digest(input: &mut Unstructured, p4info: &P4Info) -> Result<v1::DigestEntry> {
    let digest = input.choose(&p4info.digests)?;
    let spans = u8::arbitrary(input)?;
    Ok(v1::DigestEntry {
        digest_id: id(&digest.preamble),
        config: (spans != 0).then(|| digest_entry::Config {
            max_timeout_ns: i64::from(spans & 3) * 1_000_000,
            max_list_size: i32::from(spans >> 2 & 3),
            ack_timeout_ns: i64::from(spans >> 4) * 1_000_000,
        }),
    })
}

fn meter(amount: u8) -> v1::MeterConfig {
    let rate = i64::from(amount >> 2);
    v1::MeterConfig {
        cir: rate,
        cburst: rate,
        pir: rate * 2,
        pburst: rate * 2,
        ..v1::MeterConfig::default()
    }
}

fn counter(amount: u8) -> v1::CounterData {
    v1::CounterData {
        byte_count: i64::from(amount) * 60,
        packet_count: i64::from(amount),
    }
}

fn id(preamble: &Option<Preamble>) -> u32 {
    preamble.as_ref().map_or(0, |preamble| preamble.id)
}

fn match_type(field: &MatchField) -> MatchType {
    match field.r#match {
        Some(MatchKind::MatchType(kind)) => kind.try_into().unwrap_or(MatchType::Unspecified),
        _ => MatchType::Unspecified,
    }
}

/// A number of so many bits, in the shortest form; a string where there are no bits. Small ones are
/// common, so that keys and references meet.
fn value(input: &mut Unstructured, width: i32) -> Result<Vec<u8>> {
    if width <= 0 {
        return Ok(input.choose(&["a", "b", "c", ""])?.as_bytes().to_vec());
    }
    let shape = u8::arbitrary(input)?;
    let all = bits(width, width);
    let bytes = match shape % 8 {
        0..4 => vec![shape >> 3 & 7],
        4 | 5 => input.bytes(all.len().min(input.len()))?.to_vec(),
        6 => all.clone(),
        // Not in the shortest form, or too wide.
        _ => return Ok([&[shape >> 3], all.as_slice()].concat()),
    };
    Ok(both(&bytes, &all, |bytes, all| bytes & all))
}

/// A field of `width` bits of which the last `ones` are set.
fn bits(width: i32, ones: i32) -> Vec<u8> {
    let bytes = width.max(1).unsigned_abs().div_ceil(8);
    let ones = ones.max(0).unsigned_abs();
    let byte = |behind: u32| match ones.saturating_sub(behind * 8) {
        0 => 0,
        some @ 1..8 => (1 << some) - 1,
        _ => u8::MAX,
    };
    (0..bytes).rev().map(byte).collect()
}

/// Byte by byte from the last, what is missing in front being zero; in the shortest form.
fn both(left: &[u8], right: &[u8], combine: impl Fn(u8, u8) -> u8) -> Vec<u8> {
    let length = left.len().max(right.len());
    let at = |bytes: &[u8], index: usize| {
        let front = length - bytes.len();
        index.checked_sub(front).map_or(0, |index| bytes[index])
    };
    let bytes: Vec<u8> = (0..length)
        .map(|index| combine(at(left, index), at(right, index)))
        .collect();
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    bytes[zeros.min(length - 1)..].to_vec()
}
