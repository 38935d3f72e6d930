//! Messages between members and the controller about changes: opening a session, and answers of
//! members.

use std::iter;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::mpsc;
use ultima_api::v1::attend_request::Event;
use ultima_api::v1::attend_response::Order as Message;
use ultima_api::v1::{self as api, BeginEpoch, CancelEpoch, PrepareEpoch, prepare_epoch};
use ultima_planner::job::{JobId, Rank};
use ultima_planner::membership::Succession;

use super::super::controller::{Controller, JobState, state_alone};
use super::super::error::JobRequestError;
use super::super::messages::{any_seat, seat_of};
use super::super::proof::{Proof, check_member};
use super::super::registry::epochs::EpochRef;
use super::super::registry::record::{Record, Stage};
use super::super::report::record_key;
use super::super::seats::Seat;
use super::super::sessions::{Attributes, MemberId, Order};
use super::departure::{Departures, admitted, obstacle, refused};
use super::preparation::Preparation;

/// The messages for a member.
pub struct ForMember {
    pub orders: mpsc::Receiver<Order>,
    pub departures: Departures,
}

/// The result of opening a session.
pub enum Opened {
    /// The session is open: its member, and the messages for it until it or its job ends.
    Session(MemberId, ForMember),
    /// The epoch is over. These messages bring the member to the next one.
    Missed(Vec<Message>),
}

/// Opens a session for a member that has joined in that epoch. A member that was disconnected when its epoch ended, and has a place in the
/// next, receives the messages that it missed.
///
/// # Errors
/// No job has that name, the rank has not joined, another member has it, its settings differ from the others', or the epoch is over.
pub fn open_session(
    controller: &Controller,
    name: &str,
    of: EpochRef,
    rank: u32,
    proof: Proof<'_>,
    attributes: Attributes,
) -> Result<Opened, JobRequestError> {
    // Locked to the end: a removal, a leave or a change of members after this sees the session.
    let mut registry = controller.registry();
    let now = registry.named(name)?;
    let Some(record) = registry.numbered(name, of) else {
        let missed = missed(now, of, rank);
        let (next, rank, becomes) = missed.ok_or_else(|| over(now, of.epoch, rank))?;
        check_member(&controller.fabric, now, becomes, proof)?;
        let begin = beginning(now);
        // The message is built without the lock.
        drop(registry);
        let prepare = Message::Prepare(prepared(controller, &prepare(controller, next), rank));
        let messages = iter::once(prepare).chain(begin.map(Message::Begin));
        return Ok(Opened::Missed(messages.collect()));
    };
    let joined = u16::try_from(rank)
        .ok()
        .map(Rank)
        .filter(|rank| record.seats.state(*rank) == Some(Seat::Joined));
    let not_joined = || JobRequestError::NotJoined {
        name: name.to_owned(),
        rank,
        epoch: of.epoch,
    };
    let rank = joined.ok_or_else(not_joined)?;
    check_member(&controller.fabric, record, rank, proof)?;
    // Members of the next epoch have the settings of this one.
    let current = (now.job.id != record.job.id).then_some((now.job.id, None));
    let member = MemberId {
        job: record.job.id,
        rank,
    };
    let mut others = [(member.job, Some(rank))].into_iter().chain(current);
    let mismatch =
        others.find_map(|(job, own)| controller.sessions.mismatch(job, own, &attributes));
    if let Some(mismatch) = mismatch {
        refused(controller, &mut registry, (member.job, rank), &mismatch);
        return Err(JobRequestError::Settings {
            name: name.to_owned(),
            rank: rank.0,
            mismatch,
        });
    }
    let mut messages = Vec::new();
    if record.stage == Stage::Current && registry.next_of(record.job.id).is_none() {
        // The member may have prepared for a change that was cancelled while it was
        // disconnected.
        messages.push(Message::Cancel(CancelEpoch {}));
    }
    if let Some(first_operation) = record.origin.as_ref().and_then(|origin| origin.first) {
        messages.push(Message::Begin(BeginEpoch {
            job_id: record.job.id.0.into(),
            first_operation,
        }));
    }
    let departures = Departures::of(record);
    if let Some(record) = registry.get_mut(member.job) {
        admitted(record, rank);
    }
    messages.extend(obstacle(&registry, member.job));
    let Some(record) = registry.get_mut(member.job) else {
        return Err(not_joined());
    };
    let orders = controller.sessions.add(member, attributes, messages);
    meet_in(controller, record);
    let messages = ForMember { orders, departures };
    Ok(Opened::Session(member, messages))
}

