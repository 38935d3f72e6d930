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
    let creation = |entity: &Entity| Ok(entity.creation(names)?);
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
    let removal = |entity: &Entity| Ok(entity.removal(names)?);
    let removals = entities.into_iter().map(removal);
    removals.filter_map(Result::transpose).collect()
}

/// The program does not support an entity.
#[derive(Debug, thiserror::Error)]
#[error(
    "the program lacks a part that the controller needs: {0}; use Ultima's program and P4Info, or a program derived from it"
)]
pub struct Untranslatable(Box<SchemaError>);

impl From<SchemaError> for Untranslatable {
    fn from(error: SchemaError) -> Self {
        Untranslatable(Box::new(error))
    }
}
