//! RECONCILE_AND_COMMIT: a new program takes over the state of the old (P4Runtime §14).
//!
//! The server reads the controllers' state from the old program and writes the same messages to the new one. So it preserves
//! exactly the state that a controller could copy itself, and otherwise fails. Meanwhile packets run through the old program:
//! reading takes turns on the forwarding thread, writing happens elsewhere. Counters, meters and registers, which packets
//! change, move at the end, between two packets.

use tonic::{Code, Status};
use ultima_p4runtime::v1::entity::Entity;
use ultima_p4runtime::v1::packet_replication_engine_entry::Type as PreType;
use ultima_p4runtime::v1::update::Type as UpdateType;
use ultima_p4runtime::v1::{
    self, ActionProfileGroup, ActionProfileMember, CloneSessionEntry, CounterData, DigestEntry,
    DirectCounterEntry, DirectMeterEntry, MulticastGroupEntry, PacketReplicationEngineEntry,
    TableEntry, Update, ValueSetEntry,
};

use super::scan::{STEP, Scan};
use super::table_entry::{counter_data, key, message, meter_message};
use super::{Service, read, strings, write};
use crate::engine::Twin;
use crate::pipeline::Pipeline;
use crate::target::Refusal;

/// The state that controllers have written to a program, in an order in which it can be written again: members before groups
/// before entries. Table entries come with their positions.
pub(super) type State = Vec<(Entity, Option<u32>)>;

/// The progress of reading the state.
#[derive(Debug, Clone, Copy)]
pub(super) struct Progress {
    part: usize,
    scan: Scan,
}

impl Progress {
    pub(super) fn begin(room: usize) -> Progress {
        let scan = Scan::new(room);
        Progress { part: 0, scan }
    }
}

/// A part of the state.
enum Part {
    /// All entries of all tables but default ones.
    Entries,
    /// The result of this read.
    Read(Box<Entity>),
}

fn parts(old: &Pipeline) -> Vec<Part> {
    let replication = |entry| {
        Entity::PacketReplicationEngineEntry(PacketReplicationEngineEntry {
            r#type: Some(entry),
        })
    };
    let default_entries = TableEntry {
        is_default_action: true,
        ..TableEntry::default()
    };
    let defaults = old.defaults_set.iter().map(|&table_id| {
        Entity::TableEntry(TableEntry {
            table_id,
            ..default_entries.clone()
        })
    });
    let before = [
        Entity::ActionProfileMember(ActionProfileMember::default()),
        Entity::ActionProfileGroup(ActionProfileGroup::default()),
    ];
    let after = [
        Entity::ValueSetEntry(ValueSetEntry::default()),
        replication(PreType::MulticastGroupEntry(MulticastGroupEntry::default())),
        replication(PreType::CloneSessionEntry(CloneSessionEntry::default())),
        Entity::DigestEntry(DigestEntry::default()),
    ];
    let resources = [
        Entity::DirectCounterEntry(DirectCounterEntry {
            table_entry: Some(default_entries.clone()),
            data: None,
        }),
        Entity::DirectMeterEntry(DirectMeterEntry {
            table_entry: Some(default_entries.clone()),
            ..DirectMeterEntry::default()
        }),
    ];
    let after = after.into_iter().chain(defaults).chain(resources);
    let before = before.into_iter().map(Box::new).map(Part::Read);
    let all = before
        .chain([Part::Entries])
        .chain(after.map(Box::new).map(Part::Read));
    all.collect()
}

/// Reads the state for one step. Returns `None` after the last one.
pub(super) fn read_some(
    old: &Pipeline,
    mut progress: Progress,
    room: usize,
    state: &mut State,
) -> Result<Option<Progress>, Refusal> {
    progress.scan.resume(room);
    let Some(part) = parts(old).into_iter().nth(progress.part) else {
        return Ok(None);
    };
    match part {
        Part::Entries => read_entries(old, &mut progress.scan, state)?,
        Part::Read(request) => {
            let request = v1::Entity {
                entity: Some(*request),
            };
            let mut found = Vec::new();
            read::read_some(old, &request, &mut progress.scan, &mut found)?;
            let found = found.into_iter().filter(is_state);
            state.extend(found.map(|entity| (entity, None)));
        }
    }
    if !progress.scan.is_paused() {
        progress = Progress {
            part: progress.part + 1,
            ..Progress::begin(room)
        };
    }
    Ok(Some(progress))
}

fn read_entries(old: &Pipeline, scan: &mut Scan, state: &mut State) -> Result<(), Refusal> {
    let mut found = Vec::new();
    let mut places = Vec::new();
    read::for_tables(old, 0, scan, |table, scan| {
        read::walk(table, scan, |place, view| {
            let mut entry = message(table, &view, false);
            entry.counter_data = view.counter.map(counter_data);
            let config = view.meter.and_then(|meter| meter.config);
            entry.meter_config = config.map(meter_message);
            found.push(Entity::TableEntry(entry));
            places.push(u32::try_from(place).ok());
        });
        Ok(())
    })?;
    strings::answer(&old.strings, &mut found)?;
    state.extend(found.into_iter().zip(places));
    Ok(())
}

