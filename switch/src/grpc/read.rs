//! Read: table entries, arrays and the replication engine, one by one or by wildcard (P4Runtime
//! §13).

use std::sync::Arc;

use tonic::{Code, Status};
use ultima_p4runtime::v1::entity::Entity;
use ultima_p4runtime::v1::table_entry::IdleTimeout;
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
/// Table entries looked at before packets have their turn.
const ENTRIES_PER_STEP: usize = 256;
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
        // §13.4: no write comes between the parts of a batch, packets do.
        let _no_writes = self.between_writes.write().await;
        let mut found = Vec::new();
        let mut results = Vec::with_capacity(requests.len());
        for request in requests {
            results.push(match found.len() {
                0..ENTITIES_PER_REQUEST => self.read_one(request, &mut found).await?,
                _ => Err(EntityError::new(
                    Code::ResourceExhausted,
                    format!("more than {ENTITIES_PER_REQUEST} entities; read less at once"),
                )),
            });
        }
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

    /// Reads what one request asks for, a little at a time: packets have their turn in between.
    async fn read_one(
        &self,
        request: v1::Entity,
        found: &mut Vec<Entity>,
    ) -> Result<Result<(), EntityError>, Status> {
        let request = Arc::new(request);
        let before = found.len();
        let mut scan = Scan::default();
        loop {
            let request = request.clone();
            let answer = self.forwarder.call(move |datapath| {
                let pipeline = datapath.target().ok_or_else(no_pipeline)?;
                let mut found = Vec::new();
                scan.begin(ENTRIES_PER_STEP);
                let result = read_some(pipeline, &request, &mut scan, &mut found);
                Ok::<_, Status>((result, scan, found))
            });
            let (result, next, some) = answer.await??;
            found.extend(some);
            if result.is_err() {
                found.truncate(before);
                return Ok(result);
            }
            if !next.more {
                return Ok(Ok(()));
            }
            scan = next;
        }
    }
}

/// How far a walk through the entries of tables has come.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Scan {
    /// The next table's id.
    table: u32,
    /// The next place in it.
    place: usize,
    /// Entries to look at before the next pause.
    room: usize,
    /// It paused before the end.
    more: bool,
}

impl Scan {
    fn begin(&mut self, room: usize) {
        (self.room, self.more) = (room, false);
    }

    /// Hands over the entries of a table from where the walk has come to.
    fn walk(&mut self, table: &Table, mut each: impl FnMut(EntryView)) {
        if self.table != table.id() {
            (self.table, self.place) = (table.id(), 0);
        }
        for (place, view) in table.entries_from(self.place) {
            if self.room == 0 {
                (self.place, self.more) = (place, true);
                return;
            }
            self.room -= 1;
            each(view);
        }
        // Not again, should the walk pause before the next table's first entry.
        self.place = usize::MAX;
    }
}

/// Appends all that one request asks for. On an error nothing of it is appended.
pub(super) fn read(
    pipeline: &Pipeline,
    request: &v1::Entity,
    found: &mut Vec<Entity>,
) -> Result<(), EntityError> {
    let mut scan = Scan::default();
    scan.begin(usize::MAX);
    read_some(pipeline, request, &mut scan, found)
}

fn read_some(
    pipeline: &Pipeline,
    request: &v1::Entity,
    scan: &mut Scan,
    found: &mut Vec<Entity>,
) -> Result<(), EntityError> {
    let Some(mut request) = request.entity.clone() else {
        return Err(EntityError::invalid(
            "the entity is empty: expected one of its kinds",
        ));
    };
    strings::request(&pipeline.strings, &mut request)?;
    let before = found.len();
    let result = read_step(pipeline, &request, scan, found);
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
    let mut scan = Scan::default();
    scan.begin(usize::MAX);
    read_step(pipeline, request, &mut scan, found)
}

fn read_step(
    pipeline: &Pipeline,
    request: &Entity,
    scan: &mut Scan,
    found: &mut Vec<Entity>,
) -> Result<(), EntityError> {
    let engine = &pipeline.engine;
    match request {
        Entity::TableEntry(request) => read_entries(pipeline, request, scan, found),
        Entity::DirectCounterEntry(request) => {
            direct::read_counters(pipeline, request, scan, found)
        }
        Entity::DirectMeterEntry(request) => direct::read_meters(pipeline, request, scan, found),
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

/// The tables that an id stands for, in order of their ids, from where the walk has come to.
pub(super) fn for_tables(
    pipeline: &Pipeline,
    id: u32,
    scan: &mut Scan,
    mut each: impl FnMut(&Table, &mut Scan) -> Result<(), EntityError>,
) -> Result<(), EntityError> {
    if id != 0 {
        return each(pipeline.engine.table(id)?, scan);
    }
    let begin = scan.table;
    for table in pipeline.engine.tables().filter(|table| table.id() >= begin) {
        each(table, scan)?;
        if scan.more {
            break;
        }
    }
    Ok(())
}

fn read_entries(
    pipeline: &Pipeline,
    request: &TableEntry,
    scan: &mut Scan,
    found: &mut Vec<Entity>,
) -> Result<(), EntityError> {
    if request.table_id == 0 && !request.r#match.is_empty() {
        return Err(EntityError::invalid(
            "match fields without a table id: expected a table id",
        ));
    }
    let wants_age = request.time_since_last_hit.is_some();
    for_tables(pipeline, request.table_id, scan, |table, scan| {
        if wants_age && request.table_id != 0 && !table.has_idle_timeouts() {
            let name = table.name();
            return Err(EntityError::invalid(format!(
                "table {name} does not support idle timeouts: leave time_since_last_hit unset"
            )));
        }
        select(table, request, scan, |view| {
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
            let age = view.idle_us.filter(|_| wants_age);
            entry.time_since_last_hit = age.map(|us| IdleTimeout {
                elapsed_ns: i64::try_from(us.saturating_mul(1000)).unwrap_or(i64::MAX),
            });
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
    scan: &mut Scan,
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
        scan.walk(table, |view| {
            if passes(&view) {
                each(view);
            }
        });
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
