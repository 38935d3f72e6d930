//! The P4Runtime updates that write and remove planned entities.

use ultima_p4runtime::names::Names;
use ultima_p4runtime::v1::Update;

use crate::plan::{Entity, SchemaError};

/// The updates that write `entities`, in their order.
///
/// # Errors
/// The first entity that the program does not support.
pub fn creations<'a>(
    entities: impl IntoIterator<Item = &'a Entity>,
    names: &Names,
) -> Result<Vec<Update>, Untranslatable> {
    let creation = |entity: &Entity| {
        let creation = entity.creation(names);
        creation.map_err(|error| Untranslatable::new(entity, error))
    };
    entities.into_iter().map(creation).collect()
}

/// The updates that remove `entities`, in their order; entities that are never removed have none.
///
/// # Errors
/// The first entity that the program does not support.
pub fn removals<'a>(
    entities: impl IntoIterator<Item = &'a Entity>,
    names: &Names,
) -> Result<Vec<Update>, Untranslatable> {
    let removal = |entity: &Entity| {
        let removal = entity.removal(names);
        removal
            .map_err(|error| Untranslatable::new(entity, error))
            .transpose()
    };
    entities.into_iter().filter_map(removal).collect()
}

/// The program does not support an entity.
#[derive(Debug, thiserror::Error)]
#[error(
    "the program does not support {entity}: {error}; use Ultima's program and P4Info, or a program derived from it"
)]
pub struct Untranslatable {
    /// The entity's table and key.
    pub entity: String,
    /// The missing name.
    pub error: Box<SchemaError>,
}

impl Untranslatable {
    /// The error for `entity`.
    pub fn new(entity: &Entity, error: SchemaError) -> Self {
        Untranslatable {
            entity: entity.to_string(),
            error: Box::new(error),
        }
    }
}
