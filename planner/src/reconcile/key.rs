//! Keys and values of entities in canonical form.

use std::collections::BTreeSet;

use prost::Message as _;
use ultima_p4::names::job;
use ultima_p4runtime::bytestring::{self, Bytestring};
use ultima_p4runtime::names::Names;
use ultima_p4runtime::replication::Replica;
use ultima_p4runtime::v1::{
    self, MeterConfig, entity, field_match::FieldMatchType, packet_replication_engine_entry as pre,
    table_action,
};

use crate::job::JobId;
use crate::plan::Stage;
use crate::target::Target;

/// The key of an entity on its switch. Its order has no meaning; see [`Stage`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// A table entry.
    Row {
        /// The table's id.
        table: u32,
        /// The match fields by id.
        fields: Vec<(u32, Match)>,
        /// The priority, 0 for none.
        priority: i32,
    },
    /// A multicast group.
    Group(u32),
    /// A clone session.
    Session(u32),
    /// A digest's subscription.
    Digest(u32),
    /// A meter's cell.
    Meter {
        /// The meter's id.
        meter: u32,
        /// The cell's index.
        index: i64,
    },
}

/// The match of one field.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Match {
    /// Exact value.
    Exact(Bytestring),
    /// Prefix and its length in bits.
    Lpm(Bytestring, i32),
    /// Value and mask.
    Ternary(Bytestring, Bytestring),
    /// Lowest and highest value.
    Range(Bytestring, Bytestring),
    /// Optional value, present.
    Optional(Bytestring),
}

/// The value of an entity.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A table entry's action.
    Action {
        /// The action's id.
        id: u32,
        /// The parameters by id.
        params: Vec<(u32, Bytestring)>,
    },
    /// The replicas of a group or a session, and a session's class and packet length.
    Copies {
        /// Port and RID of each replica.
        replicas: BTreeSet<Replica>,
        /// A session's class of service, and its packet length in bytes if it truncates.
        cut: (u32, i32),
    },
    /// A digest's configuration.
    Digest(v1::digest_entry::Config),
    /// A meter's rates in units per second, and bursts.
    Meter(MeterConfig),
    /// An entity that Ultima never writes, as it was read.
    Other(Vec<u8>),
}

impl Value {
    /// The replication nodes that the value needs: one per RID.
    pub fn nodes(&self) -> u64 {
        match self {
            Value::Copies { replicas, .. } => {
                let rids: BTreeSet<u32> = replicas.iter().map(|replica| replica.instance).collect();
                rids.len() as u64
            }
            _ => 0,
        }
    }
}

impl Key {
    /// The stage in which the entity is written.
    pub fn stage(&self, names: &Names) -> Stage {
        let table = match *self {
            Key::Row { table, .. } => names.tables.by_id(table),
            _ => None,
        };
        table.map_or(Stage::Prepare, |table| Stage::of_table(&table.name))
    }

    /// The job in the key of a table entry; none if its table has no jobs.
    pub fn job(&self, names: &Names) -> Option<JobId> {
        let Key::Row { table, fields, .. } = self else {
            return None;
        };
        let mut key = names.tables.by_id(*table)?.key.iter();
        // All tables of jobs call the field so.
        let of = key.find(|it| it.field.name == job::JOB)?.field.id;
        let value = fields.iter().find(|(id, _)| *id == of)?;
        match &value.1 {
            Match::Exact(id) => bytestring::decode(id.as_bytes()).ok().map(JobId),
            _ => None,
        }
    }
}

/// The key of an entity; none if the entity is not reconciled.
pub fn key_of(entity: &v1::Entity) -> Option<Key> {
    match entity.entity.as_ref()? {
        entity::Entity::MeterEntry(cell) => Some(cell_key(cell)),
        _ => canonical(entity).map(|(key, _)| key),
    }
}

fn cell_key(cell: &v1::MeterEntry) -> Key {
    Key::Meter {
        meter: cell.meter_id,
        index: cell.index.unwrap_or_default().index,
    }
}