/// Starts the operations of an epoch that is decided by now, if all members have a session.
pub fn meet(controller: &Controller, id: JobId) {
    if let Some(record) = controller.registry().get_mut(id) {
        meet_in(controller, record);
    }
}

fn meet_in(controller: &Controller, record: &mut Record) {
    let (id, members) = (record.job.id, record.job.members.len());
    record.has_met |= record.begins_together() && controller.sessions.meet(id, members);
}

/// Processes a message from a member.
pub fn receive(controller: &Controller, MemberId { job, rank }: MemberId, message: Event) {
    {
        let mut registry = controller.registry();
        let change_of = |number: u32| {
            let id = u16::try_from(number).ok().map(JobId)?;
            // Ignores messages about other jobs' changes.
            let next = registry.next_of(job)?;
            (next.job.id == id).then_some(id)
        };
        match message {
            Event::Pledge(api::EpochPledge { job_id, operation }) => {
                if let Some(id) = change_of(job_id)
                    && let Some(change) = registry.get_mut(id).and_then(|it| it.change.as_mut())
                {
                    change.acknowledged(rank, operation);
                }
            }
            Event::Refusal(api::EpochRefusal { job_id, reason }) => {
                if let Some(id) = change_of(job_id)
                    && let Some(change) = registry.get_mut(id).and_then(|it| it.change.as_mut())
                {
                    change.refused(rank, sanitize(&reason));
                }
            }
            Event::Suspects(api::Suspects { ranks }) => {
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
            Event::Attendance(_) | Event::Report(_) => return,
        }
    }
    controller.sessions.notify(job);
}

/// The member's place in the epoch that followed its own, as data for the missed message, and the
/// member's old and new rank. None if it has no place, or the job is already further.
fn missed(now: &Record, of: EpochRef, rank: u32) -> Option<(Unmade, Rank, Rank)> {
    let origin = now.origin.as_ref()?;
    let is_before =
        u32::from(now.job.epoch.0) == of.epoch + 1 && of.job_id == u32::from(origin.of.0);
    let rank = u16::try_from(rank).ok().map(Rank).filter(|_| is_before)?;
    let becomes = origin.succession.becomes(rank)?;
    let has_it = now.seats.state(becomes) == Some(Seat::Joined);
    has_it.then(|| Some((Unmade::of(now)?, rank, becomes)))?
}

/// The error for a member of an epoch that is no longer installed.
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

/// Records that a member of the previous epoch is ready to receive its message, which waits for
/// room.
pub fn waits_to_send(controller: &Controller, of: &Preparation, rank: Rank) {
    let mut registry = controller.registry();
    if let Some(change) = registry
        .get_mut(of.job.id)
        .and_then(|it| it.change.as_mut())
    {
        change.queued(rank);
    }
}

/// Records that the message was sent.
pub fn is_sent(controller: &Controller, of: &Preparation, rank: Rank) {
    let is_new = {
        let mut registry = controller.registry();
        let record = registry.get_mut(of.job.id);
        let change = record.and_then(|it| it.change.as_mut());
        change.is_some_and(|change| change.notified(rank, Instant::now()))
    };
    if is_new {
        controller.sessions.notify(of.job.id);
    }
}

/// The message for a member of the previous epoch.
pub fn prepared(controller: &Controller, of: &Preparation, rank: Rank) -> PrepareEpoch {
    let place = match of.succession.becomes(rank) {
        Some(rank) => {
            let seat = seat_of(controller, &of.job, rank, of.seat.clone());
            record_key(controller, &of.job, rank);
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
}

/// Builds the message that announces an epoch.
pub fn prepare(controller: &Controller, Unmade { next, succession }: Unmade) -> Preparation {
    Preparation {
        seat: any_seat(controller, &next),
        job: next.job,
        succession,
    }
}

/// The message with the epoch's first operation, once it is decided.
pub fn beginning(next: &Record) -> Option<BeginEpoch> {
    Some(BeginEpoch {
        job_id: next.job.id.0.into(),
        first_operation: next.origin.as_ref()?.first?,
    })
}

/// A client's text, shortened and without control characters, for one line.
pub fn sanitize(text: &str) -> String {
    const LONGEST: usize = 200;
    text.chars()
        .filter(|it| !it.is_control())
        .take(LONGEST)
        .collect()
}
