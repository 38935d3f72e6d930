//! All that a switch holds, or should.

use std::collections::BTreeMap;

use ultima_p4runtime::names::Names;
use ultima_p4runtime::v1;

use super::key::{Key, Value, canonical};
use crate::install::Untranslatable;
use crate::plan::Entity;

/// One thing that a switch holds.
#[derive(Clone, Debug)]
pub struct Item {
    /// What it says.
    pub value: Value,
    /// The whole, as it is written or was read.
    pub entity: v1::Entity,
}

/// What a switch holds, or should, by key.
#[derive(Clone, Debug, Default)]
pub struct Held(BTreeMap<Key, Item>);

impl Held {
    /// What `entities` make up: a plan's.
    ///
    /// # Errors
    /// The first that the program has no place for.
    pub fn planned<'a>(
        entities: impl IntoIterator<Item = &'a Entity>,
        names: &Names,
    ) -> Result<Self, Untranslatable> {
        let mut held = Held::default();
        // Counters are nobody's state, and most of what a job sets.
        let kept = |entity: &&Entity| !matches!(entity, Entity::Counter(_));
        for entity in entities.into_iter().filter(kept) {
            let creation = entity.creation(names);
            let creation = creation.map_err(|error| Untranslatable::new(entity, error))?;
            held.insert(creation.entity.unwrap_or_default());
        }
        Ok(held)
    }

    /// Takes an entity in, unless no reconciliation is about it: a counter, a default or constant entry, a meter's cell
    /// without configuration.
    pub fn insert(&mut self, entity: v1::Entity) {
        if let Some((key, value)) = canonical(&entity) {
            self.0.insert(key, Item { value, entity });
        }
    }

    /// Leaves out what has this entity's key.
    pub fn remove(&mut self, entity: &v1::Entity) {
        if let Some((key, _)) = canonical(entity) {
            self.0.remove(&key);
        }
    }

    /// What has this key.
    pub fn get(&self, key: &Key) -> Option<&Item> {
        self.0.get(key)
    }

    /// All of it.
    pub fn iter(&self) -> impl Iterator<Item = (&Key, &Item)> {
        self.0.iter()
    }

    /// How much it is.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it is nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Extend<v1::Entity> for Held {
    fn extend<T: IntoIterator<Item = v1::Entity>>(&mut self, entities: T) {
        entities.into_iter().for_each(|entity| self.insert(entity));
    }
}
