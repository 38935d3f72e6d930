//! What all members of an epoch are told of the next: made once, and turned into a message for one after the other.

use std::sync::Arc;
use std::time::Instant;

use super::super::controller::{Controller, JobState, state_alone};
use super::super::registry::Record;
use crate::api::{JoinResponse, PrepareEpoch, prepare_epoch};
use crate::job::{Job, Rank};
use crate::membership::Succession;

/// What becomes of an epoch's members in the next.
#[derive(Debug)]
pub struct Preparation {
    /// The one that comes.
    job: Arc<Job>,
    succession: Arc<Succession>,
    /// A place in it, but for what is each member's own. It lists all members.
    seat: JoinResponse,
}

impl Preparation {
    /// How many members are listed in what a member of the epoch before is told.
    pub fn entries(&self, rank: Rank) -> usize {
        match self.succession.becomes(rank) {
            Some(_) => self.seat.members.len(),
            None => 0,
        }
    }
}

impl Controller {
    /// A member of the epoch before would take what it is told, and waits for room for that.
    pub(in super::super) fn waits_to_be_told(&self, of: &Preparation, rank: Rank) {
        let mut registry = self.registry();
        if let Some(change) = registry
            .get_mut(of.job.id)
            .and_then(|it| it.change.as_mut())
        {
            change.waits(rank);
        }
    }

    /// It has been told.
    pub(in super::super) fn is_told(&self, of: &Preparation, rank: Rank) {
        let is_news = {
            let mut registry = self.registry();
            let record = registry.get_mut(of.job.id);
            let change = record.and_then(|it| it.change.as_mut());
            change.is_some_and(|change| change.told(rank, Instant::now()))
        };
        if is_news {
            self.attendants.tell_news(of.job.id);
        }
    }

    /// What a member of the epoch before is told.
    pub(in super::super) fn prepared(&self, of: &Preparation, rank: Rank) -> PrepareEpoch {
        let place = match of.succession.becomes(rank) {
            Some(rank) => {
                let seat = self.seat_of(&of.job, rank, of.seat.clone());
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

/// What a [`Preparation`] is made of: taken with the registry locked, and made into one without.
pub struct Unmade {
    next: JobState,
    succession: Arc<Succession>,
}

impl Unmade {
    /// Of an epoch that comes, or has come; none of a job's first.
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
