//! What an entity is found by, and what it says, in canonical form.

use std::collections::BTreeSet;

use prost::Message as _;
use ultima_p4runtime::bytestring::Bytestring;
use ultima_p4runtime::names::Names;
use ultima_p4runtime::replication::Replica;
use ultima_p4runtime::v1::{
    self, MeterConfig, entity, field_match::FieldMatchType, packet_replication_engine_entry as pre,
    table_action,
};

use crate::plan::Stage;
use crate::target::Target;

/// What an entity is found by on its switch. The order is none that means anything; see [`Stage`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// An entry of a table.
    Row {
        /// The table's id.
        table: u32,
        /// Match fields by id.
        fields: Vec<(u32, Match)>,
        /// Its priority, 0 without one.
        priority: i32,
    },
    /// A multicast group.
    Group(u32),
    /// A clone session.
    Session(u32),
    /// The subscription to a digest.
    Digest(u32),
    /// A meter's cell.
    Meter {
        /// The meter's id.
        meter: u32,
        /// The cell's place.
        index: i64,
    },
}

/// How one field of a key is matched.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Match {
    /// It is this.
    Exact(Bytestring),
    /// It begins like this, for so many bits.
    Lpm(Bytestring, i32),
    /// It is this under a mask.
    Ternary(Bytestring, Bytestring),
    /// It lies between these.
    Range(Bytestring, Bytestring),
    /// It is this, where it is not left out.
    Optional(Bytestring),
}

/// What an entity says.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A row's action and its parameters, by id.
    Action {
        /// The action.
        id: u32,
        /// Parameters by id.
        params: Vec<(u32, Bytestring)>,
    },
    /// What a group or a session copies to, and to which class and length a session copies.
    Copies {
        /// Port and RID of each copy.
        replicas: BTreeSet<Replica>,
        /// A session's class of service and length, in bytes, if it cuts.
        cut: (u32, i32),
    },
    /// How a digest is told.
    Digest(v1::digest_entry::Config),
    /// A meter's rates in units a second, and bursts.
    Meter(MeterConfig),
    /// Something that nothing of ours says, as it came.
    Other(Vec<u8>),
}

impl Value {
    /// How many nodes of the replication engine it takes: one for each RID that it copies to.
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
    /// When what has this key is written.
    pub fn stage(&self, names: &Names) -> Stage {
        let table = match *self {
            Key::Row { table, .. } => names.tables.by_id(table),
            _ => None,
        };
        table.map_or(Stage::Prepare, |table| Stage::of_table(&table.name))
    }
}

/// What an entity is found by; none of one that no reconciliation is about.
pub(super) fn key_of(entity: &v1::Entity) -> Option<Key> {
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

/// Key and value of an entity; none of one that no reconciliation is about: a counter, a default or constant entry, a
/// meter's cell without configuration.
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
        // No program of ours has such a field.
        FieldMatchType::Other(_) => return None,
    })
}

fn copies(replicas: &[v1::Replica], cut: (u32, i32)) -> Value {
    let read: Result<BTreeSet<Replica>, _> = replicas.iter().map(Replica::try_from).collect();
    match read {
        Ok(replicas) => Value::Copies { replicas, cut },
        // Ports that are no numbers: not ours, and so never what is wanted.
        Err(_) => Value::Other(replicas.iter().flat_map(|it| it.encode_to_vec()).collect()),
    }
}

impl Value {
    /// Whether a switch of this target that says `self` does what `wanted` says.
    pub(super) fn does(&self, wanted: &Value, target: &Target) -> bool {
        match (self, wanted) {
            (Value::Meter(held), Value::Meter(wanted)) => target.meters.keeps(wanted, held),
            (Value::Digest(held), Value::Digest(wanted)) => target.digests.keeps(wanted, held),
            _ => self == wanted,
        }
    }
}
