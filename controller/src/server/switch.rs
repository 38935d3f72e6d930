//! One switch: the connection to it, its desired state, and what it is known to have. Connecting is
//! in `bring_up`, writing in `repair`.

mod bring_up;
mod repair;
pub mod step;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use tokio::sync::{Mutex as AsyncMutex, MutexGuard, Notify, oneshot, watch};
use tracing::Span;
use ultima_p4runtime::names::Names;
use ultima_p4runtime::v1::Update;
use ultima_planner::fabric::{self, Fabric, SwitchId};
use ultima_planner::job::{JobId, ShareIndex};
use ultima_planner::moves::Moved;
use ultima_planner::plan::{self, Division, Entity as Planned, JobPlan, MeterCell, VirtualQueue};
use ultima_planner::program::Program;
use ultima_planner::reconcile::{self, Diff, Held};
use ultima_planner::target::{Limits, Target};
use ultima_planner::update;

use super::error::BringUpError;
use super::lock::lock;
use super::registry::record::Wanted;
use super::timers::Timers;
use crate::metrics::Metrics;
use crate::p4rt::{
    Cause, Checks, Device, Mastership, Order, Owner, SwitchClient, Unanswered, WriteError,
};

/// A switch, the connection to it, and its known state.
pub struct ManagedSwitch {
    pub id: SwitchId,
    device: Device,
    target: &'static Target,
    limits: Limits,
    election_id: u128,
    /// The store of its jobs; none for a store without an id.
    owner: Option<Owner>,
    /// The cookie of the controller's program, if programs that are not Ultima's are left alone; none if they are
    /// replaced.
    own_cookie: Option<u64>,
    metrics: Metrics,
    state: Mutex<State>,
    /// Held by its task while it writes, and by a reroute, whose steps the task then writes; see [`super::changes`].
    pub writer: AsyncMutex<()>,
    /// Wakes its task to write differences.
    wake: Notify,
    /// Wakes its task to write a step of a reroute.
    has_step: Notify,
    /// Notified when the state of any switch has changed.
    changed: watch::Sender<()>,
    /// Held by the request that configures its ports.
    pushing_ports: AsyncMutex<()>,
    /// Interrupted writes that the switch may still execute.
    unanswered: Unanswered,
    /// The first pause before it is connected again.
    reconnect_pause: Duration,
}

struct State {
    connection: Result<Arc<SwitchClient>, String>,
    /// The problem of the connection that was reported last.
    reported: Option<String>,
    /// True if its jobs are read before the primary role is asked for: they may belong to another store, and another
    /// controller may be the primary.
    may_be_foreign: bool,
    contents: Contents,
    /// The jobs that it has all entries of, unless its contents are unknown.
    jobs: JobPlans,
    /// Why the last attempt to write failed, on one line.
    failure: Option<String>,
    /// The jobs whose entries it refused then; none if the failure concerns all jobs.
    refused: Option<BTreeSet<JobId>>,
    /// When it was connected or disconnected, or when the last attempts began to fail or to succeed.
    since: SystemTime,
    /// The number of requests for an attempt, and of those that the last attempt has served.
    asked: u64,
    attempted: u64,
    /// A step of a reroute that its task has not begun.
    step: Option<Step>,
    /// Comparisons that its task has not begun.
    audits: Vec<Audit>,
    /// The drift found by the last comparison.
    known_drift: BTreeSet<String>,
    /// The meters of shares that are or may be configured; none for a meter whose write has no
    /// known result.
    shares: BTreeMap<ShareIndex, Option<VirtualQueue>>,
}

/// The entries that a switch has. Unless they are whole, it needs a resync.
enum Contents {
    /// A write has failed, or has no known result.
    Unknown,
    /// The desired ones, except for updates that it has refused or not got yet.
    AllBut {
        /// The jobs of these updates.
        jobs: BTreeSet<JobId>,
        /// True if it kept entries that belong to none of these jobs.
        has_leftovers: bool,
    },
    /// Those of its jobs, and those that every job needs.
    Whole,
}

