//! Read: table entries, arrays and the replication engine, one by one or by wildcard (P4Runtime
//! §13).

use tonic::{Code, Status};
use ultima_p4runtime::v1::entity::Entity;
use ultima_p4runtime::v1::{self, ReadRequest, ReadResponse, TableEntry, table_action};

use super::error::{EntityError, batch_status};
use super::table_entry::{counter_data, has_key, key, message, meter_message};
use super::{
    ResponseStream, Service, arrays, digests, direct, no_pipeline, profile, replication, strings,
    value_set,
};
use crate::engine::{ControlError, EntryAction, EntryView, Table};
use crate::pipeline::Pipeline;

/// Entities in one response: far below the 4 MiB that clients accept by default.
const ENTITIES_PER_RESPONSE: usize = 500;
/// Entities found beyond which a request's further parts are refused: one part cannot be more than the
/// program's largest object, but a request may repeat it.
const ENTITIES_PER_REQUEST: usize = 1 << 23;

impl Service {
    pub(super) async fn read(
        &self,
        request: ReadRequest,
    ) -> Result<ResponseStream<ReadResponse>, Status> {
        self.check_device(request.device_id)?;
        let requests = request.entities;
        let answer = self.forwarder.call(move |datapath| {
            // One closure for the batch: no write comes between its parts (§13.3).
            let pipeline = datapath.target().ok_or_else(no_pipeline)?;
            let mut found = Vec::new();
            let results: Vec<_> = requests
                .iter()
                .map(|one| match found.len() {
                    0..ENTITIES_PER_REQUEST => read(pipeline, one, &mut found),
                    _ => Err(EntityError::new(
                        Code::ResourceExhausted,
                        format!("more than {ENTITIES_PER_REQUEST} entities; read less at once"),
                    )),
                })
                .collect();
            Ok::<_, Status>((found, results))
        });
        let (found, results) = answer.await??;
        let mut found = found.into_iter().map(|entity| v1::Entity {
            entity: Some(entity),
        });
        let responses = std::iter::from_fn(move || {
            let entities: Vec<_> = found.by_ref().take(ENTITIES_PER_RESPONSE).collect();
            (!entities.is_empty()).then_some(Ok(ReadResponse { entities }))
        });
        let end = batch_status(&results).err().map(Err);
        Ok(Box::pin(tokio_stream::iter(responses.chain(end))))
    }
}

/// Appends what one request asks for. On an error nothing of it is appended.
pub(super) fn read(
    pipeline: &Pipeline,
    request: &v1::Entity,
    found: &mut Vec<Entity>,
) -> Result<(), EntityError> {
    let Some(mut request) = request.entity.clone() else {
        return Err(EntityError::invalid(
            "the entity is empty: expected one of its kinds",
        ));
    };
    strings::request(&pipeline.strings, &mut request)?;
    let before = found.len();
    let result = read_raw(pipeline, &request, found);
    let result = result.and_then(|()| strings::answer(&pipeline.strings, &mut found[before..]));
    if result.is_err() {
        found.truncate(before);
    }
    result
}

/// As [`read`], without strings, and what an error leaves is to be taken away.
pub(super) fn read_raw(
    pipeline: &Pipeline,
    request: &Entity,
    found: &mut Vec<Entity>,
) -> Result<(), EntityError> {
    let engine = &pipeline.engine;
    match request {
        Entity::TableEntry(request) => read_entries(pipeline, request, found),
        Entity::DirectCounterEntry(request) => direct::read_counters(pipeline, request, found),
        Entity::DirectMeterEntry(request) => direct::read_meters(pipeline, request, found),
        Entity::CounterEntry(request) => arrays::read_counters(engine, request, found),
        Entity::MeterEntry(request) => arrays::read_meters(engine, request, found),
        Entity::RegisterEntry(request) => arrays::read_registers(engine, request, found),
        Entity::PacketReplicationEngineEntry(request) => {
            replication::read(pipeline, request, found)
        }
        Entity::ActionProfileMember(request) => profile::read_members(engine, request, found),
        Entity::ActionProfileGroup(request) => profile::read_groups(engine, request, found),
        // Of what this switch does not have, there is none to be found by a wildcard.
        Entity::ValueSetEntry(request) => value_set::read(engine, request, found),
        Entity::DigestEntry(request) => digests::read(&pipeline.digests, request, found),
        Entity::ExternEntry(request) => none_of("extern", request.extern_type_id),
    }
}

