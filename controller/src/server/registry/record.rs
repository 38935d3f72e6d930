//! The record of one epoch of a job, and the desired state that records add up to.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use ultima_api::Line;
use ultima_planner::fabric::{HostId, SwitchId};
use ultima_planner::job::{Epoch, Job, JobId, Rank, Refusal};
use ultima_planner::ledger::Refitted;
use ultima_planner::membership::{Change, Origin, Suspicion};
use ultima_planner::moves::Planned;
use ultima_planner::plan::JobPlan;
use ultima_planner::routing::Routes;

use crate::server::losses::Losses;
use crate::server::sample::Sample;
use crate::server::seats::{Seat, Seats};
use crate::server::tail_drops::TailDrops;

/// One epoch of an installed job.
#[derive(Debug)]
pub struct Record {
    pub plan_status: PlanStatus,
    /// When this controller began to desire the plan.
    pub planned_at: SystemTime,
    /// When this controller took up the epoch.
    pub begun: Instant,
    pub seats: Seats,
    /// True once all its switches have had all its entries: members may begin.
    pub is_ready: bool,
    /// Reported losses; they are dropped with the job, because another one may get its id.
    pub losses: Losses,
    /// The last counters that were read from its switches.
    pub sample: Arc<Sample>,
    /// Drops in its switches' queues.
    pub tail_drops: Arc<TailDrops>,
    /// The relation of this epoch to the job's current one.
    pub stage: Stage,
    /// The origin of this epoch; none for a job's first.
    pub origin: Option<Origin>,
    /// The change that leads to this epoch, until it has ended.
    pub change: Option<Change>,
    /// True once all members had a session at the same time. A controller that has restored the job does not know.
    pub has_met: bool,
    /// The member without which operations cannot begin.
    pub obstacle: Option<Obstacle>,
    /// Suspected members.
    pub suspicion: Suspicion,
    /// Why the last change of members did not happen.
    pub unchanged: Option<String>,
    /// The earliest time of the next eviction, after one was refused.
    pub evict_not_before: Option<Instant>,
    /// True while an eviction of suspects is in progress.
    pub is_evicting: bool,
}

/// A member that was refused, or has left, before operations began.
#[derive(Clone, Debug)]
pub struct Obstacle {
    pub rank: Rank,
    /// Names the member, for the others.
    pub reason: String,
}

/// The relation of an epoch to its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The job's current epoch.
    Current,
    /// The next epoch, if its change is decided.
    Coming,
    /// The previous epoch; some members may still be in it.
    Leaving,
}

/// The desired state of all switches.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub routes: Arc<Routes>,
    /// All epochs of all jobs, by id.
    pub jobs: Vec<Planned>,
}

impl Deref for Record {
    type Target = PlanStatus;

    fn deref(&self) -> &PlanStatus {
        &self.plan_status
    }
}

impl Record {
    /// True if it keeps old paths, and all switches that it waits for have the new ones: of those `is_sure`.
    pub fn may_finish(&self, is_sure: impl Fn(&SwitchId, JobId) -> bool) -> bool {
        let id = self.job.id;
        !self.waits_for.is_empty() && self.waits_for.iter().all(|at| is_sure(at, id))
    }

    /// When a member on a host may get a rank in another epoch, if it gets one there only: all members have left or are lost,
    /// or the one that had the rank knows the key. Members of a grid do not change over to another epoch, so its rows and
    /// columns get one only when they have no other member. A member in `absent` is lost from that time on.
    pub fn rejoins_at(&self, host: HostId, absent: &BTreeMap<Rank, Instant>) -> Option<Instant> {
        let (job, seats) = (&self.job, &self.seats);
        let taken = seats.by_rank();
        let taken = taken.filter(|(_, seat)| matches!(seat, Seat::Joining | Seat::Joined));
        let lost = taken.map(|(rank, _)| absent.get(&rank).copied());
        let all_lost = lost.collect::<Option<Vec<Instant>>>();
        let all_lost = all_lost.map(|at| at.into_iter().max().unwrap_or(self.begun));
        if seats.free().next().is_none() {
            return all_lost;
        }
        let is_here = |rank: &Rank| job.members[usize::from(rank.0)].host == host;
        let lost_here = absent.iter().filter(|(rank, _)| is_here(rank));
        let here = match seats.is_vacated_on(host) {
            true => self.begun,
            false => lost_here.map(|(_, at)| *at).min()?,
        };
        match Line::of(&job.name) {
            None => Some(here),
            Some(_) => Some(all_lost?.max(here)),
        }
    }

