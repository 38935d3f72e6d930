//! Writes entities to switches, all or nothing: validate, write, undo.
//!
//! [`install`] translates a whole plan before it writes any of it. It writes stage by stage, on all
//! switches at once. If a write fails, it removes the written entities in reverse order. It returns
//! the switches from which they could not be removed, so that these are
//! [reconciled](crate::reconcile).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use futures_util::future::join_all;
use tonic::Code;
use ultima_p4runtime::names::Names;
use ultima_p4runtime::v1::{self, Update};

use crate::fabric::SwitchId;
use crate::names::some_of;
use crate::p4rt::{Order, SwitchClient, WriteError, describe, failed, may_pass};
use crate::plan::{Entity, JobPlan, SchemaError};

/// The connections of an installation.
pub type Clients = BTreeMap<SwitchId, Arc<SwitchClient>>;

/// The entities that were written, or may have been, in the order of writing.
pub type WrittenOn = BTreeMap<SwitchId, Vec<Prepared>>;

/// A translated entity.
#[derive(Clone, Debug)]
pub struct Prepared {
    entity: Entity,
    creation: Update,
    /// None for an entity that is never removed.
    removal: Option<Update>,
}

impl Prepared {
    /// Translates `entities` with the program's names.
    ///
    /// # Errors
    /// The first entity that the program does not support.
    pub fn all<'a>(
        entities: impl IntoIterator<Item = &'a Entity>,
        names: &Names,
    ) -> Result<Vec<Prepared>, Untranslatable> {
        let translate = |entity: &Entity| {
            let (creation, removal) = (entity.creation(names)?, entity.removal(names)?);
            Ok(Prepared {
                entity: entity.clone(),
                creation,
                removal,
            })
        };
        let prepare = |entity: &'a Entity| {
            translate(entity).map_err(|error| Untranslatable::new(entity, error))
        };
        entities.into_iter().map(prepare).collect()
    }
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

/// Error of an installation; nothing is installed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// Nothing was written.
    #[error(transparent)]
    Untranslatable(#[from] Untranslatable),
    /// A switch stopped the installation.
    #[error("switch {switch} {cause}; the installation was undone{undone}")]
    Stopped {
        /// The switch.
        at: SwitchId,
        /// Its name.
        switch: String,
        /// What the switch answered.
        cause: Cause,
        /// The result of the undo.
        undone: Undone,
    },
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

/// The result of an undo. As text: the switches on which entries are left, or nothing.
#[derive(Debug, Default)]
pub struct Undone {
    /// The switches on which entries are left.
    pub left: Vec<SwitchId>,
    /// Their names.
    pub switches: Vec<String>,
}

impl fmt::Display for Undone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.switches.as_slice() {
            [] => Ok(()),
            left => write!(
                f,
                ", except on {}, which is cleaned up when it answers again",
                some_of(left)
            ),
        }
    }
}

impl InstallError {
    /// True if the installation was abandoned to reroute jobs, so that a retry may succeed soon.
    pub fn is_given_up(&self) -> bool {
        matches!(self, InstallError::Stopped { cause, .. } if cause.is_given_up())
    }

    /// The switch whose entries are not as expected, if that stopped the installation.
    pub fn outdated(&self) -> Option<SwitchId> {
        match self {
            InstallError::Stopped { at, cause, .. } if cause.is_outdated() => Some(*at),
            _ => None,
        }
    }
}

