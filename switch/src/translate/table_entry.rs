//! Conversion of table entries between P4Runtime's messages and the interpreter's types (P4Runtime §9.1).

use ultima_p4runtime::v1::field_match::{self, FieldMatchType};
use ultima_p4runtime::v1::table_entry::IdleTimeout;
use ultima_p4runtime::v1::{self, table_action};

use super::action::{action_message, call};
use super::profile;
use super::query::EntryRow;
use crate::target::Refusal;
use ultima_engine::{CounterCell, EntryAction, FieldMatch, Match, MeterConfig, TableEntry};

pub(super) fn key(fields: Vec<v1::FieldMatch>) -> Result<Vec<FieldMatch>, Refusal> {
    fields.into_iter().map(field_match).collect()
}

fn field_match(field: v1::FieldMatch) -> Result<FieldMatch, Refusal> {
    let matches = match field.field_match_type {
        Some(FieldMatchType::Exact(exact)) => Match::Exact(exact.value),
        Some(FieldMatchType::Lpm(lpm)) => Match::Lpm {
            value: lpm.value,
            prefix_len: u32::try_from(lpm.prefix_len).map_err(|_| {
                let (field, len) = (field.field_id, lpm.prefix_len);
                Refusal::invalid(format!(
                    "match field {field}: prefix length {len} is negative"
                ))
            })?,
        },
        Some(FieldMatchType::Ternary(ternary)) => Match::Ternary {
            value: ternary.value,
            mask: ternary.mask,
        },
        Some(FieldMatchType::Range(range)) => Match::Range {
            low: range.low,
            high: range.high,
        },
        Some(FieldMatchType::Optional(optional)) => Match::Optional(optional.value),
        Some(FieldMatchType::Other(other)) => {
            return Err(Refusal::unimplemented(format!(
                "match field {}: type {} is not one of P4Runtime's own",
                field.field_id, other.type_url
            )));
        }
        None => {
            return Err(Refusal::invalid(format!(
                "match field {} has no value; leave it out to match anything",
                field.field_id
            )));
        }
    };
    Ok(FieldMatch {
        field: field.field_id,
        matches,
    })
}

fn action(action: v1::TableAction) -> Result<EntryAction, Refusal> {
    match action.r#type {
        Some(table_action::Type::Action(action)) => Ok(call(action).into()),
        Some(table_action::Type::ActionProfileMemberId(id)) => Ok(EntryAction::Member(id)),
        Some(table_action::Type::ActionProfileGroupId(id)) => Ok(EntryAction::Group(id)),
        Some(table_action::Type::ActionProfileActionSet(set)) => {
            Ok(EntryAction::OneShot(profile::one_shot(set)?))
        }
        None => Err(Refusal::invalid(
            "the action is empty: expected an action, a member, a group or a set",
        )),
    }
}

