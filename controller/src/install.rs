//! Putting entities on switches, all or nothing: validate, act, undo.
//!
//! [`install`] translates a whole plan before it writes any of it, writes it stage by stage, on all
//! its switches at once, and when anything fails removes what was written, last first. Switches from which it cannot be
//! removed are named: what they hold is to be [reconciled](crate::reconcile).

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

/// The connections that an installation may use.
pub type Clients = BTreeMap<SwitchId, Arc<SwitchClient>>;

/// What was written, or may have been, in the order of writing.
pub type WrittenOn = BTreeMap<SwitchId, Vec<Prepared>>;

/// An entity, translated.
#[derive(Clone, Debug)]
pub struct Prepared {
    entity: Entity,
    creation: Update,
    /// None for what stays.
    removal: Option<Update>,
}

impl Prepared {
    /// Translates `entities` with the program's names.
    ///
    /// # Errors
    /// The first entity that the program has no place for.
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

/// The program has no place for an entity.
#[derive(Debug, thiserror::Error)]
#[error(
    "the program has no place for {entity}: {error}; give the controller the program and P4Info of Ultima, or ones derived from them"
)]
pub struct Untranslatable {
    /// The entity, by table and key.
    pub entity: String,
    /// What is missing.
    pub error: Box<SchemaError>,
}

impl Untranslatable {
    /// The program has no place for `entity`.
    pub fn new(entity: &Entity, error: SchemaError) -> Self {
        Untranslatable {
            entity: entity.to_string(),
            error: Box::new(error),
        }
    }
}

/// Why a plan is on none of its switches.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// Nothing was written.
    #[error(transparent)]
    Untranslatable(#[from] Untranslatable),
    /// A switch stopped the installation.
    #[error("switch {switch} {cause}; what had been written was undone{undone}")]
    Stopped {
        /// The switch.
        at: SwitchId,
        /// Its name.
        switch: String,
        /// What happened there.
        cause: Cause,
        /// What became of what had been written.
        undone: Undone,
    },
}

/// What stopped a write.
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    /// The switch refused one entity.
    #[error("refused {entity}: {reason}")]
    Refused {
        /// The entity, by table and key.
        entity: String,
        /// The switch's code.
        code: Code,
        /// That and its text.
        reason: String,
    },
    /// The switch didn't answer, or refused the whole batch.
    #[error("failed while {first} and {more} more were written: {reason}")]
    Failed {
        /// The batch's first entity.
        first: String,
        /// How many came after it.
        more: usize,
        /// What the call gave.
        reason: String,
        /// Whether it was given up, as trees had to move.
        given_up: bool,
    },
}

impl Cause {
    /// Whether the switch was not waited for, as trees had to move.
    pub fn is_given_up(&self) -> bool {
        matches!(self, Cause::Failed { given_up: true, .. })
    }

    /// Whether the switch has already what was to come, or has not what was to change or go: it holds something else than was thought.
    pub fn is_outdated(&self) -> bool {
        let of_what_it_holds = [Code::AlreadyExists, Code::NotFound];
        matches!(self, Cause::Refused { code, .. } if of_what_it_holds.contains(code))
    }

    /// Whether the same may be done if it is asked for again: nothing is wrong with it itself, as far as is said.
    pub fn may_pass(&self) -> bool {
        match self {
            Cause::Refused { code, .. } => self.is_outdated() || may_pass(*code),
            // Who does not write any more because it is not primary hears that when it connects again.
            Cause::Failed { .. } => true,
        }
    }

    /// What stopped a write of `count` things, of which `name` says the one at a place; none if there were none.
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

/// How far an undo got. As text: the switches on which something is left, or nothing where it got to the end.
#[derive(Debug, Default)]
pub struct Undone {
    /// The switches on which something is left.
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
                ", except on {}, where it goes when the switch answers",
                some_of(left)
            ),
        }
    }
}

impl InstallError {
    /// Whether it was stopped for trees that had to move, so that the same may be granted in a moment.
    pub fn is_given_up(&self) -> bool {
        matches!(self, InstallError::Stopped { cause, .. } if cause.is_given_up())
    }

    /// The switch that holds something else than was thought, if that stopped it.
    pub fn outdated(&self) -> Option<SwitchId> {
        match self {
            InstallError::Stopped { at, cause, .. } if cause.is_outdated() => Some(*at),
            _ => None,
        }
    }
}

/// Puts what jobs need on their switches, all of it or nothing.
///
/// # Errors
/// The first switch that refused or failed, and what the undo left.
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

/// What a write has come to.
pub struct Written {
    /// What is, or may be, on the switch now.
    pub present: Vec<Prepared>,
    /// What stopped the rest.
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

/// The same connections, for taking back what was done with them.
pub(crate) fn undoing(clients: &Clients) -> Clients {
    let undoing = clients.iter();
    undoing
        .map(|(id, client)| (*id, Arc::new(client.undoing())))
        .collect()
}

/// Removes what was written, last first, on all switches at once; returns those on which something is left, because
/// they are not connected, failed or refused. What is not there any more counts as removed.
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

/// Removes what was written from one switch, last first; false if something is left, or may be.
#[tracing::instrument(level = "debug", skip_all, fields(switch = client.device().name, entities = written.len()))]
async fn remove_from(client: &SwitchClient, written: &[Prepared]) -> bool {
    let switch = client.device().name.as_str();
    let (removable, updates): (Vec<&Prepared>, Vec<Update>) = (written.iter().rev())
        .filter_map(|prepared| Some((prepared, prepared.removal.clone()?)))
        .unzip();
    match client.write(updates, Order::AsGiven).await {
        Ok(()) => true,
        Err(WriteError::Rpc(error)) => {
            tracing::warn!(switch, %error, "{} entities not removed", removable.len());
            false
        }
        Err(WriteError::Updates(outcomes)) => {
            let left = removable
                .iter()
                .zip(&outcomes)
                .filter(|(_, outcome)| !is_gone(outcome));
            let mut whole = true;
            for (Prepared { entity, .. }, _) in left {
                tracing::warn!(switch, %entity, "not removed");
                whole = false;
            }
            whole
        }
    }
}

/// Whether a removal's outcome leaves nothing behind.
pub(crate) fn is_gone(outcome: &v1::Error) -> bool {
    matches!(
        Code::from_i32(outcome.canonical_code),
        Code::Ok | Code::NotFound
    )
}
