//! Read: table entries, arrays and the replication engine, by key or wildcard (P4Runtime §13).
//!
//! §13.4 asks a server to block writes until it has sent the response. A slow client could then keep the primary from writing.
//! So this server first collects the response and then sends it while writes continue. Most reads take one turn of the
//! forwarding thread and need no lock. Of longer reads only one runs at a time, with a bound on its steps, so a write waits for
//! one read at most.

use std::sync::Arc;

use tonic::{Code, Status};
use ultima_p4runtime::v1::entity::Entity;
use ultima_p4runtime::v1::table_entry::IdleTimeout;
use ultima_p4runtime::v1::{self, ReadRequest, ReadResponse, TableEntry, table_action};

use super::answers::Answer;
use super::scan::{ENTRY, STEP, Scan};
use super::table_entry::{check_default, counter_data, key, message, meter_message};
use super::{
    ResponseStream, Service, arrays, check_count, digests, direct, no_pipeline, profile,
    replication, value_set,
};
use crate::engine::{EntryAction, EntryView, ErrorKind, Table};
use crate::pipeline::Pipeline;
use crate::target::Refusal;

/// Largest number of steps of one read: several times all of a program's largest arrays.
const MAX_STEPS: usize = 1 << 14;

/// The result of one turn of the forwarding thread: entities by the positions of their requests.
type Found = Vec<(usize, Result<Vec<Entity>, Refusal>)>;

/// The progress of a read.
#[derive(Debug, Clone, Copy)]
struct Progress {
    request: usize,
    scan: Scan,
}

impl Service {
    pub(super) async fn read(
        &self,
        request: ReadRequest,
    ) -> Result<ResponseStream<ReadResponse>, Status> {
        self.check_device(request.device_id)?;
        check_count(request.entities.len(), "entities")?;
        let requests = Arc::new(request.entities);
        let begin = Progress::of(0);
        let mut answer = Answer::new(requests.len(), self.answers.clone());
        if self
            .read_turn(&requests, begin, &mut answer)
            .await?
            .is_none()
        {
            return Ok(answer.stream());
        }
        // Anew, without writes in between.
        drop(answer);
        let mut answer = Answer::new(requests.len(), self.answers.clone());
        {
            let _one = self.reading.lock().await;
            let _no_writes = self.schema.write().await;
            let mut progress = Some(begin);
            let mut steps = 0;
            while let Some(at) = progress {
                if steps == MAX_STEPS {
                    let most = MAX_STEPS * STEP;
                    let what = format!("more than {most} entities to look at; read less at once");
                    let error = Refusal::new(Code::ResourceExhausted, what);
                    answer.refuse_from(at.request, &error);
                    break;
                }
                steps += 1;
                progress = self.read_turn(&requests, at, &mut answer).await?;
            }
        }
        Ok(answer.stream())
    }

    /// Reads for one turn of the forwarding thread. Returns `None` at the end.
    async fn read_turn(
        &self,
        requests: &Arc<Vec<v1::Entity>>,
        mut progress: Progress,
        answer: &mut Answer,
    ) -> Result<Option<Progress>, Status> {
        let shared = requests.clone();
        let turn = self.forwarder.call(move |datapath| {
            let pipeline = datapath.target().ok_or_else(no_pipeline)?;
            Ok::<_, Status>((read_for_a_turn(pipeline, &shared, &mut progress), progress))
        });
        let (found, mut progress) = turn.await??;
        for (request, found) in found {
            let pushed = answer.push(request, found);
            if !pushed && request == progress.request {
                progress = Progress::of(request + 1);
            }
        }
        Ok((progress.request < requests.len()).then_some(progress))
    }
}

impl Progress {
    fn of(request: usize) -> Progress {
        let scan = Scan::new(STEP);
        Progress { request, scan }
    }
}

fn read_for_a_turn(pipeline: &Pipeline, requests: &[v1::Entity], progress: &mut Progress) -> Found {
    let mut turn = Vec::new();
    let mut room = STEP;
    while room > 0
        && let Some(request) = requests.get(progress.request)
    {
        progress.scan.resume(room);
        let mut found = Vec::new();
        let result = read_some(pipeline, request, &mut progress.scan, &mut found);
        let pauses = result.is_ok() && progress.scan.is_paused();
        room = progress.scan.room().saturating_sub(ENTRY);
        turn.push((progress.request, result.map(|()| found)));
        if pauses {
            break;
        }
        *progress = Progress::of(progress.request + 1);
    }
    turn
}

/// Appends the entities of one request until the walk pauses. Appends nothing on an error.
pub(super) fn read_some(
    pipeline: &Pipeline,
    request: &v1::Entity,
    scan: &mut Scan,
    found: &mut Vec<Entity>,
) -> Result<(), Refusal> {
    let Some(request) = &request.entity else {
        return Err(Refusal::invalid(
            "the entity is empty: expected a table entry or another entity",
        ));
    };
    if let Some(target) = &pipeline.target {
        target.check_read(request)?;
    }
    let before = found.len();
    let result = read_step(pipeline, request, scan, found);
    if result.is_err() {
        found.truncate(before);
    }
    result
}