#[expect(
    deprecated,
    reason = "clients still write controller_metadata, and want it back"
)]
pub(super) fn entry(message: v1::TableEntry) -> Result<TableEntry, Refusal> {
    Ok(TableEntry {
        key: key(message.r#match)?,
        priority: message.priority,
        action: message.action.map(action).transpose()?,
        controller_metadata: message.controller_metadata,
        metadata: message.metadata,
        idle_timeout_ns: number(message.idle_timeout_ns, "idle_timeout_ns")?,
    })
}

pub(super) fn counter_data(cell: CounterCell) -> v1::CounterData {
    // The messages are signed; a count that exceeds them would take centuries.
    v1::CounterData {
        byte_count: cell.bytes as i64,
        packet_count: cell.packets as i64,
    }
}

pub(super) fn counter_cell(data: &v1::CounterData) -> Result<CounterCell, Refusal> {
    Ok(CounterCell {
        packets: number(data.packet_count, "packet_count")?,
        bytes: number(data.byte_count, "byte_count")?,
    })
}

pub(super) fn meter_message(config: MeterConfig) -> v1::MeterConfig {
    v1::MeterConfig {
        cir: config.cir as i64,
        cburst: config.cburst as i64,
        pir: config.pir as i64,
        pburst: config.pburst as i64,
        eburst: 0,
    }
}

/// Reads a meter. v1model's meters have no excess burst (§9.4).
pub(super) fn meter_config(config: &v1::MeterConfig) -> Result<MeterConfig, Refusal> {
    if config.eburst != 0 {
        return Err(Refusal::invalid(
            "eburst: the meter is a two-rate one, expected 0",
        ));
    }
    Ok(MeterConfig {
        cir: number(config.cir, "cir")?,
        cburst: number(config.cburst, "cburst")?,
        pir: number(config.pir, "pir")?,
        pburst: number(config.pburst, "pburst")?,
    })
}

pub(super) fn key_message(row: EntryRow) -> v1::TableEntry {
    let key = row.view.entry.key.into_iter();
    v1::TableEntry {
        table_id: row.table,
        r#match: key.map(match_message).collect(),
        priority: row.view.entry.priority,
        is_default_action: row.is_default,
        ..v1::TableEntry::default()
    }
}

/// Converts an idle entry to a message for a notification (§16.4).
pub(super) fn idle_entry(row: EntryRow) -> v1::TableEntry {
    v1::TableEntry {
        action: None,
        time_since_last_hit: None,
        counter_data: None,
        meter_config: None,
        ..message(row)
    }
}

#[expect(
    deprecated,
    reason = "clients still write controller_metadata, and want it back"
)]
pub(super) fn message(mut row: EntryRow) -> v1::TableEntry {
    let view = &mut row.view;
    let action = view.entry.action.take().map(|action| match action {
        EntryAction::Call(call) => table_action::Type::Action(action_message(call)),
        EntryAction::Member(id) => table_action::Type::ActionProfileMemberId(id),
        EntryAction::Group(id) => table_action::Type::ActionProfileGroupId(id),
        EntryAction::OneShot(set) => {
            table_action::Type::ActionProfileActionSet(profile::one_shot_message(set))
        }
    });
    let age = |us: u64| IdleTimeout {
        elapsed_ns: i64::try_from(us.saturating_mul(1000)).unwrap_or(i64::MAX),
    };
    v1::TableEntry {
        action: action.map(|action| v1::TableAction {
            r#type: Some(action),
        }),
        controller_metadata: view.entry.controller_metadata,
        metadata: std::mem::take(&mut view.entry.metadata),
        // It was signed when it was written.
        idle_timeout_ns: view.entry.idle_timeout_ns as i64,
        is_const: view.is_const,
        counter_data: view.counter.map(counter_data),
        meter_config: view.meter.flatten().map(meter_message),
        time_since_last_hit: view.idle_us.map(age),
        ..key_message(row)
    }
}

pub(super) fn match_message(field: FieldMatch) -> v1::FieldMatch {
    let matches = match field.matches {
        Match::Exact(value) => FieldMatchType::Exact(field_match::Exact { value }),
        Match::Lpm { value, prefix_len } => FieldMatchType::Lpm(field_match::Lpm {
            value,
            prefix_len: prefix_len as i32,
        }),
        Match::Ternary { value, mask } => {
            FieldMatchType::Ternary(field_match::Ternary { value, mask })
        }
        Match::Range { low, high } => FieldMatchType::Range(field_match::Range { low, high }),
        Match::Optional(value) => FieldMatchType::Optional(field_match::Optional { value }),
    };
    v1::FieldMatch {
        field_id: field.field,
        field_match_type: Some(matches),
    }
}

pub(super) fn check_default(key: &[v1::FieldMatch], priority: i32) -> Result<(), Refusal> {
    match key.is_empty() && priority == 0 {
        true => Ok(()),
        false => Err(Refusal::invalid(
            "a default entry has neither match fields nor a priority",
        )),
    }
}

fn number(value: i64, name: &str) -> Result<u64, Refusal> {
    u64::try_from(value).map_err(|_| Refusal::invalid(format!("{name} {value} is negative")))
}