fn none_of(kind: &str, id: u32) -> Result<(), EntityError> {
    match id {
        0 => Ok(()),
        id => Err(EntityError::new(
            Code::NotFound,
            format!("there is no {kind} {id:#010x}"),
        )),
    }
}

/// The tables that an id stands for.
pub(super) fn for_tables(
    pipeline: &Pipeline,
    id: u32,
    mut each: impl FnMut(&Table) -> Result<(), EntityError>,
) -> Result<(), EntityError> {
    match id {
        // Tables of id 0 are the compiler's own: P4Info does not have them.
        0 => pipeline
            .engine
            .tables()
            .filter(|table| table.id() != 0)
            .try_for_each(each),
        id => each(pipeline.engine.table(id)?),
    }
}

fn read_entries(
    pipeline: &Pipeline,
    request: &TableEntry,
    found: &mut Vec<Entity>,
) -> Result<(), EntityError> {
    if request.table_id == 0 && !request.r#match.is_empty() {
        return Err(EntityError::invalid(
            "match fields without a table id: expected a table id",
        ));
    }
    if request.time_since_last_hit.is_some() {
        return Err(EntityError::unimplemented(
            "time_since_last_hit: this switch does not report idle entries, leave it unset",
        ));
    }
    for_tables(pipeline, request.table_id, |table| {
        select(table, request, |view| {
            let mut entry = message(table, &view, request.is_default_action);
            if request.counter_data.is_some() {
                entry.counter_data = view.counter.map(counter_data);
            }
            if request.meter_config.is_some() {
                let config = view.meter.and_then(|meter| meter.config);
                entry.meter_config = config.map(meter_message);
            }
            if request.meter_counter_data.is_some() {
                let meter = view.meter;
                entry.meter_counter_data = meter.map(|meter| direct::counts_message(meter.counts));
            }
            found.push(Entity::TableEntry(entry));
        })
    })
}

/// Hands over each entry of a table that passes the request's filters (§9.1.6: what has its default
/// value filters nothing).
#[expect(deprecated, reason = "clients still filter by controller_metadata")]
pub(super) fn select(
    table: &Table,
    request: &TableEntry,
    mut each: impl FnMut(EntryView),
) -> Result<(), EntityError> {
    let action = match request
        .action
        .as_ref()
        .and_then(|action| action.r#type.as_ref())
    {
        Some(table_action::Type::Action(action)) => action.action_id,
        Some(_) => {
            return Err(EntityError::invalid(
                "entries can be filtered by action id only",
            ));
        }
        None => 0,
    };
    let passes = |view: &EntryView| {
        let entry = &view.entry;
        (action == 0
            || entry
                .action
                .as_ref()
                .is_some_and(|own| matches!(own, EntryAction::Call(call) if call.action == action)))
            && (request.priority == 0 || entry.priority == request.priority)
            && (request.controller_metadata == 0
                || entry.controller_metadata == request.controller_metadata)
            && (request.metadata.is_empty() || entry.metadata == request.metadata)
    };
    if request.is_default_action {
        if !request.r#match.is_empty() || request.priority != 0 {
            return Err(EntityError::invalid(
                "a default entry has neither match fields nor a priority",
            ));
        }
        let view = table.default_entry();
        if passes(&view) {
            each(view);
        }
        return Ok(());
    }
    if request.r#match.is_empty() {
        table.entries().filter(passes).for_each(each);
        return Ok(());
    }
    let key = key(request)?;
    match table.get(&key, request.priority) {
        Ok(view) if passes(&view) => each(view),
        Ok(_) | Err(ControlError::NoSuchEntry { .. }) => {}
        // Without the priority that the table's entries have, the key alone may stand for several.
        Err(ControlError::Priority { .. }) if request.priority == 0 => {
            table
                .entries()
                .filter(|view| has_key(view, &key) && passes(view))
                .for_each(each);
        }
        Err(error) => return Err(error.into()),
    }
    Ok(())
}