impl State {
    fn new(may_be_foreign: bool) -> Self {
        State {
            connection: Err("not connected yet".into()),
            reported: None,
            may_be_foreign,
            contents: Contents::Unknown,
            jobs: JobPlans::new(),
            failure: None,
            refused: None,
            since: SystemTime::now(),
            asked: 0,
            attempted: 0,
            step: None,
            audits: Vec::new(),
            known_drift: BTreeSet::new(),
            shares: BTreeMap::new(),
        }
    }

    fn mark_dirty(&mut self) {
        if !self.is_dirty() {
            self.since = SystemTime::now();
        }
        self.contents = Contents::Unknown;
    }

    fn is_dirty(&self) -> bool {
        !matches!(self.contents, Contents::Whole)
    }

    /// True if it has all entries of a job with this plan.
    fn has(&self, id: JobId, plan: &Arc<JobPlan>) -> bool {
        let is_known = !matches!(self.contents, Contents::Unknown);
        is_known && self.jobs.get(&id).is_some_and(|it| Arc::ptr_eq(it, plan))
    }

    /// True if it lacks, or may lack, entries of a job that were written to it.
    fn may_lack(&self, id: JobId) -> bool {
        match &self.contents {
            Contents::Unknown => true,
            Contents::AllBut { jobs, .. } => jobs.contains(&id),
            Contents::Whole => false,
        }
    }

    /// Records a failed attempt to write.
    fn failed(&mut self, reason: String) {
        if self.failure.is_none() {
            self.since = SystemTime::now();
        }
        self.failure = Some(reason);
        self.refused = match &self.contents {
            Contents::AllBut { jobs, .. } => Some(jobs.clone()),
            Contents::Unknown | Contents::Whole => None,
        };
    }

    /// Why the last attempt to write a job failed, if the switch still needs a resync. While it is compared after a refusal, the
    /// other jobs are being written.
    fn failure_of(&self, id: JobId) -> Option<&String> {
        let concerns = self.refused.as_ref().is_none_or(|jobs| jobs.contains(&id));
        self.failure
            .as_ref()
            .filter(|_| concerns && self.is_dirty())
    }

    /// Records a successful attempt to write.
    fn succeeded(&mut self) {
        if self.failure.take().is_some() {
            self.since = SystemTime::now();
        }
    }
}

/// The plans of jobs.
type JobPlans = BTreeMap<JobId, Arc<JobPlan>>;

/// Why a switch does not have all entries of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobCondition {
    /// The switch.
    pub switch: SwitchId,
    /// True if the switch has failed or is away; false if the entries are being written.
    pub is_degraded: bool,
    /// The reason, on one line.
    pub reason: String,
    /// Since when.
    pub since: SystemTime,
}

/// The reason why a connection was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// It does not answer.
    Silent,
    /// It works and has another primary, or none.
    Elsewhere,
}

/// The desired state of all switches.
pub struct Desired<'a> {
    pub fabric: &'a Fabric,
    pub program: &'a Program,
    /// True to repair drift without a request.
    pub repair: bool,
    pub wanted: Wanted,
}

/// The desired state of one switch.
pub struct OnSwitch {
    /// All its entries.
    pub held: Held,
    /// The division of its ports that they contain.
    pub division: Division,
    /// The jobs that they contain.
    pub jobs: JobPlans,
}

/// A part of a switch's next desired state.
pub enum Write {
    /// These updates, in this order.
    Updates(Vec<Update>),
    /// The division of its ports.
    Division(Division),
    /// All its entries, which are compared.
    All(OnSwitch),
}

/// A step for the task of a switch.
pub struct Step {
    client: SwitchClient,
    write: Write,
    /// That of the reroute.
    span: Span,
    /// Closed when the reroute does not wait for the step any more.
    done: oneshot::Sender<Result<(), BringUpError>>,
}

