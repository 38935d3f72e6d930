//! Conversions into entities and updates, and of election ids.

use crate::v1::{
    self, entity::Entity as Kind, packet_replication_engine_entry::Type as Pre, update,
};

macro_rules! into_entity {
    ($($alternative:ident),*) => {$(
        impl From<v1::$alternative> for v1::Entity {
            fn from(entry: v1::$alternative) -> Self {
                v1::Entity { entity: Some(Kind::$alternative(entry)) }
            }
        }
    )*};
}

into_entity!(
    ExternEntry,
    TableEntry,
    ActionProfileMember,
    ActionProfileGroup,
    MeterEntry,
    DirectMeterEntry,
    CounterEntry,
    DirectCounterEntry,
    PacketReplicationEngineEntry,
    ValueSetEntry,
    RegisterEntry,
    DigestEntry
);

impl From<v1::MulticastGroupEntry> for v1::Entity {
    fn from(group: v1::MulticastGroupEntry) -> Self {
        v1::PacketReplicationEngineEntry {
            r#type: Some(Pre::MulticastGroupEntry(group)),
        }
        .into()
    }
}

impl From<v1::CloneSessionEntry> for v1::Entity {
    fn from(session: v1::CloneSessionEntry) -> Self {
        v1::PacketReplicationEngineEntry {
            r#type: Some(Pre::CloneSessionEntry(session)),
        }
        .into()
    }
}

impl v1::Update {
    /// Returns an INSERT of an entity.
    pub fn insert(entity: impl Into<v1::Entity>) -> Self {
        Self {
            r#type: update::Type::Insert.into(),
            entity: Some(entity.into()),
        }
    }

    /// Returns a MODIFY of an entity.
    pub fn modify(entity: impl Into<v1::Entity>) -> Self {
        Self {
            r#type: update::Type::Modify.into(),
            entity: Some(entity.into()),
        }
    }

    /// Returns a DELETE of an entity, of which only the key counts.
    pub fn delete(entity: impl Into<v1::Entity>) -> Self {
        Self {
            r#type: update::Type::Delete.into(),
            entity: Some(entity.into()),
        }
    }
}

impl From<u128> for v1::Uint128 {
    fn from(number: u128) -> Self {
        Self {
            high: (number >> 64) as u64,
            low: number as u64,
        }
    }
}

impl From<&v1::Uint128> for u128 {
    fn from(number: &v1::Uint128) -> u128 {
        u128::from(number.high) << 64 | u128::from(number.low)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_becomes_an_entry_of_the_replication_engine() {
        let group = v1::MulticastGroupEntry {
            multicast_group_id: 7,
            ..Default::default()
        };
        let update = v1::Update::delete(group.clone());
        assert_eq!(update.r#type(), update::Type::Delete);
        let Some(Kind::PacketReplicationEngineEntry(entry)) = update.entity.unwrap().entity else {
            panic!("another kind of entity");
        };
        assert_eq!(entry.r#type, Some(Pre::MulticastGroupEntry(group)));
    }

    #[test]
    fn election_ids_keep_both_halves() {
        let number = 0x0123_4567_89ab_cdef_1122_3344_5566_7788u128;
        let id = v1::Uint128::from(number);
        assert_eq!(
            (id.high, id.low),
            (0x0123_4567_89ab_cdef, 0x1122_3344_5566_7788)
        );
        assert_eq!(u128::from(&id), number);
    }
}
