//! The P4Runtime updates that write and remove planned entities, and the reasons why a write fails.

use std::collections::BTreeMap;
use std::sync::Arc;

use tonic::Code;
use ultima_p4runtime::names::Names;
use ultima_p4runtime::v1::{self, Update};

use crate::fabric::SwitchId;
use crate::p4rt::{SwitchClient, WriteError, describe, failed, may_pass};
use crate::plan::{Entity, SchemaError};

/// The connections to several switches.
pub type Clients = BTreeMap<SwitchId, Arc<SwitchClient>>;

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

/// Reason why a write stopped.
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    /// The switch rejected one entity.
    #[error("refused {entity}: {reason}")]
    Refused {
        /// The entity, by table and key.
        entity: String,
        /// The switch's code.
        code: Code,
        /// The code and the switch's message.
        reason: String,
    },
    /// The switch did not answer, or rejected the whole batch.
    #[error("failed to write {first} and {more} more: {reason}")]
    Failed {
        /// The first entity of the batch.
        first: String,
        /// The number of entities after it.
        more: usize,
        /// The call's error.
        reason: String,
        /// True if the write was abandoned to reroute jobs.
        given_up: bool,
    },
}

impl Cause {
    /// True if the write was abandoned to reroute jobs.
    pub fn is_given_up(&self) -> bool {
        matches!(self, Cause::Failed { given_up: true, .. })
    }

    /// True if the switch holds other entries than expected: it already has a new entry, or lacks
    /// one to change or remove.
    pub fn is_outdated(&self) -> bool {
        let of_what_it_holds = [Code::AlreadyExists, Code::NotFound];
        matches!(self, Cause::Refused { code, .. } if of_what_it_holds.contains(code))
    }

    /// True if a retry may succeed: the switch did not reject the entity itself.
    pub fn may_pass(&self) -> bool {
        match self {
            Cause::Refused { code, .. } => self.is_outdated() || may_pass(*code),
            // A client that lost its primary role learns so when it reconnects.
            Cause::Failed { .. } => true,
        }
    }

    /// Returns the reason why a write of `count` entities stopped; `name` names the entity at an
    /// index. None if there were no entities.
    pub(crate) fn of(
        error: &WriteError,
        count: usize,
        name: impl Fn(usize) -> String,
    ) -> Option<Self> {
        match error {
            WriteError::Rpc(error) => (count > 0).then(|| Cause::Failed {
                first: name(0),
                more: count - 1,
                reason: error.to_string(),
                given_up: error.is_given_up(),
            }),
            WriteError::Updates(outcomes) => {
                let refused = (0..count)
                    .zip(outcomes)
                    .find(|(_, outcome)| failed(outcome));
                refused.map(|(at, outcome)| Cause::Refused {
                    entity: name(at),
                    code: Code::from_i32(outcome.canonical_code),
                    reason: describe(outcome),
                })
            }
        }
    }
}

/// True if a removal leaves nothing behind.
pub(crate) fn is_gone(outcome: &v1::Error) -> bool {
    matches!(
        Code::from_i32(outcome.canonical_code),
        Code::Ok | Code::NotFound
    )
}
