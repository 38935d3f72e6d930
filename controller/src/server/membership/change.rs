//! Requests to change a job's members: they commit its next epoch, which [`follow`](super::follow) carries out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::Span;
use ultima_api::Line;

use ultima_planner::fabric::HostId;
use ultima_planner::job::{Job, JobId, Rank, Refusal, host_of};
use ultima_planner::membership::{ChangeOptions, Lost, Origin, Succession};

use super::super::controller::{Controller, JobState};
use super::super::error::JobRequestError;
use super::super::jobs::{Reserved, epoch_in_span};
use super::super::registry::Registry;
use super::super::registry::record::Record;
use super::super::seats::Seat;
use super::follow::{Again, follow, report_cancelled};
use super::member_messages::sanitize;
use crate::metrics::EvictedBy;
use crate::store::{Change, JobRecord, OriginRecord};

/// Default time for new members to join.
pub const JOIN_WAIT: Duration = Duration::from_secs(60);

/// The member to evict.
#[derive(Clone, Debug)]
pub enum Evictee {
    /// The member of that rank.
    Rank(u32),
    /// The only member on that host.
    Host(String),
}

/// The members that a job is to have.
struct NextMembers {
    /// Their hosts, in rank order.
    hosts: Vec<HostId>,
    /// Current members that may stay.
    stay: BTreeSet<Rank>,
    /// Reasons why other members go, if there is one to report.
    reasons: Vec<(Rank, String)>,
    /// True if operations are in progress.
    has_begun: bool,
}

/// Changes a job's members: commits a new epoch. The change continues in the background, when the
/// switches have the epoch. If `number` is given the job must have that id.
///
/// # Errors
/// See [`JobRequestError`]: the job is unchanged.
#[tracing::instrument(name = "resize", skip_all, fields(job = name, id, epoch, switches))]
pub async fn resize_job(
    controller: &Arc<Controller>,
    name: &str,
    number: Option<u32>,
    members: &[String],
    options: ChangeOptions,
) -> Result<JobState, JobRequestError> {
    let hosts = hosts_named(controller, name, members)?;
    let want = |registry: &Registry, record: &Record| {
        let lost = lost(registry.absent(&controller.sessions, record));
        to_members(record, &hosts, number, &lost)
    };
    begin_change(controller, name, options, want).await
}

/// Checks a resize as far as the members are concerned. Returns the job and the new members'
/// hosts.
///
/// # Errors
/// As [`resize_job`](resize_job), except the limits of switches.
pub fn may_resize(
    controller: &Controller,
    registry: &Registry,
    name: &str,
    number: Option<u32>,
    members: &[String],
) -> Result<(Arc<Job>, Vec<HostId>), JobRequestError> {
    let hosts = hosts_named(controller, name, members)?;
    let want = |registry: &Registry, record: &Record| {
        let lost = lost(registry.absent(&controller.sessions, record));
        to_members(record, &hosts, number, &lost)
    };
    let (record, ..) = succeed(registry, name, want)?;
    Ok((Arc::clone(&record.job), hosts))
}

fn hosts_named(
    controller: &Controller,
    job: &str,
    members: &[String],
) -> Result<Vec<HostId>, JobRequestError> {
    let hosts = members.iter().enumerate();
    let hosts = hosts.map(|(index, host)| host_of(&controller.fabric, index, host));
    let hosts: Result<Vec<HostId>, Refusal> = hosts.collect();
    hosts.map_err(|error| JobRequestError::Refused {
        name: job.to_owned(),
        refusal: Box::new(error),
    })
}

/// Removes a member, and all members that have left. The job must be in this epoch and have
/// this id, if these are not 0.
///
/// # Errors
/// See [`JobRequestError`]: the job is unchanged.
#[tracing::instrument(name = "evict", skip_all, fields(job = name, id, epoch, switches))]
pub async fn evict(
    controller: &Arc<Controller>,
    name: &str,
    epoch: u32,
    number: u32,
    who: &Evictee,
    reason: &str,
) -> Result<JobState, JobRequestError> {
    let reason = match reason {
        "" => "it was evicted".to_owned(),
        reason => format!("it was evicted: {}", sanitize(reason)),
    };
    let options = ChangeOptions {
        join: JOIN_WAIT,
        lost: Lost::LeaveOut,
    };
    let want = |_: &Registry, record: &Record| {
        is_as_seen(record, epoch, number)?;
        let rank = rank_of(controller, record, who)?;
        Ok(without(record, &[(rank, reason)]))
    };
    let state = begin_change(controller, name, options, want).await?;
    controller.metrics.evicted(EvictedBy::Request, 1);
    Ok(state)
}