    /// True if the epoch's members begin together with operation 0 when all have a session. The next epoch has no first
    /// operation yet; in an epoch that began in a running job each member begins by itself.
    pub fn begins_together(&self) -> bool {
        let first = self.origin.as_ref().map_or(Some(0), |it| it.first);
        self.stage != Stage::Coming && first == Some(0)
    }

    /// The remaining time until a join may begin another epoch, which it may not before `rejoins_at`. No further time if all
    /// members had joined, as when a job runs again.
    pub fn pause_before_next_epoch(&self, rejoins_at: Instant) -> Duration {
        let lost = rejoins_at.saturating_duration_since(Instant::now());
        match self.seats.free().next() {
            None => lost,
            Some(_) => lost.max(pace(self.job.epoch).saturating_sub(self.begun.elapsed())),
        }
    }
}

/// The shortest time between two epochs that joins begin: at first none that a member notices. With 16 bits for epochs, a
/// member that joins and leaves again and again needs a month to use them up.
fn pace(epoch: Epoch) -> Duration {
    (Duration::from_millis(10) * u32::from(epoch.0)).min(Duration::from_secs(60))
}

/// A job's plan and the reasons why it is not better.
#[derive(Clone, Debug)]
pub struct PlanStatus {
    pub job: Arc<Job>,
    pub plan: Arc<JobPlan>,
    /// Members that cannot reach some others while elements are down, in rank order. Their paths
    /// are kept.
    pub cut_off: Vec<Rank>,
    /// Why it was not rerouted around elements that are down or drained.
    pub stays: Option<Refusal>,
    /// Since when members are cut off, or it was not rerouted: at the earliest, since this controller has the plan.
    pub degraded_since: Option<SystemTime>,
    /// Switches that are not known to have the new paths: its plan keeps the old ones until they
    /// do.
    pub waits_for: BTreeSet<SwitchId>,
}

impl From<Refitted> for PlanStatus {
    fn from(refitted: Refitted) -> Self {
        let Refitted {
            job,
            plan,
            cut_off,
            stays,
        } = refitted;
        PlanStatus {
            job: Arc::new(job),
            plan: Arc::new(plan),
            cut_off,
            degraded_since: None,
            stays,
            waits_for: BTreeSet::new(),
        }
    }
}

impl PlanStatus {
    /// Sets since when the job is degraded, if it is: `since`, or else now.
    pub fn degraded_from(&mut self, since: Option<SystemTime>) {
        let is_degraded = !self.cut_off.is_empty() || self.stays.is_some();
        self.degraded_since = is_degraded.then(|| since.unwrap_or_else(SystemTime::now));
    }

    /// The job and its plan.
    pub fn planned(&self) -> Planned {
        (Arc::clone(&self.job), Arc::clone(&self.plan))
    }

    /// A new job's plan.
    pub fn new((job, plan): &Planned) -> Self {
        PlanStatus {
            job: Arc::clone(job),
            plan: Arc::clone(plan),
            cut_off: Vec::new(),
            stays: None,
            degraded_since: None,
            waits_for: BTreeSet::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joins_do_not_use_up_a_jobs_epochs_within_a_month() {
        assert!(pace(Epoch(1)) <= Duration::from_millis(10));
        let all: Duration = (1..u16::MAX).map(|epoch| pace(Epoch(epoch))).sum();
        assert!(all > Duration::from_secs(30 * 86_400), "{all:?}");
    }
}