/// Key and value of an entity; none if it is not reconciled: a counter, a default or constant
/// entry, or a meter's cell without configuration.
pub(super) fn canonical(entity: &v1::Entity) -> Option<(Key, Value)> {
    match entity.entity.as_ref()? {
        entity::Entity::TableEntry(entry) if !entry.is_const && !entry.is_default_action => {
            Some(row(entry))
        }
        entity::Entity::PacketReplicationEngineEntry(entry) => match entry.r#type.as_ref()? {
            pre::Type::MulticastGroupEntry(group) => {
                let value = copies(&group.replicas, (0, 0));
                Some((Key::Group(group.multicast_group_id), value))
            }
            pre::Type::CloneSessionEntry(session) => {
                let cut = (session.class_of_service, session.packet_length_bytes);
                let value = copies(&session.replicas, cut);
                Some((Key::Session(session.session_id), value))
            }
        },
        entity::Entity::DigestEntry(digest) => {
            let config = digest.config.unwrap_or_default();
            Some((Key::Digest(digest.digest_id), Value::Digest(config)))
        }
        entity::Entity::MeterEntry(cell) => Some((cell_key(cell), Value::Meter(cell.config?))),
        _ => None,
    }
}

fn row(entry: &v1::TableEntry) -> (Key, Value) {
    let mut fields: Vec<(u32, Match)> = (entry.r#match.iter())
        .filter_map(|field| Some((field.field_id, matched(field.field_match_type.as_ref()?)?)))
        .collect();
    fields.sort();
    let key = Key::Row {
        table: entry.table_id,
        fields,
        priority: entry.priority,
    };
    let action = entry.action.as_ref();
    let value = match action.and_then(|action| action.r#type.as_ref()) {
        Some(table_action::Type::Action(action)) => {
            let params = action.params.iter();
            let mut params: Vec<(u32, Bytestring)> = params
                .map(|param| (param.param_id, Bytestring::from_be_bytes(&param.value)))
                .collect();
            params.sort();
            let id = action.action_id;
            Value::Action { id, params }
        }
        _ => Value::Other(
            action
                .map(|action| action.encode_to_vec())
                .unwrap_or_default(),
        ),
    };
    (key, value)
}

fn matched(field: &FieldMatchType) -> Option<Match> {
    let number = |bytes: &[u8]| Bytestring::from_be_bytes(bytes);
    Some(match field {
        FieldMatchType::Exact(exact) => Match::Exact(number(&exact.value)),
        FieldMatchType::Lpm(lpm) => Match::Lpm(number(&lpm.value), lpm.prefix_len),
        FieldMatchType::Ternary(it) => Match::Ternary(number(&it.value), number(&it.mask)),
        FieldMatchType::Range(range) => Match::Range(number(&range.low), number(&range.high)),
        FieldMatchType::Optional(it) => Match::Optional(number(&it.value)),
        // Ultima's programs have no such field.
        FieldMatchType::Other(_) => return None,
    })
}

fn copies(replicas: &[v1::Replica], cut: (u32, i32)) -> Value {
    let read: Result<BTreeSet<Replica>, _> = replicas.iter().map(Replica::try_from).collect();
    match read {
        Ok(replicas) => Value::Copies { replicas, cut },
        // Ports that are not numbers are never Ultima's, so they never match.
        Err(_) => Value::Other(replicas.iter().flat_map(|it| it.encode_to_vec()).collect()),
    }
}

impl Value {
    /// True if a switch of this target that reads back `self` was written `wanted`.
    pub(super) fn does(&self, wanted: &Value, target: &Target) -> bool {
        match (self, wanted) {
            (Value::Meter(held), Value::Meter(wanted)) => target.meters.keeps(wanted, held),
            (Value::Digest(held), Value::Digest(wanted)) => target.digests.keeps(wanted, held),
            _ => self == wanted,
        }
    }
}