/// The same for suspected members, by the epoch's id. Members that are no longer suspected
/// stay.
#[tracing::instrument(name = "evict", skip_all, fields(job, id, epoch, switches))]
pub async fn evict_all(
    controller: &Arc<Controller>,
    id: JobId,
    mut gone: Vec<(Rank, String)>,
    options: ChangeOptions,
) -> Result<JobState, JobRequestError> {
    let name = name_in_span(controller, id);
    let want = |registry: &Registry, record: &Record| match record.job.id == id {
        true => {
            // The request may have waited for other changes.
            let (mut suspicion, now) = (record.suspicion.clone(), Instant::now());
            suspicion.update(&registry.seen(&controller.sessions, record), now);
            let bound = record.job.policy.eviction.bound();
            let still = bound.map(|bound| suspicion.overdue(bound, now));
            let still = still.unwrap_or_default();
            gone.retain(|(rank, _)| still.binary_search(rank).is_ok());
            match gone.is_empty() {
                true => Err(JobRequestError::SameMembers { name: name.clone() }),
                false => Ok(without(record, &gone)),
            }
        }
        false => Err(JobRequestError::Changing {
            name: name.clone(),
            epoch: record.job.epoch.0,
        }),
    };
    let state = begin_change(controller, &name, options, want).await?;
    controller.metrics.evicted(EvictedBy::Policy, gone.len());
    Ok(state)
}

/// Begins the next epoch of a job, on the same hosts, for a member that [joins again](Record::rejoins_at) on one of them.
/// Lost members have no place there.
///
/// # Errors
/// See [`JobRequestError`]: the job is unchanged.
#[tracing::instrument(name = "next_epoch", skip_all, fields(job = name, id, epoch, switches))]
pub async fn begin_next_epoch(
    controller: &Arc<Controller>,
    name: &str,
    host: HostId,
) -> Result<(), JobRequestError> {
    let options = ChangeOptions {
        join: JOIN_WAIT,
        lost: Lost::Cancel,
    };
    let want = |registry: &Registry, record: &Record| {
        let absent = registry.absent(&controller.sessions, record);
        let rejoins_at = record.rejoins_at(host, &absent);
        if rejoins_at.is_none_or(|at| at > Instant::now()) {
            return Err(JobRequestError::Changing {
                name: name.to_owned(),
                epoch: record.job.epoch.0,
            });
        }
        let lost = lost(absent);
        Ok(NextMembers {
            hosts: record.job.members.iter().map(|it| it.host).collect(),
            stay: joined(record).filter(|rank| !lost.contains(rank)).collect(),
            reasons: replaced(&lost),
            has_begun: false,
        })
    };
    begin_change(controller, name, options, want)
        .await
        .map(drop)
}

/// Continues all changes that were in progress when the controller stopped.
pub fn follow_changes(controller: &Arc<Controller>) {
    let changing = controller.registry().changing();
    changing
        .into_iter()
        .for_each(|id| follow_in_background(controller, id, false));
}

/// Starts the task that carries out a change, and the one that may take its place.
fn follow_in_background(controller: &Arc<Controller>, id: JobId, is_new: bool) {
    let following = Arc::clone(controller);
    controller.in_background(async move {
        if let Some(again) = follow(&following, id, is_new).await {
            change_again(&following, again).await;
        }
    });
}

/// Begins a change again to other hosts, or with another key.
#[tracing::instrument(name = "resize", skip_all, fields(job, id, epoch, switches))]
async fn change_again(controller: &Arc<Controller>, again: Again) {
    let Again {
        of,
        removed,
        hosts,
        gone,
        options,
    } = again;
    let name = name_in_span(controller, of);
    let want = |_: &Registry, record: &Record| {
        let named: BTreeSet<Rank> = gone.iter().map(|(rank, _)| *rank).collect();
        let stay = joined(record).filter(|rank| !named.contains(rank));
        Ok(NextMembers {
            hosts,
            stay: stay.collect(),
            reasons: gone,
            has_begun: has_begun(record),
        })
    };
    if let Err(error) = begin_change(controller, &name, options, want).await {
        report_cancelled(controller, of, &removed, error.to_string());
    }
}

/// The name of this epoch's job, which it also records in the current span; empty if the job is
/// gone.
fn name_in_span(controller: &Controller, id: JobId) -> String {
    let name = controller
        .registry()
        .get(id)
        .map(|record| record.job.name.clone())
        .unwrap_or_default();
    Span::current().record("job", &name);
    name
}