/// Writes the state of an old program to a freshly loaded one. Returns the entries that have direct resources in both.
pub(super) fn write_state(state: State, new: &mut Pipeline) -> Result<Vec<Twin>, Refusal> {
    let mut twins = Vec::new();
    for (entity, place) in state {
        let has_key = match &entity {
            Entity::TableEntry(entry) => Some(TableEntry {
                table_id: entry.table_id,
                r#match: entry.r#match.clone(),
                priority: entry.priority,
                ..TableEntry::default()
            }),
            _ => None,
        };
        // Programs bring their constant entries.
        if !matches!(&entity, Entity::TableEntry(entry) if entry.is_const) {
            carry_over(new, entity).map_err(|error| cannot_preserve(&error))?;
        }
        if let (Some(old), Some(entry)) = (place, has_key) {
            twins.extend(twin(new, entry, old));
        }
    }
    Ok(twins)
}

/// Returns the same entry in the new program, if it has direct resources there.
fn twin(new: &Pipeline, entry: TableEntry, old: u32) -> Option<Twin> {
    let table = new.engine.table(entry.table_id).ok()?;
    if !table.has_counter() && !table.has_meter() {
        return None;
    }
    let mut entity = Entity::TableEntry(entry);
    strings::request(&new.strings, &mut entity).ok()?;
    let Entity::TableEntry(entry) = entity else {
        return None;
    };
    let key = key(entry.r#match).ok()?;
    let place = table.place_of(&key, entry.priority).ok()?;
    Some(Twin {
        table: entry.table_id,
        old,
        new: place,
    })
}

/// Moves counters, meters and registers to the new program and commits it.
pub(super) fn take_over(
    old: &mut Pipeline,
    new: &mut Pipeline,
    twins: &[Twin],
) -> Result<(), Refusal> {
    let taken = new.engine.take_over(&mut old.engine, twins);
    taken.map_err(|error| cannot_preserve(&error.into()))
}

fn cannot_preserve(error: &Refusal) -> Refusal {
    let what = format!("the existing state cannot be preserved: {error}");
    Refusal::new(error.code, what)
}

impl Service {
    /// Writes the active program's state to a new one. The caller blocks writes meanwhile.
    pub(super) async fn reconcile(
        &self,
        mut new: Pipeline,
    ) -> Result<(Pipeline, Vec<Twin>), Status> {
        let invalid = |error: Refusal| Status::invalid_argument(error.to_string());
        let mut state = State::new();
        let mut progress = Some(Progress::begin(STEP));
        while let Some(at) = progress {
            let turn = self.forwarder.call(move |datapath| {
                let mut some = State::new();
                let active = datapath.active();
                // Controllers have written no state to a program without a P4Info.
                let next = match active.filter(|old| old.config.p4info.is_some()) {
                    Some(old) => read_some(old, at, STEP, &mut some)?,
                    None => None,
                };
                Ok((next, some))
            });
            let (next, some) = turn.await?.map_err(invalid)?;
            state.extend(some);
            progress = next;
        }
        let written = tokio::task::spawn_blocking(move || {
            let twins = write_state(state, &mut new);
            twins.map(|twins| (new, twins))
        });
        match written.await {
            Ok(written) => written.map_err(invalid),
            Err(_) => Err(Status::internal(
                "preserving the state failed; the previous program stays active",
            )),
        }
    }
}

/// True if an entity differs from its initial state.
fn is_state(entity: &Entity) -> bool {
    match entity {
        Entity::DirectCounterEntry(entry) => entry.data != Some(CounterData::default()),
        Entity::DirectMeterEntry(entry) => entry.config.is_some(),
        Entity::ValueSetEntry(entry) => !entry.members.is_empty(),
        _ => true,
    }
}

fn carry_over(new: &mut Pipeline, entity: Entity) -> Result<(), Refusal> {
    let mut apply = |kind: UpdateType, entity: Entity| {
        let entity = Some(v1::Entity {
            entity: Some(entity),
        });
        write::apply(
            new,
            Update {
                r#type: kind as i32,
                entity,
            },
        )
    };
    let inserted = match &entity {
        Entity::TableEntry(entry) => !entry.is_default_action,
        Entity::PacketReplicationEngineEntry(_)
        | Entity::ActionProfileMember(_)
        | Entity::ActionProfileGroup(_)
        | Entity::DigestEntry(_) => true,
        _ => false,
    };
    if !inserted {
        return apply(UpdateType::Modify, entity);
    }
    match apply(UpdateType::Insert, entity.clone()) {
        // Both programs begin with this entry.
        Err(error) if error.code == Code::AlreadyExists => apply(UpdateType::Modify, entity),
        result => result,
    }
}
