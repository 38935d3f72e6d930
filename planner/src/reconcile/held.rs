//! The entities on a switch, or the desired ones.

use std::collections::BTreeMap;

use ultima_p4runtime::names::Names;
use ultima_p4runtime::v1;

use super::key::{Key, Value, canonical};
use crate::plan::Entity;
use crate::update::Untranslatable;

/// An entity of a switch.
#[derive(Clone, Debug)]
pub struct Item {
    /// The value in canonical form.
    pub value: Value,
    /// The entity as written or read.
    pub entity: v1::Entity,
}

/// A switch's entities by key.
#[derive(Clone, Debug, Default)]
pub struct Held(BTreeMap<Key, Item>);

impl Held {
    /// Collects the entities of a plan.
    ///
    /// # Errors
    /// The first entity that the program does not support.
    pub fn planned<'a>(
        entities: impl IntoIterator<Item = &'a Entity>,
        names: &Names,
    ) -> Result<Self, Untranslatable> {
        let mut held = Held::default();
        // Counters are not reconciled, and most of a job's entities are counters.
        let kept = |entity: &&Entity| !matches!(entity, Entity::Counter(_));
        for entity in entities.into_iter().filter(kept) {
            held.insert(entity.creation(names)?.entity.unwrap_or_default());
        }
        Ok(held)
    }

    /// Adds an entity, unless it is not reconciled: a counter, a default or constant entry, or a
    /// meter's cell without configuration.
    pub fn insert(&mut self, entity: v1::Entity) {
        if let Some((key, value)) = canonical(&entity) {
            self.0.insert(key, Item { value, entity });
        }
    }

    /// Removes the entity with the same key.
    pub fn remove(&mut self, entity: &v1::Entity) {
        if let Some((key, _)) = canonical(entity) {
            self.0.remove(&key);
        }
    }

    /// The entity with this key.
    pub fn get(&self, key: &Key) -> Option<&Item> {
        self.0.get(key)
    }

    /// All entities.
    pub fn iter(&self) -> impl Iterator<Item = (&Key, &Item)> {
        self.0.iter()
    }

    /// The number of entities.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if there are no entities.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Extend<v1::Entity> for Held {
    fn extend<T: IntoIterator<Item = v1::Entity>>(&mut self, entities: T) {
        entities.into_iter().for_each(|entity| self.insert(entity));
    }
}