fn rank_of(
    controller: &Controller,
    record: &Record,
    who: &Evictee,
) -> Result<Rank, JobRequestError> {
    let (job, name) = (&record.job, || record.job.name.clone());
    let host = match who {
        Evictee::Rank(rank) => {
            let known = job.ranks().find(|(it, _)| u32::from(it.0) == *rank);
            let ranks = job.members.len();
            let none = || JobRequestError::NoRank {
                name: name(),
                rank: *rank,
                ranks,
            };
            return known.map(|(rank, _)| rank).ok_or_else(none);
        }
        Evictee::Host(host) => host,
    };
    let id = controller.fabric.host_named(host);
    let id = id.ok_or_else(|| JobRequestError::no_host(&controller.fabric, host))?;
    let here: Vec<Rank> = (job.ranks().filter(|(_, member)| member.host == id))
        .map(|(rank, _)| rank)
        .collect();
    match here[..] {
        [] => Err(JobRequestError::NotAMember {
            name: name(),
            host: host.clone(),
            hosts: controller.hosts_of(job),
        }),
        [rank] => Ok(rank),
        _ => Err(JobRequestError::SeveralRanks {
            name: name(),
            host: host.clone(),
            ranks: here.len(),
        }),
    }
}

/// Commits a new epoch and starts the task that follows the change.
async fn begin_change(
    controller: &Arc<Controller>,
    name: &str,
    options: ChangeOptions,
    want: impl FnOnce(&Registry, &Record) -> Result<NextMembers, JobRequestError>,
) -> Result<JobState, JobRequestError> {
    let _changes = controller.change().await?;
    let (mut reserved, mut begun) = (Reserved::of(controller), None);
    let planned = reserved.add(|registry| {
        let (record, hosts, succession, has_begun) = succeed(registry, name, want)?;
        begun = Some(Origin {
            of: record.job.id,
            succession: Arc::new(succession),
            options,
            has_begun,
            first: None,
        });
        registry.propose_next(
            &controller.fabric,
            controller.program().names(),
            &record.job,
            &hosts,
        )
    })?;
    let (origin, (job, plan)) = (begun.expect("it was planned"), &planned);
    epoch_in_span(job).record("switches", plan.len());
    let seats = controller.registry().seats_of(job, &origin);
    let record = JobRecord {
        origin: Some(OriginRecord::from(&origin)),
        ..JobRecord::new(&controller.fabric, job, seats.records())
    };
    let kept = controller.journal.write(Change::Put(vec![record])).await;
    kept.map_err(|error| JobRequestError::Store {
        name: name.to_owned(),
        error,
    })?;
    let (id, of) = (job.id, origin.of);
    tracing::info!(
        job = name,
        epoch = job.epoch.0,
        id = id.0,
        "a new epoch is committed"
    );
    let switches = reserved.committed(&planned, Some(origin)).await;
    let state = {
        let mut registry = controller.registry();
        if let Some(record) = registry.get_mut(of) {
            record.unchanged = None;
        }
        registry
            .named(name)
            .map(|record| controller.state_of(&registry, record))
    };
    controller.wake(switches);
    follow_in_background(controller, id, true);
    state
}

/// A job whose members may change now, their hosts, the mapping from old to new ranks, and whether operations are in progress.
fn succeed<'r>(
    registry: &'r Registry,
    name: &str,
    want: impl FnOnce(&Registry, &Record) -> Result<NextMembers, JobRequestError>,
) -> Result<(&'r Record, Vec<HostId>, Succession, bool), JobRequestError> {
    let record = registry.named(name)?;
    let of = &record.job;
    let coming = registry.next_of(of.id).map(|next| next.job.epoch.0);
    let changing = record.change.as_ref().map(|_| of.epoch.0);
    if let Some(epoch) = coming.or(changing) {
        let name = name.to_owned();
        return Err(JobRequestError::Changing { name, epoch });
    }
    let NextMembers {
        hosts,
        stay,
        reasons,
        has_begun,
    } = want(registry, record)?;
    let from: Vec<HostId> = of.members.iter().map(|member| member.host).collect();
    // Members of a grid do not change over to another epoch.
    let changes = hosts != from || !stay.is_empty();
    if let Some((grid, _)) = Line::of(name).filter(|_| changes)
        && (registry.iter()).any(|it| it.job.name != name && is_of(grid, &it.job.name))
    {
        let (name, grid) = (name.to_owned(), grid.to_owned());
        return Err(JobRequestError::Grid { name, grid });
    }
    let free: BTreeSet<Rank> = record.seats.free().collect();
    // If a rank has several reasons the first counts.
    let reasons: BTreeMap<Rank, String> = reasons.into_iter().rev().collect();
    let why = |rank: Rank| {
        let reason = reasons.get(&rank).cloned();
        reason.unwrap_or_else(|| match record.seats.state(rank) {
            Some(Seat::Left) => "it had left".to_owned(),
            _ if free.contains(&rank) => {
                "the rank was free, and the job was resized without it".to_owned()
            }
            _ => "the job was resized without it".to_owned(),
        })
    };
    let mut succession = Succession::new(&from, |rank| stay.contains(&rank), &hosts, why);
    succession.keep_free(&from, &hosts, free.iter().copied());
    if has_begun && succession.survivors().next().is_none() {
        let name = name.to_owned();
        return Err(JobRequestError::NobodyStays { name });
    }
    Ok((record, hosts, succession, has_begun))
}