/// A comparison of the switch with the desired state.
pub struct Audit {
    /// True to reconcile the switch.
    pub mend: bool,
    /// That of the request.
    pub span: Span,
    pub answer: oneshot::Sender<Result<Diff, String>>,
}

impl Desired<'_> {
    /// The division of a switch's ports among its jobs.
    pub fn division(&self, id: SwitchId) -> Division {
        let jobs = self.wanted.jobs.iter().map(|(job, _)| &**job);
        plan::divide(self.fabric, id, jobs)
    }

    /// The jobs with entries on a switch.
    fn jobs_on(&self, id: SwitchId) -> JobPlans {
        let jobs = self.wanted.jobs.iter();
        let here = jobs.filter(|(_, plan)| plan.contains_key(&id));
        here.map(|(job, plan)| (job.id, Arc::clone(plan))).collect()
    }

    /// The desired state of a switch.
    pub fn on(&self, id: SwitchId) -> Result<OnSwitch, BringUpError> {
        let (division, jobs_here) = (self.division(id), self.jobs_on(id));
        let fabric = plan::of_fabric(self.fabric, &self.wanted.routes, id);
        let jobs = jobs_here.values().filter_map(|plan| plan.get(&id));
        let shares: Vec<Planned> = (division.iter())
            .map(|(at, queue)| Planned::Meter(MeterCell::of_share(*at, Some(*queue))))
            .collect();
        let cuts = plan::cuts(self.fabric, self.program.names(), id);
        let all = (fabric.iter())
            .chain(&cuts)
            .chain(jobs.flat_map(|plan| plan.entities()))
            .chain(&shares);
        Ok(OnSwitch {
            held: Held::planned(all, self.program.names())?,
            division,
            jobs: jobs_here,
        })
    }
}

/// The program that a switch had when it was connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// This controller's program, and so perhaps its entries.
    OurProgram,
    /// None, or another one that was replaced.
    Another,
}

/// The addresses and parameters of a switch.
pub fn device_of(switch: &fabric::Switch) -> Device {
    Device {
        name: switch.name.clone(),
        grpc: switch.grpc.clone(),
        device_id: switch.device_id,
        tls: switch.tls.clone(),
        packing: switch.packing,
    }
}

impl ManagedSwitch {
    pub fn new(
        fabric: &Fabric,
        id: SwitchId,
        election_id: u128,
        Checks { owner, cookie }: Checks,
        metrics: &Metrics,
        changed: &watch::Sender<()>,
        timers: Timers,
    ) -> Self {
        let switch = fabric.switch(id);
        ManagedSwitch {
            id,
            device: device_of(switch),
            target: switch.target,
            limits: switch.limits,
            election_id,
            owner,
            own_cookie: cookie,
            metrics: metrics.clone(),
            state: Mutex::new(State::new(owner.is_some_and(|owner| owner.is_new))),
            writer: AsyncMutex::default(),
            wake: Notify::new(),
            has_step: Notify::new(),
            changed: changed.clone(),
            pushing_ports: AsyncMutex::default(),
            unanswered: Unanswered::new(timers.unanswered_read),
            reconnect_pause: timers.reconnect,
        }
    }

    pub fn name(&self) -> &str {
        &self.device.name
    }

    /// The connection, or why there is none.
    pub fn client(&self) -> Result<Arc<SwitchClient>, String> {
        self.with_state(|state| state.connection.clone())
    }

    /// The problem of the connection if it differs from the one at the last call; `Some(None)` if the switch is connected again.
    pub fn new_problem(&self) -> Option<Option<String>> {
        self.with_state(|state| {
            let problem = state.connection.as_ref().err().cloned();
            (problem != state.reported).then(|| {
                state.reported.clone_from(&problem);
                problem
            })
        })
    }

    /// True if it needs a resync.
    pub fn is_dirty(&self) -> bool {
        self.with_state(|state| state.is_dirty())
    }

    /// True if it has all desired entries but those of some jobs.
    fn is_partly_known(&self) -> bool {
        self.with_state(|state| matches!(state.contents, Contents::AllBut { .. }))
    }

