//! The updates that change a switch's entities to the desired ones.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use ultima_p4runtime::names::Names;
use ultima_p4runtime::v1::{self, Update, entity, packet_replication_engine_entry as pre};

use super::describe::describe;
use super::held::{Held, Item};
use super::key::Key;
use crate::target::{Limits, Target};

/// A difference between a switch's entities and the desired ones.
#[derive(Clone, Debug)]
pub struct Difference {
    /// The entity's key.
    pub key: Key,
    /// The entity on the switch; none if it is missing.
    pub held: Option<Item>,
    /// The desired entity; none if the entity is not desired.
    pub wanted: Option<Item>,
}

/// A difference in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// The entity's name.
    pub entity: String,
    /// The value on the switch; none if the entity is missing.
    pub held: Option<String>,
    /// The desired value; none if the entity is not desired.
    pub wanted: Option<String>,
}

/// On one line.
impl fmt::Display for Described {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entity = &self.entity;
        match (&self.held, &self.wanted) {
            (Some(held), Some(wanted)) => write!(f, "{entity}: found {held}, expected {wanted}"),
            (None, Some(wanted)) => write!(f, "{entity}: missing, expected {wanted}"),
            (Some(held), None) => write!(f, "{entity}: unexpected, found {held}"),
            (None, None) => f.write_str(entity),
        }
    }
}

/// All differences of a switch.
#[derive(Clone, Debug, Default)]
pub struct Diff(Vec<Difference>);

/// The limits of a switch, which decide whether old entities are deleted before new ones are
/// inserted.
#[derive(Clone, Copy, Debug)]
pub struct Room<'a> {
    /// The program's names and table sizes.
    pub names: &'a Names,
    /// The limits of the replication engine.
    pub limits: Limits,
}

/// The resources that entities share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Table(u32),
    Groups,
    /// An unlimited resource.
    Other,
}

impl Kind {
    fn of(key: &Key) -> Kind {
        match *key {
            Key::Row { table, .. } => Kind::Table(table),
            Key::Group(_) => Kind::Groups,
            _ => Kind::Other,
        }
    }
}

impl Difference {
    /// Describes the difference in the program's names.
    pub fn describe(&self, names: &Names) -> Described {
        let say = |item: &Option<Item>| item.as_ref().map(|item| item.value.describe(names));
        Described {
            entity: describe(&self.key, None, names),
            held: say(&self.held),
            wanted: say(&self.wanted),
        }
    }

    /// True if a group is to have fewer nodes than it has.
    fn shrinks(&self) -> bool {
        let nodes = |item: &Option<Item>| item.as_ref().map(|item| item.value.nodes());
        match (nodes(&self.held), nodes(&self.wanted)) {
            (Some(held), Some(wanted)) => wanted < held,
            _ => false,
        }
    }

    /// The update that removes the difference.
    pub fn update(&self) -> Update {
        match (&self.held, &self.wanted) {
            // A meter's cell always exists, so it is modified.
            (_, Some(wanted)) if matches!(self.key, Key::Meter { .. }) => {
                Update::modify(wanted.entity.clone())
            }
            (None, Some(wanted)) => Update::insert(wanted.entity.clone()),
            (Some(_), Some(wanted)) => Update::modify(wanted.entity.clone()),
            (Some(held), None) => removal(held.entity.clone()),
            (None, None) => Update::default(),
        }
    }
}

/// The update that deletes an entity which was read from the switch.
fn removal(mut held: v1::Entity) -> Update {
    match held.entity.as_mut() {
        Some(entity::Entity::MeterEntry(cell)) => {
            cell.config = None;
            cell.counter_data = None;
            return Update::modify(held);
        }
        // Deletes by key only (P4Runtime §9.1): servers ignore or reject other data.
        Some(entity::Entity::TableEntry(entry)) => {
            *entry = v1::TableEntry {
                table_id: entry.table_id,
                r#match: std::mem::take(&mut entry.r#match),
                priority: entry.priority,
                ..Default::default()
            };
        }
        Some(entity::Entity::PacketReplicationEngineEntry(entry)) => match entry.r#type.as_mut() {
            Some(pre::Type::MulticastGroupEntry(group)) => group.replicas.clear(),
            Some(pre::Type::CloneSessionEntry(session)) => session.replicas.clear(),
            None => {}
        },
        _ => {}
    }
    Update::delete(held)
}

