//! The message that announces a new epoch to the members of the old one: built once, and completed
//! for each member.

use std::sync::Arc;
use std::time::Instant;

use ultima_api::v1::{JoinResponse, PrepareEpoch, prepare_epoch};
use ultima_planner::job::{Job, Rank};
use ultima_planner::membership::Succession;

use super::super::controller::{Controller, JobState, state_alone};
use super::super::registry::Record;

/// A new epoch, for the members of the previous one.
#[derive(Debug)]
pub struct Preparation {
    /// The new epoch.
    job: Arc<Job>,
    succession: Arc<Succession>,
    /// The answer for a new member, without the fields of a single member. It lists all members.
    seat: JoinResponse,
}

impl Preparation {
    /// The number of members listed in the message for this rank of the previous epoch.
    pub fn entries(&self, rank: Rank) -> usize {
        match self.succession.becomes(rank) {
            Some(_) => self.seat.members.len(),
            None => 0,
        }
    }
}

impl Controller {
    /// Records that a member of the previous epoch is ready to receive its message, which waits for
    /// room.
    pub(in super::super) fn waits_to_send(&self, of: &Preparation, rank: Rank) {
        let mut registry = self.registry();
        if let Some(change) = registry
            .get_mut(of.job.id)
            .and_then(|it| it.change.as_mut())
        {
            change.waits(rank);
        }
    }

    /// Records that the message was sent.
    pub(in super::super) fn is_sent(&self, of: &Preparation, rank: Rank) {
        let is_new = {
            let mut registry = self.registry();
            let record = registry.get_mut(of.job.id);
            let change = record.and_then(|it| it.change.as_mut());
            change.is_some_and(|change| change.told(rank, Instant::now()))
        };
        if is_new {
            self.sessions.notify(of.job.id);
        }
    }

    /// The message for a member of the previous epoch.
    pub(in super::super) fn prepared(&self, of: &Preparation, rank: Rank) -> PrepareEpoch {
        let place = match of.succession.becomes(rank) {
            Some(rank) => {
                let seat = self.seat_of(&of.job, rank, of.seat.clone());
                self.record_key(&of.job, rank);
                prepare_epoch::Place::Seat(seat)
            }
            None => {
                let why = of.succession.left_out().get(&rank).cloned();
                prepare_epoch::Place::LeftOut(why.unwrap_or_default())
            }
        };
        PrepareEpoch {
            epoch: of.job.epoch.0.into(),
            job_id: of.job.id.0.into(),
            place: Some(place),
        }
    }
}

/// The input of a [`Preparation`]: copied while the registry is locked, processed afterwards.
pub struct Unmade {
    next: JobState,
    succession: Arc<Succession>,
}

impl Unmade {
    /// From the record of a new epoch; none for a job's first.
    pub fn of(next: &Record) -> Option<Self> {
        Some(Unmade {
            next: state_alone(next),
            succession: Arc::clone(&next.origin.as_ref()?.succession),
        })
    }

    pub fn make(self, controller: &Controller) -> Preparation {
        Preparation {
            seat: controller.any_seat(&self.next),
            job: self.next.job,
            succession: self.succession,
        }
    }
}