    /// Marks it as needing a resync: its entries are unknown.
    pub fn mark_dirty(&self) {
        self.with_state(State::mark_dirty);
    }

    /// True if it may differ from the desired state because of this controller's own writes: it
    /// needs a resync, or an interrupted write may take effect after the last read.
    pub fn may_differ(&self) -> bool {
        self.is_dirty() || self.unanswered.any()
    }

    /// Returns when the switch should be read because of an interrupted write; never if there is
    /// none.
    pub async fn needs_read(&self) {
        self.unanswered.read_due().await;
    }

    /// Asks its task to write the differences to the desired state. Returns the request's number for
    /// [`has_attempted`](Self::has_attempted).
    pub fn wake(&self) -> u64 {
        let asked = self.with_state(|state| {
            state.asked += 1;
            state.asked
        });
        self.wake.notify_one();
        asked
    }

    /// Returns when its task is asked to write.
    pub async fn woken(&self) {
        self.wake.notified().await;
    }

    /// The number of the last request to write.
    pub fn asked(&self) -> u64 {
        self.with_state(|state| state.asked)
    }

    /// Records an attempt to write that serves the requests up to `asked`.
    pub fn attempted(&self, asked: u64, attempt: &Result<(), BringUpError>) {
        self.with_state(|state| {
            match attempt {
                // It is repeated after the reroute.
                Err(error) if error.is_abandoned() => return,
                Err(error) => state.failed(error.to_string()),
                Ok(()) => state.succeeded(),
            }
            state.attempted = asked;
        });
        self.changed.send_replace(());
    }

    /// True if a request to write has been served, or cannot be because the switch is disconnected.
    pub fn has_attempted(&self, asked: u64) -> bool {
        self.with_state(|state| state.attempted >= asked || state.connection.is_err())
    }

    /// True if it is connected and has taken all writes for a job so far.
    pub fn is_sure_of(&self, id: JobId) -> bool {
        self.with_state(|state| state.connection.is_ok() && !state.may_lack(id))
    }

    /// Notes which of these jobs it does not have as before the reroute: its task has not written
    /// them yet.
    pub fn expect(&self, moved: &[Moved]) {
        self.with_state(|state| {
            let has = |Moved { before, after }: &&Moved| match before.1.contains_key(&self.id) {
                true => state.has(after.0.id, &before.1),
                false => !state.jobs.contains_key(&after.0.id),
            };
            let missing = moved.iter().filter(|moved| !has(moved));
            let missing: BTreeSet<JobId> = missing.map(|moved| moved.after.0.id).collect();
            match &mut state.contents {
                Contents::AllBut { jobs, .. } => jobs.extend(missing),
                Contents::Whole if !missing.is_empty() => {
                    state.contents = Contents::AllBut {
                        jobs: missing,
                        has_leftovers: false,
                    };
                }
                Contents::Whole | Contents::Unknown => {}
            }
        });
    }

    /// Records that it has these jobs as desired after a reroute, as far as it has taken the writes.
    pub fn has_moved(&self, moved: &[Moved], desired: &Desired<'_>) {
        let wanted = desired.jobs_on(self.id);
        let jobs: BTreeSet<JobId> = desired.wanted.jobs.iter().map(|it| it.0.id).collect();
        self.with_state(|state| {
            for id in moved.iter().map(Moved::id) {
                match wanted.get(&id).filter(|_| !state.may_lack(id)) {
                    Some(plan) => state.jobs.insert(id, Arc::clone(plan)),
                    None => state.jobs.remove(&id),
                };
                // It was deleted meanwhile.
                if !jobs.contains(&id) {
                    state.contents = Contents::Unknown;
                }
            }
        });
    }

    /// True if it has all desired jobs, and no others.
    pub fn has_all(&self, desired: &Desired<'_>) -> bool {
        let wanted = desired.jobs_on(self.id);
        self.with_state(|state| {
            let mut all = wanted.iter();
            state.jobs.len() == wanted.len() && all.all(|(id, plan)| state.has(*id, plan))
        })
    }

