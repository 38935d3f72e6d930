//! All or none: what a batch writes to is kept, and put back if one of its updates fails (P4Runtime
//! §12.2).

use std::collections::BTreeSet;
use std::ops::Range;

use ultima_p4runtime::v1::entity::Entity;
use ultima_p4runtime::v1::packet_replication_engine_entry::Type as PreType;
use ultima_p4runtime::v1::{
    CloneSessionEntry, Index, MulticastGroupEntry, PacketReplicationEngineEntry, TableEntry,
};

use super::strings::Strings;
use super::table_entry::key;
use crate::digests::Enabled;
use crate::engine::{Before, Touched};
use crate::pipeline::Pipeline;

/// What has been written to, in order.
#[derive(Default)]
pub(super) struct UndoLog {
    steps: Vec<Step>,
    /// Action profiles are kept whole, so once is enough: by table, and by their own id.
    tables: BTreeSet<u32>,
    profiles: BTreeSet<u32>,
    /// What strings stood for before the batch.
    strings: Strings,
}

enum Step {
    Engine(Before),
    /// Whether a controller had set the default entry of a table.
    DefaultSet(u32, bool),
    Group(u32, Option<MulticastGroupEntry>),
    Session(u32, Option<CloneSessionEntry>),
    Digest(u32, Option<Enabled>),
}

impl UndoLog {
    /// Of a batch that begins now.
    pub(super) fn new(pipeline: &Pipeline) -> UndoLog {
        UndoLog {
            strings: pipeline.strings.clone(),
            ..UndoLog::default()
        }
    }

    /// Keeps what an update of this entity is about to change. Nothing is kept of an update that cannot succeed.
    pub(super) fn keep(&mut self, pipeline: &Pipeline, entity: &Entity) {
        match entity {
            Entity::TableEntry(entry) => self.keep_entry(pipeline, entry),
            Entity::DirectCounterEntry(of) => self.keep_direct(pipeline, of.table_entry.as_ref()),
            Entity::DirectMeterEntry(of) => self.keep_direct(pipeline, of.table_entry.as_ref()),
            Entity::ActionProfileMember(member) => {
                self.keep_profile(pipeline, member.action_profile_id);
            }
            Entity::ActionProfileGroup(group) => {
                self.keep_profile(pipeline, group.action_profile_id);
            }
            Entity::CounterEntry(entry) => {
                let counter = pipeline.engine.counter(entry.counter_id);
                if let Ok(counter) = counter {
                    let cells = cells(entry.index, counter.cells().len());
                    self.keep_touched(pipeline, &Touched::Counters(entry.counter_id, cells));
                }
            }
            Entity::MeterEntry(entry) => {
                if let Ok(meter) = pipeline.engine.meter(entry.meter_id) {
                    let cells = cells(entry.index, meter.cells().len());
                    self.keep_touched(pipeline, &Touched::Meters(entry.meter_id, cells));
                }
            }
            Entity::RegisterEntry(entry) => {
                if let Ok(register) = pipeline.engine.register(entry.register_id) {
                    let cells = cells(entry.index, register.size());
                    self.keep_touched(pipeline, &Touched::Registers(entry.register_id, cells));
                }
            }
            Entity::ValueSetEntry(entry) => {
                self.keep_touched(pipeline, &Touched::ValueSet(entry.value_set_id));
            }
            Entity::PacketReplicationEngineEntry(entry) => self.keep_replication(pipeline, entry),
            Entity::DigestEntry(entry) => {
                let id = entry.digest_id;
                self.steps.push(Step::Digest(id, pipeline.digests.save(id)));
            }
            Entity::ExternEntry(_) => {}
        }
    }

    /// Puts everything back.
    pub(super) fn undo(self, pipeline: &mut Pipeline) {
        pipeline.strings = self.strings;
        for step in self.steps.into_iter().rev() {
            match step {
                Step::Engine(before) => pipeline.engine.put_back(before),
                Step::DefaultSet(table, true) => {
                    pipeline.defaults_set.insert(table);
                }
                Step::DefaultSet(table, false) => {
                    pipeline.defaults_set.remove(&table);
                }
                Step::Group(id, Some(group)) => {
                    pipeline.groups.insert(id, group);
                }
                Step::Group(id, None) => {
                    pipeline.groups.remove(&id);
                }
                Step::Session(id, Some(session)) => {
                    pipeline.sessions.insert(id, session);
                }
                Step::Session(id, None) => {
                    pipeline.sessions.remove(&id);
                }
                Step::Digest(id, digest) => pipeline.digests.restore(id, digest),
            }
        }
    }

    fn keep_touched(&mut self, pipeline: &Pipeline, touched: &Touched) {
        if let Ok(before) = pipeline.engine.before(touched) {
            self.steps.push(Step::Engine(before));
        }
    }

    fn keep_entry(&mut self, pipeline: &Pipeline, entry: &TableEntry) {
        let table = entry.table_id;
        if entry.is_default_action {
            let was_set = pipeline.defaults_set.contains(&table);
            self.steps.push(Step::DefaultSet(table, was_set));
            return self.keep_touched(pipeline, &Touched::DefaultEntry(table));
        }
        // What entries refer to counts them.
        if self.tables.insert(table) {
            self.keep_touched(pipeline, &Touched::ProfileOf(table));
        }
        self.keep_direct(pipeline, Some(entry));
    }

    fn keep_direct(&mut self, pipeline: &Pipeline, of: Option<&TableEntry>) {
        if let Some(of) = of.filter(|of| of.is_default_action) {
            return self.keep_touched(pipeline, &Touched::DefaultEntry(of.table_id));
        }
        let of = of.and_then(|of| Some((of, key(of).ok()?)));
        if let Some((of, key)) = of {
            let (table, key, priority) = (of.table_id, key.as_slice(), of.priority);
            let touched = Touched::Entry {
                table,
                key,
                priority,
            };
            self.keep_touched(pipeline, &touched);
        }
    }

    fn keep_profile(&mut self, pipeline: &Pipeline, id: u32) {
        if self.profiles.insert(id) {
            self.keep_touched(pipeline, &Touched::Profile(id));
        }
    }

    fn keep_replication(&mut self, pipeline: &Pipeline, entry: &PacketReplicationEngineEntry) {
        match &entry.r#type {
            Some(PreType::MulticastGroupEntry(group)) => {
                let id = group.multicast_group_id;
                let before = pipeline.groups.get(&id).cloned();
                self.steps.push(Step::Group(id, before));
                self.keep_touched(pipeline, &Touched::Group(id));
            }
            Some(PreType::CloneSessionEntry(session)) => {
                let id = session.session_id;
                let before = pipeline.sessions.get(&id).cloned();
                self.steps.push(Step::Session(id, before));
                self.keep_touched(pipeline, &Touched::Session(id));
            }
            None => {}
        }
    }
}

/// The cells that an index stands for; none where there are none.
fn cells(index: Option<Index>, size: usize) -> Range<usize> {
    match index {
        None => 0..size,
        Some(Index { index }) => match usize::try_from(index) {
            Ok(index) if index < size => index..index + 1,
            _ => 0..0,
        },
    }
}
