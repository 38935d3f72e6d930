//! Atomic batches: saves the state that a batch changes, and restores it if an update fails (P4Runtime §12.2).

use std::collections::BTreeMap;

use ultima_p4runtime::v1::entity::Entity;
use ultima_p4runtime::v1::packet_replication_engine_entry::Type as PreType;
use ultima_p4runtime::v1::{
    CloneSessionEntry, Index, MulticastGroupEntry, PacketReplicationEngineEntry, TableEntry,
};

use super::strings::Type;
use super::table_entry::key;
use crate::digests::Enabled;
use crate::engine::{self, Touched};
use crate::pipeline::Pipeline;

/// The changed objects, each in its state before the first write.
#[derive(Default)]
pub(super) struct UndoLog {
    engine: engine::UndoLog,
    groups: BTreeMap<u32, Option<MulticastGroupEntry>>,
    sessions: BTreeMap<u32, Option<CloneSessionEntry>>,
    digests: BTreeMap<u32, Option<Enabled>>,
    /// The strings before their numbers were reused.
    strings: Option<Vec<Type>>,
}

impl UndoLog {
    /// Saves the strings before their numbers are reused.
    pub(super) fn keep_strings(&mut self, types: &[Type]) {
        self.strings.get_or_insert_with(|| types.to_vec());
    }

    /// Saves the state that an update of this entity changes. Saves nothing for an update that cannot succeed.
    pub(super) fn keep(&mut self, pipeline: &mut Pipeline, entity: &Entity) {
        match entity {
            Entity::TableEntry(entry) => self.keep_entry(pipeline, entry),
            Entity::DirectCounterEntry(of) => self.keep_direct(pipeline, of.table_entry.as_ref()),
            Entity::DirectMeterEntry(of) => self.keep_direct(pipeline, of.table_entry.as_ref()),
            Entity::ActionProfileMember(member) => {
                self.keep_touched(pipeline, &Touched::Profile(member.action_profile_id));
            }
            Entity::ActionProfileGroup(group) => {
                self.keep_touched(pipeline, &Touched::Profile(group.action_profile_id));
            }
            Entity::CounterEntry(entry) => {
                if let Some(cell) = cell(entry.index) {
                    self.keep_touched(pipeline, &Touched::Counters(entry.counter_id, cell));
                }
            }
            Entity::MeterEntry(entry) => {
                if let Some(cell) = cell(entry.index) {
                    self.keep_touched(pipeline, &Touched::Meters(entry.meter_id, cell));
                }
            }
            Entity::RegisterEntry(entry) => {
                if let Some(cell) = cell(entry.index) {
                    self.keep_touched(pipeline, &Touched::Registers(entry.register_id, cell));
                }
            }
            Entity::ValueSetEntry(entry) => {
                self.keep_touched(pipeline, &Touched::ValueSet(entry.value_set_id));
            }
            Entity::PacketReplicationEngineEntry(entry) => self.keep_replication(pipeline, entry),
            Entity::DigestEntry(entry) => {
                let id = entry.digest_id;
                let kept = self.digests.entry(id);
                kept.or_insert_with(|| pipeline.digests.save(id));
            }
            Entity::ExternEntry(_) => {}
        }
    }

    /// Accepts the changes.
    pub(super) fn accept(self, pipeline: &mut Pipeline) {
        pipeline.engine.accept(self.engine);
    }

    /// Undoes the changes.
    pub(super) fn undo(self, pipeline: &mut Pipeline) {
        pipeline.engine.undo(self.engine);
        if let Some(types) = self.strings {
            pipeline.strings.types = types;
        }
        for (id, group) in self.groups {
            match group {
                Some(group) => pipeline.groups.insert(id, group),
                None => pipeline.groups.remove(&id),
            };
        }
        for (id, session) in self.sessions {
            match session {
                Some(session) => pipeline.sessions.insert(id, session),
                None => pipeline.sessions.remove(&id),
            };
        }
        for (id, digest) in self.digests {
            pipeline.digests.restore(id, digest);
        }
    }

    fn keep_touched(&mut self, pipeline: &mut Pipeline, touched: &Touched) {
        pipeline.engine.keep(&mut self.engine, touched);
    }

    fn keep_entry(&mut self, pipeline: &mut Pipeline, entry: &TableEntry) {
        let table = entry.table_id;
        if entry.is_default_action {
            return self.keep_touched(pipeline, &Touched::DefaultEntry(table));
        }
        // What entries refer to counts them.
        self.keep_touched(pipeline, &Touched::ProfileOf(table));
        self.keep_direct(pipeline, Some(entry));
    }

    fn keep_direct(&mut self, pipeline: &mut Pipeline, of: Option<&TableEntry>) {
        if let Some(of) = of.filter(|of| of.is_default_action) {
            return self.keep_touched(pipeline, &Touched::DefaultEntry(of.table_id));
        }
        let of = of.and_then(|of| Some((of, key(of.r#match.clone()).ok()?)));
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

    fn keep_replication(&mut self, pipeline: &mut Pipeline, entry: &PacketReplicationEngineEntry) {
        match &entry.r#type {
            Some(PreType::MulticastGroupEntry(group)) => {
                let id = group.multicast_group_id;
                let kept = self.groups.entry(id);
                kept.or_insert_with(|| pipeline.groups.get(&id).cloned());
                self.keep_touched(pipeline, &Touched::Group(id));
            }
            Some(PreType::CloneSessionEntry(session)) => {
                let id = session.session_id;
                let kept = self.sessions.entry(id);
                kept.or_insert_with(|| pipeline.sessions.get(&id).cloned());
                self.keep_touched(pipeline, &Touched::Session(id));
            }
            None => {}
        }
    }
}

/// Returns the cell of an index, `Some(None)` for all cells, `None` for an invalid index.
fn cell(index: Option<Index>) -> Option<Option<usize>> {
    match index {
        None => Some(None),
        Some(Index { index }) => Some(Some(usize::try_from(index).ok()?)),
    }
}