    /// True if it has, or may have, entries of any of these jobs.
    pub fn may_have_any(&self, jobs: &[JobId]) -> bool {
        self.with_state(|state| {
            let may_have = |id: &JobId| match &state.contents {
                Contents::AllBut {
                    jobs,
                    has_leftovers,
                } if *has_leftovers || jobs.contains(id) => true,
                Contents::Unknown => true,
                _ => state.jobs.contains_key(id),
            };
            state.connection.is_err() || jobs.iter().any(may_have)
        })
    }

    /// Why it does not have all entries of a job with this plan, which is desired since `planned`; none if it has them.
    pub fn condition(
        &self,
        id: JobId,
        plan: &Arc<JobPlan>,
        planned: SystemTime,
    ) -> Option<JobCondition> {
        let (is_degraded, reason, since) = self.with_state(|state| {
            let since = state.since;
            match (&state.connection, state.failure_of(id)) {
                (Err(problem), _) => Some((true, format!("not connected: {problem}"), since)),
                (Ok(_), _) if state.has(id, plan) => None,
                (Ok(_), Some(reason)) => Some((true, reason.clone(), since)),
                (Ok(_), None) => Some((false, "being written".to_owned(), since)),
            }
        })?;
        Some(JobCondition {
            switch: self.id,
            is_degraded,
            reason,
            since: since.max(planned),
        })
    }