fn read_step(
    pipeline: &Pipeline,
    request: &Entity,
    scan: &mut Scan,
    found: &mut Vec<Entity>,
) -> Result<(), Refusal> {
    let engine = &pipeline.engine;
    match request {
        Entity::TableEntry(request) => read_entries(pipeline, request, scan, found),
        Entity::DirectCounterEntry(request) => {
            direct::read_counters(pipeline, request, scan, found)
        }
        Entity::DirectMeterEntry(request) => direct::read_meters(pipeline, request, scan, found),
        Entity::CounterEntry(request) => arrays::read_counters(engine, request, scan, found),
        Entity::MeterEntry(request) => arrays::read_meters(engine, request, scan, found),
        Entity::RegisterEntry(request) => arrays::read_registers(engine, request, scan, found),
        Entity::PacketReplicationEngineEntry(request) => {
            replication::read(pipeline, request, scan, found)
        }
        Entity::ActionProfileMember(request) => profile::read_members(engine, request, scan, found),
        Entity::ActionProfileGroup(request) => profile::read_groups(engine, request, scan, found),
        Entity::ValueSetEntry(request) => value_set::read(engine, request, scan, found),
        Entity::DigestEntry(request) => digests::read(&pipeline.digests, request, found),
        // A wildcard finds no externs, because this switch has none.
        Entity::ExternEntry(request) => match request.extern_type_id {
            0 => Ok(()),
            id => {
                let what = format!("there is no extern {id:#010x}");
                Err(Refusal::new(Code::NotFound, what))
            }
        },
    }
}

/// Iterates over the tables of a request, in order of ids, from the walk's position.
pub(super) fn for_tables(
    pipeline: &Pipeline,
    request: &TableEntry,
    scan: &mut Scan,
    mut each: impl FnMut(&Table, &mut Scan) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    if request.table_id != 0 {
        return each(pipeline.engine.table(request.table_id)?, scan);
    }
    if !request.r#match.is_empty() {
        return Err(Refusal::invalid(
            "match fields without a table id: expected a table id",
        ));
    }
    for table in pipeline.engine.tables() {
        if scan.is_past(table.id()) {
            continue;
        }
        each(table, scan)?;
        if scan.is_paused() {
            break;
        }
    }
    Ok(())
}

/// Passes on the entries of a table from the walk's position.
pub(super) fn walk(table: &Table, scan: &mut Scan, mut each: impl FnMut(EntryView)) {
    let first = usize::try_from(scan.first(table.id())).unwrap_or(usize::MAX);
    for (place, view) in table.entries_from(first) {
        if !scan.admits(table.id(), place as u64, ENTRY) {
            return;
        }
        each(view);
    }
}

fn read_entries(
    pipeline: &Pipeline,
    request: &TableEntry,
    scan: &mut Scan,
    found: &mut Vec<Entity>,
) -> Result<(), Refusal> {
    let wants_age = request.time_since_last_hit.is_some();
    for_tables(pipeline, request, scan, |table, scan| {
        if wants_age && request.table_id != 0 && !table.has_idle_timeouts() {
            let name = table.name();
            return Err(Refusal::invalid(format!(
                "table {name} does not support idle timeouts: leave time_since_last_hit unset"
            )));
        }
        select(table, request, scan, |view| {
            let mut entry = message(table, &view, request.is_default_action);
            if request.counter_data.is_some() {
                entry.counter_data = view.counter.map(counter_data);
            }
            if request.meter_config.is_some() {
                entry.meter_config = view.meter.flatten().map(meter_message);
            }
            let age = view.idle_us.filter(|_| wants_age);
            entry.time_since_last_hit = age.map(|us| IdleTimeout {
                elapsed_ns: i64::try_from(us.saturating_mul(1000)).unwrap_or(i64::MAX),
            });
            found.push(Entity::TableEntry(entry));
        })
    })
}

/// Passes on the entries of a table that match the request's filters. A field with its default value filters nothing (§9.1.6).
#[expect(deprecated, reason = "clients still filter by controller_metadata")]
pub(super) fn select(
    table: &Table,
    request: &TableEntry,
    scan: &mut Scan,
    mut each: impl FnMut(EntryView),
) -> Result<(), Refusal> {
    let action = match request
        .action
        .as_ref()
        .and_then(|action| action.r#type.as_ref())
    {
        Some(table_action::Type::Action(action)) => action.action_id,
        Some(_) => {
            return Err(Refusal::invalid(
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
        check_default(request)?;
        let view = table.default_entry();
        if passes(&view) {
            each(view);
        }
        return Ok(());
    }
    if request.r#match.is_empty() {
        walk(table, scan, |view| {
            if passes(&view) {
                each(view);
            }
        });
        return Ok(());
    }
    let key = key(request.r#match.clone())?;
    // Without the priority that the table's entries have, the key alone may stand for several.
    if request.priority == 0 && table.has_priority() {
        let key = table.canonical(key, 1)?;
        walk(table, scan, |view| {
            if view.entry.key == key && passes(&view) {
                each(view);
            }
        });
        return Ok(());
    }
    match table.get(&key, request.priority) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
        Ok(view) if passes(&view) => each(view),
        _ => {}
    }
    Ok(())
}
