//! What members hear of changes when they come, and what they say.

use std::iter;

use tokio::sync::mpsc;

use super::super::attendants::Order;
use super::super::controller::Controller;
use super::super::error::JobRequestError;
use super::super::registry::{Record, Stage};
use super::super::seats::Seat;
use super::follow::beginning;
use super::preparation::Unmade;
use super::tame;
use crate::api::attend_response::Order as Word;
use crate::api::{self, BeginEpoch, CallOffEpoch};
use crate::job::{JobId, Rank};

/// What a member says by itself, or of a change.
#[derive(Debug)]
pub enum Said {
    /// It begins no operation from that one on in its epoch before it is told.
    Pledge(api::EpochPledge),
    /// It cannot go over.
    Refusal(api::EpochRefusal),
    /// It hears nothing of these.
    Suspects(api::Suspects),
}

/// What becomes of a member that attends.
#[derive(Debug)]
pub enum Attends {
    /// It is there from now on: which member it is, and what it hears until it or its job ends.
    Here((JobId, Rank), mpsc::Receiver<Order>),
    /// It is not, as its epoch is over; what it has missed of that brings it to the next.
    Missed(Vec<Word>),
}

impl Controller {
    /// A member attends from now on that has joined in that epoch, whose number in packets it says if it knows it, while the epoch is on
    /// switches. One that was out of touch when its epoch ended, and has a place in the next, is told so.
    ///
    /// # Errors
    /// There is no such job, the rank has not joined, or the epoch is over.
    pub fn attend(
        &self,
        name: &str,
        (epoch, number): (u32, u32),
        rank: u32,
        slot_bytes: u32,
    ) -> Result<Attends, JobRequestError> {
        // Held to the end: who is taken off the switches, leaves or is told of a change after that is so as one who attends.
        let registry = self.registry();
        let now = registry.named(name)?;
        let Some(record) = registry.numbered(name, epoch, number) else {
            let missed = missed(now, (epoch, number), rank);
            let (next, rank) = missed.ok_or_else(|| over(now, epoch, rank))?;
            let begin = beginning(now);
            // A place is described without it.
            drop(registry);
            let prepare = Word::Prepare(self.prepared(&next.make(self), rank));
            let words = iter::once(prepare).chain(begin.map(Word::Begin));
            return Ok(Attends::Missed(words.collect()));
        };
        let joined = u16::try_from(rank)
            .ok()
            .map(Rank)
            .filter(|rank| record.seats.state(*rank) == Some(Seat::Joined));
        let not_joined = || JobRequestError::NotJoined {
            name: name.to_owned(),
            rank,
            epoch,
        };
        let rank = joined.ok_or_else(not_joined)?;
        let mut words = Vec::new();
        if record.stage == Stage::Current && registry.next_of(record.job.id).is_none() {
            // It may have pledged for a change that was called off while it was away.
            words.push(Word::CallOff(CallOffEpoch {}));
        }
        if let Some(first_operation) = record.origin.as_ref().and_then(|origin| origin.first) {
            words.push(Word::Begin(BeginEpoch {
                job_id: record.job.id.0.into(),
                first_operation,
            }));
        }
        let who = (record.job.id, rank);
        let orders = self.attendants.add(who, slot_bytes, words);
        if begins_together(record) {
            self.attendants
                .meet(record.job.id, record.job.members.len());
        }
        Ok(Attends::Here(who, orders))
    }

    /// Who attends for an epoch that is decided by now may be all that were waited for.
    pub(super) fn meet(&self, id: JobId) {
        let registry = self.registry();
        if let Some(record) = registry.get(id).filter(|record| begins_together(record)) {
            self.attendants.meet(id, record.job.members.len());
        }
    }

    /// A member has said something.
    pub(in super::super) fn hear(&self, (job, rank): (JobId, Rank), said: Said) {
        {
            let mut registry = self.registry();
            let change_of = |number: u32| {
                let id = u16::try_from(number).ok().map(JobId)?;
                // Of no other job's change.
                let next = registry.next_of(job)?;
                (next.job.id == id).then_some(id)
            };
            match said {
                Said::Pledge(api::EpochPledge { job_id, operation }) => {
                    if let Some(id) = change_of(job_id)
                        && let Some(change) = registry.get_mut(id).and_then(|it| it.change.as_mut())
                    {
                        change.pledged(rank, operation);
                    }
                }
                Said::Refusal(api::EpochRefusal { job_id, reason }) => {
                    if let Some(id) = change_of(job_id)
                        && let Some(change) = registry.get_mut(id).and_then(|it| it.change.as_mut())
                    {
                        change.refused(rank, tame(&reason));
                    }
                }
                Said::Suspects(api::Suspects { ranks }) => {
                    if let Some(record) = registry.get_mut(job) {
                        let most = record.job.members.len();
                        let known = |rank: u32| {
                            u16::try_from(rank)
                                .ok()
                                .filter(|it| usize::from(*it) < most)
                        };
                        let of = ranks.into_iter().filter_map(known).map(Rank);
                        record.suspicion.report(rank, of);
                    }
                }
            }
        }
        self.attendants.tell_news(job);
    }
}

/// The place that a member has in the epoch after one that is not on switches any more: its own rank in that, and how the job came to the
/// one that it is in. None where it has none, or the job is further.
fn missed(now: &Record, (epoch, number): (u32, u32), rank: u32) -> Option<(Unmade, Rank)> {
    let origin = now.origin.as_ref()?;
    let is_before = u32::from(now.job.epoch.0) == epoch + 1
        && (number == 0 || number == u32::from(origin.of.0));
    let rank = u16::try_from(rank).ok().map(Rank).filter(|_| is_before)?;
    let becomes = origin.succession.becomes(rank)?;
    let has_it = now.seats.state(becomes) == Some(Seat::Joined);
    has_it.then(|| Some((Unmade::of(now)?, rank)))?
}

/// Whether an epoch's members begin with operation 0, when all are there. In one that comes that is not known yet, and in one that a job
/// came to while it ran each begins with what it is told, by itself.
fn begins_together(record: &Record) -> bool {
    let first = record.origin.as_ref().map_or(Some(0), |it| it.first);
    record.stage != Stage::Coming && first == Some(0)
}

/// Why a member of an epoch that is not on switches any more cannot attend.
fn over(now: &Record, epoch: u32, rank: u32) -> JobRequestError {
    let of_the_one_before = u32::from(now.job.epoch.0) == epoch + 1;
    let origin = now.origin.as_ref().filter(|_| of_the_one_before);
    let fate = origin.and_then(|origin| {
        let rank = u16::try_from(rank).ok().map(Rank)?;
        origin.succession.left_out().get(&rank).cloned()
    });
    JobRequestError::OverEpoch {
        name: now.job.name.clone(),
        rank,
        epoch,
        now: now.job.epoch.0,
        first: now.origin.as_ref().and_then(|origin| origin.first),
        fate,
    }
}