    /// The right to configure its ports, which resets parts of the chip; none while another request
    /// has it.
    pub fn begin_port_push(&self) -> Option<MutexGuard<'_, ()>> {
        self.pushing_ports.try_lock().ok()
    }

    /// Adopts a new connection.
    pub fn is_up(&self, client: SwitchClient) {
        self.with_state(|state| {
            state.connection = Ok(Arc::new(client));
            state.may_be_foreign = false;
            state.since = SystemTime::now();
        });
        self.changed.send_replace(());
    }

    fn unreadable(&self, error: crate::p4rt::RpcError) -> BringUpError {
        BringUpError::Read {
            switch: self.name().to_owned(),
            error,
        }
    }

    /// Configures the meters of shares as `division` demands, and removes all others. Writes only
    /// differences: a rewritten meter forgets how full its virtual queue is.
    #[tracing::instrument(level = "debug", skip_all, fields(switch = self.name()))]
    pub async fn divide(
        &self,
        client: &SwitchClient,
        names: &Names,
        division: Division,
    ) -> Result<(), BringUpError> {
        let updates = self.division_updates(&division, names)?;
        self.change(client, names, updates, Order::Any).await?;
        self.is_divided(&division);
        Ok(())
    }

    /// The updates for [`divide`](Self::divide). Their result is unknown until
    /// [`is_divided`](Self::is_divided) is called.
    fn division_updates(
        &self,
        division: &Division,
        names: &Names,
    ) -> Result<Vec<Update>, BringUpError> {
        let changes = self.with_state(|state| {
            let mut changes: BTreeMap<ShareIndex, Option<VirtualQueue>> = division
                .iter()
                .map(|(at, queue)| (*at, Some(*queue)))
                .collect();
            for (at, held) in &state.shares {
                let wanted = changes.entry(*at).or_default();
                if held.is_some() && held == wanted {
                    changes.remove(at);
                }
            }
            state.shares.extend(changes.keys().map(|at| (*at, None)));
            changes
        });
        let cells = changes.into_iter();
        let cells = cells.map(|(at, queue)| Planned::Meter(MeterCell::of_share(at, queue)));
        let cells: Vec<Planned> = cells.collect();
        Ok(update::creations(&cells, names)?)
    }

    /// Records that all meters of shares are as `division` demands.
    fn is_divided(&self, division: &Division) {
        let shares = division.iter().map(|(at, queue)| (*at, Some(*queue)));
        let shares = shares.collect();
        self.with_state(|state| state.shares = shares);
    }

    /// Returns when the connection is lost, or another client has become primary.
    pub async fn lost(&self) -> Lost {
        let Ok(client) = self.client() else {
            return Lost::Elsewhere;
        };
        let mut mastership = client.mastership();
        let (problem, lost) = match mastership.wait_for(|now| *now != Mastership::Primary).await {
            Ok(now) => match &*now {
                Mastership::Backup { message, .. } => {
                    let problem = format!("another client is primary: {message}");
                    (problem, Lost::Elsewhere)
                }
                Mastership::Vacant { .. } => {
                    ("the switch has no primary".to_owned(), Lost::Elsewhere)
                }
                Mastership::Lost { reason } => (reason.clone(), Lost::Silent),
                Mastership::Primary => return Lost::Elsewhere,
            },
            Err(_) => ("the connection has ended".to_owned(), Lost::Silent),
        };
        tracing::warn!(switch = self.name(), problem, "connection lost");
        self.disconnect(problem);
        lost
    }

    /// Closes the connection, for this reason.
    pub fn disconnect(&self, reason: String) {
        self.with_state(|state| {
            if state.connection.is_ok() {
                state.since = SystemTime::now();
            }
            state.connection = Err(reason);
            state.step = None;
            state.audits.clear();
        });
        self.changed.send_replace(());
    }

    /// Writes updates. Marks the switch as needing a resync if the result is unknown.
    #[tracing::instrument(level = "debug", skip_all, fields(switch = self.name()))]
    pub async fn change(
        &self,
        client: &SwitchClient,
        names: &Names,
        updates: Vec<Update>,
        order: Order,
    ) -> Result<(), BringUpError> {
        let Err(error) = client.write(updates.clone(), order).await else {
            return Ok(());
        };
        self.unwritten(&error, &updates, names)
            .inspect_err(|_| self.mark_dirty())
    }

    /// The failure of a write of these updates, if it was one.
    fn unwritten(
        &self,
        error: &WriteError,
        updates: &[Update],
        names: &Names,
    ) -> Result<(), BringUpError> {
        let name = |at: usize| reconcile::name(&updates[at], names);
        match Cause::of(error, updates.len(), name) {
            None => Ok(()),
            Some(cause) => Err(BringUpError::Write {
                switch: self.name().to_owned(),
                cause,
            }),
        }
    }

    fn with_state<T>(&self, use_it: impl FnOnce(&mut State) -> T) -> T {
        use_it(&mut lock(&self.state))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_begins_with_its_problem_or_with_a_later_plan() {
        let text = include_str!("../../../topologies/star4.yaml");
        let fabric = fabric::parse(text, "star4.yaml").unwrap();
        let (metrics, changed) = (Metrics::default(), watch::Sender::new(()));
        let before = SystemTime::now();
        let (id, checks, timers) = (SwitchId(0), Checks::default(), Timers::default());
        let switch = ManagedSwitch::new(&fabric, id, 1, checks, &metrics, &changed, timers);
        let plan = Arc::default();
        let since = |planned| switch.condition(JobId(1), &plan, planned).unwrap().since;
        assert!(since(SystemTime::UNIX_EPOCH) >= before);
        let later = before + Duration::from_secs(60);
        assert_eq!(since(later), later);
    }

    #[test]
    fn a_refusal_is_reported_for_its_jobs_only() {
        let [refused, other] = [1, 2].map(JobId);
        let mut switch = State::new(false);
        switch.contents = Contents::AllBut {
            jobs: [refused].into(),
            has_leftovers: false,
        };
        switch.failed("table full".into());
        // As while the switch is compared.
        switch.mark_dirty();
        assert!(switch.failure_of(refused).is_some());
        assert_eq!(switch.failure_of(other), None);
        switch.failed("no answer".into());
        assert_eq!(switch.failure_of(other).unwrap(), "no answer");
        switch.contents = Contents::Whole;
        assert_eq!(switch.failure_of(refused), None);
    }
}
