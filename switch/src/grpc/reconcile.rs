//! RECONCILE_AND_COMMIT: a new program takes over the state of the old (P4Runtime §14).
//!
//! What a reader would see of the old program is written to the new one, in the same messages. So
//! the state is preserved exactly where a controller could have moved it by hand, and refused where
//! it could not.

use tonic::Code;
use ultima_p4runtime::v1::entity::Entity;
use ultima_p4runtime::v1::p4_data::Data;
use ultima_p4runtime::v1::packet_replication_engine_entry::Type as PreType;
use ultima_p4runtime::v1::update::Type as UpdateType;
use ultima_p4runtime::v1::{
    self, ActionProfileGroup, ActionProfileMember, CloneSessionEntry, CounterData, CounterEntry,
    DigestEntry, DirectCounterEntry, DirectMeterEntry, MeterConfig, MeterEntry,
    MulticastGroupEntry, PacketReplicationEngineEntry, RegisterEntry, TableEntry, Update,
    ValueSetEntry,
};

use super::error::EntityError;
use super::{read, write};
use crate::pipeline::Pipeline;

/// Writes the state of `old` to `new`, freshly loaded.
pub(super) fn reconcile(old: &Pipeline, new: &mut Pipeline) -> Result<(), EntityError> {
    let all_entries = TableEntry {
        counter_data: Some(CounterData::default()),
        meter_config: Some(MeterConfig::default()),
        ..TableEntry::default()
    };
    let defaults = old.defaults_set.iter().map(|&table_id| {
        Entity::TableEntry(TableEntry {
            table_id,
            is_default_action: true,
            ..TableEntry::default()
        })
    });
    let replication = |entry| {
        Entity::PacketReplicationEngineEntry(PacketReplicationEngineEntry {
            r#type: Some(entry),
        })
    };
    let requests = [
        // Entries refer to groups, groups to members.
        Entity::ActionProfileMember(ActionProfileMember::default()),
        Entity::ActionProfileGroup(ActionProfileGroup::default()),
        Entity::TableEntry(all_entries),
        Entity::CounterEntry(CounterEntry::default()),
        Entity::MeterEntry(MeterEntry::default()),
        Entity::RegisterEntry(RegisterEntry::default()),
        Entity::ValueSetEntry(ValueSetEntry::default()),
        replication(PreType::MulticastGroupEntry(MulticastGroupEntry::default())),
        replication(PreType::CloneSessionEntry(CloneSessionEntry::default())),
        Entity::DigestEntry(DigestEntry::default()),
    ];
    let default_entries = TableEntry {
        is_default_action: true,
        ..TableEntry::default()
    };
    let defaults_resources = [
        Entity::DirectCounterEntry(DirectCounterEntry {
            table_entry: Some(default_entries.clone()),
            data: None,
        }),
        Entity::DirectMeterEntry(DirectMeterEntry {
            table_entry: Some(default_entries),
            ..DirectMeterEntry::default()
        }),
    ];
    let mut found = Vec::new();
    let requests = requests.into_iter().chain(defaults);
    for request in requests.chain(defaults_resources) {
        read::read(
            old,
            &v1::Entity {
                entity: Some(request),
            },
            &mut found,
        )?;
    }
    for entity in found.into_iter().filter(is_state) {
        carry_over(new, entity).map_err(|error| {
            EntityError::new(
                error.code,
                format!("the existing state cannot be preserved: {error}"),
            )
        })?;
    }
    Ok(())
}

/// Whether an entity differs from what any freshly loaded program has.
fn is_state(entity: &Entity) -> bool {
    match entity {
        Entity::TableEntry(entry) => !entry.is_const,
        Entity::CounterEntry(entry) => entry.data != Some(CounterData::default()),
        Entity::MeterEntry(entry) => entry.config.is_some(),
        Entity::DirectCounterEntry(entry) => entry.data != Some(CounterData::default()),
        Entity::DirectMeterEntry(entry) => entry.config.is_some(),
        Entity::ValueSetEntry(entry) => !entry.members.is_empty(),
        Entity::RegisterEntry(entry) => {
            let data = entry.data.as_ref().and_then(|data| data.data.as_ref());
            !matches!(data, Some(Data::Bitstring(bytes)) if bytes.iter().all(|byte| *byte == 0))
        }
        _ => true,
    }
}

fn carry_over(new: &mut Pipeline, entity: Entity) -> Result<(), EntityError> {
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