/// True if operations are in progress: all members have joined, and some have not left.
fn has_begun(record: &Record) -> bool {
    record.seats.free().next().is_none() && !record.seats.all_left()
}

/// Checks that a job is still in this epoch and has this id, if these are not 0.
fn is_as_seen(record: &Record, epoch: u32, number: u32) -> Result<(), JobRequestError> {
    let job = &record.job;
    let is = |seen: u32, now: u16| seen == 0 || seen == u32::from(now);
    match is(epoch, job.epoch.0) && is(number, job.id.0) {
        true => Ok(()),
        false => Err(JobRequestError::OtherEpoch {
            name: job.name.clone(),
            epoch: job.epoch.0,
        }),
    }
}

/// The members that are lost by now, of those that are absent.
fn lost(absent: BTreeMap<Rank, Instant>) -> BTreeSet<Rank> {
    let now = Instant::now();
    let lost = absent.into_iter().filter(|(_, at)| *at <= now);
    lost.map(|(rank, _)| rank).collect()
}

/// The reason why lost members go.
fn replaced(lost: &BTreeSet<Rank>) -> Vec<(Rank, String)> {
    let why = "it had no session with the controller, and its place was given to a new member";
    lost.iter().map(|rank| (*rank, why.to_owned())).collect()
}

/// Members on these hosts; all current members that have joined may stay. On the same hosts, new members replace those that
/// are `lost`.
fn to_members(
    record: &Record,
    hosts: &[HostId],
    number: Option<u32>,
    lost: &BTreeSet<Rank>,
) -> Result<NextMembers, JobRequestError> {
    is_as_seen(record, 0, number.unwrap_or_default())?;
    let mut stay: BTreeSet<Rank> = joined(record).collect();
    let now = record.job.members.iter().map(|member| member.host);
    // A new epoch frees the places of members that left or are lost. Without such a place, nothing would
    // change.
    let is_same = now.eq(hosts.iter().copied());
    let has_left = record.seats.states().any(|seat| seat == Seat::Left);
    if is_same && !has_left && lost.is_empty() {
        let name = record.job.name.clone();
        return Err(JobRequestError::SameMembers { name });
    }
    let mut reasons = Vec::new();
    if is_same {
        stay.retain(|rank| !lost.contains(rank));
        reasons = replaced(lost);
    }
    Ok(NextMembers {
        hosts: hosts.to_vec(),
        stay,
        reasons,
        has_begun: has_begun(record),
    })
}

/// Ranks that have joined.
fn joined(record: &Record) -> impl Iterator<Item = Rank> + '_ {
    let joined = record
        .seats
        .by_rank()
        .filter(|(_, seat)| matches!(seat, Seat::Joined));
    joined.map(|(rank, _)| rank)
}

/// All members except these and those that have left.
fn without(record: &Record, gone: &[(Rank, String)]) -> NextMembers {
    let left = |rank: Rank| record.seats.state(rank) == Some(Seat::Left);
    let named: BTreeSet<Rank> = gone.iter().map(|(rank, _)| *rank).collect();
    let goes = |rank: Rank| left(rank) || named.contains(&rank);
    let stays = record.job.ranks().filter(|(rank, _)| !goes(*rank));
    let has_left = record.job.ranks().filter(|(rank, _)| left(*rank));
    let reasons = has_left.map(|(rank, _)| (rank, "it had left".to_owned()));
    NextMembers {
        hosts: stays.map(|(_, member)| member.host).collect(),
        stay: joined(record).filter(|rank| !goes(*rank)).collect(),
        reasons: gone.iter().cloned().chain(reasons).collect(),
        has_begun: has_begun(record),
    }
}

fn is_of(grid: &str, name: &str) -> bool {
    Line::of(name).is_some_and(|(of, _)| of == grid)
}