impl Diff {
    /// Compares `held`, as a switch of this target reads it back, with `wanted`.
    pub fn between(held: &Held, wanted: &Held, target: &Target) -> Diff {
        let mut differences = Vec::new();
        for (key, item) in wanted.iter() {
            let there = held.get(key);
            if !there.is_some_and(|there| there.value.does(&item.value, target)) {
                differences.push(Difference {
                    key: key.clone(),
                    held: there.cloned(),
                    wanted: Some(item.clone()),
                });
            }
        }
        for (key, item) in held.iter().filter(|(key, _)| wanted.get(key).is_none()) {
            differences.push(Difference {
                key: key.clone(),
                held: Some(item.clone()),
                wanted: None,
            });
        }
        Diff(differences)
    }

    /// The differences.
    pub fn differences(&self) -> &[Difference] {
        &self.0
    }

    /// True if there are no differences.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The updates for all differences, in rounds; within a round, in any order. First inserts and
    /// modifications, entries that forward before entries that admit; then deletions in reverse. So
    /// unchanged traffic meets no gap. Only if old and new entities together exceed the switch's
    /// limits, old ones are deleted first, and groups that shrink come before groups that grow.
    pub fn updates(&self, held: &Held, room: Room<'_>) -> Vec<Vec<Update>> {
        let full = self.full(held, room);
        let stage = |difference: &&Difference| difference.key.stage(room.names);
        let mut leaving: Vec<&Difference> = (self.0.iter())
            .filter(|difference| difference.wanted.is_none())
            .collect();
        leaving.sort_by_key(|difference| std::cmp::Reverse(stage(difference)));
        let makes_room = |it: &Difference| full.contains(&Kind::of(&it.key));
        // Admissions to an entity that is deleted first are deleted before it.
        let earliest = (leaving.iter().filter(|it| makes_room(it)).map(&stage)).min();
        let (first, last): (Vec<_>, Vec<_>) = leaving.into_iter().partition(|it| {
            makes_room(it) || earliest.is_some_and(|earliest| stage(it) > earliest)
        });
        let mut coming: Vec<&Difference> = (self.0.iter())
            .filter(|difference| difference.wanted.is_some())
            .collect();
        // Updates that make room come first.
        let round = |it: &&Difference| (stage(it), !(makes_room(it) && it.shrinks()));
        coming.sort_by_key(round);
        let rounds = |of: Vec<&Difference>| {
            let rounds = of.chunk_by(|one, next| round(one) == round(next));
            let rounds = rounds.map(|round| round.iter().map(|it| it.update()).collect());
            rounds.collect::<Vec<Vec<Update>>>()
        };
        [first, coming, last].into_iter().flat_map(rounds).collect()
    }

    /// The resources that have no room for old and new entities together.
    fn full(&self, held: &Held, room: Room<'_>) -> BTreeSet<Kind> {
        let mut needed: BTreeMap<Kind, u64> = BTreeMap::new();
        let new = (self.0.iter())
            .filter(|difference| difference.held.is_none())
            .map(|difference| &difference.key);
        for key in held.iter().map(|(key, _)| key).chain(new) {
            *needed.entry(Kind::of(key)).or_default() += 1;
        }
        let size = |kind: Kind| match kind {
            Kind::Table(id) => room.names.tables.by_id(id).map_or(0, |table| table.size),
            Kind::Groups => room.limits.groups.into(),
            Kind::Other => u64::MAX,
        };
        let mut full: BTreeSet<Kind> = (needed.into_iter())
            .filter(|&(kind, needed)| needed > size(kind))
            .map(|(kind, _)| kind)
            .collect();
        if self.nodes(held) > room.limits.nodes.into() {
            full.insert(Kind::Groups);
        }
        full
    }

    /// The replication nodes while old and new groups exist together.
    fn nodes(&self, held: &Held) -> u64 {
        let of = |item: Option<&Item>| item.map_or(0, |item| item.value.nodes());
        let is_group = |key: &Key| matches!(key, Key::Group(_));
        let old = held.iter().filter(|(key, _)| is_group(key));
        let more = self.0.iter().filter(|it| is_group(&it.key));
        old.map(|(_, item)| of(Some(item))).sum::<u64>()
            + more
                .map(|it| of(it.wanted.as_ref()).saturating_sub(of(it.held.as_ref())))
                .sum::<u64>()
    }
}