/// Installs the plans of jobs on their switches, all or nothing.
///
/// # Errors
/// The first switch that rejected a write or failed, and the result of the undo.
///
/// # Panics
/// If `clients` lacks one of the plans' switches.
pub async fn install<'a>(
    clients: &Clients,
    names: &Names,
    plans: impl IntoIterator<Item = &'a JobPlan>,
) -> Result<(), InstallError> {
    let mut stages: [BTreeMap<SwitchId, Vec<Prepared>>; 3] = Default::default();
    for (id, plan) in plans.into_iter().flatten() {
        for (stage, entities) in stages.iter_mut().zip(plan.stages()) {
            let here = stage.entry(*id).or_default();
            here.extend(Prepared::all(entities, names)?);
        }
    }

    let mut written = WrittenOn::new();
    for stage in stages {
        let writes = stage
            .into_iter()
            .map(|(id, entities)| async move { (id, write(&clients[&id], entities).await) });
        let mut stopped = None;
        for (id, Written { present, cause }) in join_all(writes).await {
            written.entry(id).or_default().extend(present);
            stopped = stopped.or(cause.map(|cause| (id, cause)));
        }
        if let Some((id, cause)) = stopped {
            let name = |id: &SwitchId| clients[id].device().name.clone();
            let left = remove(&undoing(clients), written).await;
            let switches = left.iter().map(name).collect();
            let undone = Undone { left, switches };
            return Err(InstallError::Stopped {
                at: id,
                switch: name(&id),
                cause,
                undone,
            });
        }
    }
    Ok(())
}

/// The result of a write.
pub struct Written {
    /// The entities that are, or may be, on the switch.
    pub present: Vec<Prepared>,
    /// Why the rest was not written.
    pub cause: Option<Cause>,
}

/// Writes entities that do not depend on each other to one switch.
#[tracing::instrument(level = "debug", skip_all, fields(switch = client.device().name, entities = entities.len()))]
pub async fn write(client: &SwitchClient, entities: Vec<Prepared>) -> Written {
    let updates = entities
        .iter()
        .map(|prepared| prepared.creation.clone())
        .collect();
    let Err(error) = client.write(updates, Order::Any).await else {
        return Written {
            present: entities,
            cause: None,
        };
    };
    let cause = Cause::of(&error, entities.len(), |at| entities[at].entity.to_string());
    let present = match error {
        WriteError::Rpc(error) if error.is_uncertain() => entities,
        WriteError::Rpc(_) => Vec::new(),
        WriteError::Updates(outcomes) => {
            let written = entities.into_iter().zip(outcomes);
            (written.filter(|(_, outcome)| !failed(outcome)))
                .map(|(entity, _)| entity)
                .collect()
        }
    };
    Written { present, cause }
}

/// The same connections with the limits for undoing.
pub(crate) fn undoing(clients: &Clients) -> Clients {
    let undoing = clients.iter();
    undoing
        .map(|(id, client)| (*id, Arc::new(client.undoing())))
        .collect()
}

/// Removes the written entities in reverse order, on all switches at once. Returns the switches on
/// which some are left, because the switch is disconnected, failed or rejected a removal. Entities
/// that are already gone count as removed.
pub async fn remove(clients: &Clients, written: WrittenOn) -> Vec<SwitchId> {
    let removals = written.into_iter().map(|(id, entities)| async move {
        match clients.get(&id) {
            Some(client) => (id, remove_from(client, &entities).await),
            None => (id, entities.is_empty()),
        }
    });
    let removed = join_all(removals).await;
    (removed.into_iter().filter(|(_, whole)| !whole))
        .map(|(id, _)| id)
        .collect()
}

/// Removes the written entities from one switch in reverse order. Returns false if some are left,
/// or may be.
#[tracing::instrument(level = "debug", skip_all, fields(switch = client.device().name, entities = written.len()))]
async fn remove_from(client: &SwitchClient, written: &[Prepared]) -> bool {
    let switch = client.device().name.as_str();
    let (removable, updates): (Vec<&Prepared>, Vec<Update>) = (written.iter().rev())
        .filter_map(|prepared| Some((prepared, prepared.removal.clone()?)))
        .unzip();
    match client.write(updates, Order::AsGiven).await {
        Ok(()) => true,
        Err(WriteError::Rpc(error)) => {
            tracing::warn!(switch, %error, "cannot remove {} entities", removable.len());
            false
        }
        Err(WriteError::Updates(outcomes)) => {
            let left = removable
                .iter()
                .zip(&outcomes)
                .filter(|(_, outcome)| !is_gone(outcome));
            let mut whole = true;
            for (Prepared { entity, .. }, _) in left {
                tracing::warn!(switch, %entity, "cannot remove an entity");
                whole = false;
            }
            whole
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
