//! The reason why a write of planned entities stopped.

use tonic::Code;

use super::error::{WriteError, describe, failed, may_pass};

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
        abandoned: bool,
    },
}

impl Cause {
    /// True if the write was abandoned to reroute jobs.
    pub fn is_abandoned(&self) -> bool {
        matches!(
            self,
            Cause::Failed {
                abandoned: true,
                ..
            }
        )
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
                abandoned: error.is_abandoned(),
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
