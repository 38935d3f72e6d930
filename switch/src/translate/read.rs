//! Reads of all entities.

use ultima_p4runtime::v1::entity::Entity;
use ultima_p4runtime::v1::{self, PacketReplicationEngineEntry, TableEntry};

use super::filter::Filter;
use super::query::{Query, Row};
use super::table_entry::message;
use super::{arrays, digests, direct, profile, replication, value_set};
use crate::target::{Refusal, Target};

/// Translates a read request to the engine's types.
pub(crate) fn query(target: Option<&dyn Target>, request: v1::Entity) -> Result<Query, Refusal> {
    let Some(request) = request.entity else {
        return Err(Refusal::invalid(
            "the entity is empty: expected a table entry or another entity",
        ));
    };
    if let Some(target) = target {
        target.check_read(&request)?;
    }
    match request {
        Entity::TableEntry(request) => read_entries(request),
        Entity::DirectCounterEntry(request) => direct::read_counters(request),
        Entity::DirectMeterEntry(request) => direct::read_meters(request),
        Entity::CounterEntry(request) => arrays::read_counters(&request),
        Entity::MeterEntry(request) => arrays::read_meters(&request),
        Entity::RegisterEntry(request) => arrays::read_registers(&request),
        Entity::PacketReplicationEngineEntry(request) => replication::read(&request),
        Entity::ActionProfileMember(request) => profile::read_members(&request),
        Entity::ActionProfileGroup(request) => profile::read_groups(&request),
        Entity::ValueSetEntry(request) => Ok(value_set::read(request.value_set_id)),
        Entity::DigestEntry(request) => Ok(digests::read(request.digest_id)),
        Entity::ExternEntry(request) => match request.extern_type_id {
            // A wildcard finds no externs, because this switch has none.
            0 => Ok(Box::new(|_, _, _| Ok(()))),
            id => {
                let what = format!("there is no extern {id:#010x}");
                Err(Refusal::new(tonic::Code::NotFound, what))
            }
        },
    }
}

/// Converts a found object to a message.
pub(crate) fn entity(row: Row) -> Entity {
    match row {
        Row::Entry(row) => Entity::TableEntry(message(row)),
        Row::DirectCounter(row) => Entity::DirectCounterEntry(direct::counter_message(row)),
        Row::DirectMeter(row) => Entity::DirectMeterEntry(direct::meter_message(row)),
        Row::Counter(id, at, value) => Entity::CounterEntry(arrays::counter(id, at, value)),
        Row::Meter(id, at, config) => Entity::MeterEntry(arrays::meter(id, at, config)),
        Row::Register(id, at, value) => Entity::RegisterEntry(arrays::register(id, at, value)),
        Row::Member(profile, id, call) => {
            Entity::ActionProfileMember(profile::member(profile, id, call))
        }
        Row::Group(profile, id, group) => {
            Entity::ActionProfileGroup(profile::group(profile, id, group))
        }
        Row::Replication(entry) => {
            Entity::PacketReplicationEngineEntry(PacketReplicationEngineEntry {
                r#type: Some(entry.as_ref().clone()),
            })
        }
        Row::ValueSet(id, members) => Entity::ValueSetEntry(value_set::message(id, members)),
        Row::Digest(id, config) => Entity::DigestEntry(digests::entry(id, config)),
    }
}

fn read_entries(request: TableEntry) -> Result<Query, Refusal> {
    let wants_age = request.time_since_last_hit.is_some();
    let wants_counter = request.counter_data.is_some();
    let wants_meter = request.meter_config.is_some();
    let filter = Filter::new(request)?;
    Ok(Box::new(move |pipeline, scan, found| {
        filter.for_tables(pipeline, scan, |table, scan| {
            if wants_age && filter.table != 0 && !table.has_idle_timeouts() {
                let name = table.name();
                return Err(Refusal::invalid(format!(
                    "table {name} does not support idle timeouts: leave time_since_last_hit unset"
                )));
            }
            filter.select(table, scan, |mut row| {
                let view = &mut row.view;
                view.counter = view.counter.filter(|_| wants_counter);
                view.meter = view.meter.filter(|_| wants_meter);
                view.idle_us = view.idle_us.filter(|_| wants_age);
                found.push(Row::Entry(row));
            })
        })
    }))
}
