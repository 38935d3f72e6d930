//! The controller's state, and the operations on it that all requests and tasks share. It knows none of these.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::{Mutex as AsyncMutex, Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use ultima_planner::check::Check;
use ultima_planner::fabric::blackhole::Blackholes;
use ultima_planner::fabric::{Element, Fabric, Switch, SwitchId, SwitchPort};
use ultima_planner::job::{Job, JobId, Rank};
use ultima_planner::names::some_of;
use ultima_planner::plan::JobPlan;
use ultima_planner::program::Program;
use ultima_planner::routing::{self, Routes};

use super::burst_drops::BurstDrops;
use super::changes::{ChangeLock, Changes, WAITING};
use super::condition::{Condition, ElementState, PortProblem};
use super::error::JobRequestError;
use super::event_log::EventLog;
use super::journal::Journal;
use super::keeper::SeatKeeper;
use super::lock::lock;
use super::membership::events::Events;
use super::message_room::MessageRoom;
use super::own_task::client_gone;
use super::registry::Registry;
use super::registry::record::Record;
use super::seats::Seat;
use super::sessions::Sessions;
use super::streams::StreamLimit;
use super::switch::{Desired, JobCondition, ManagedSwitch};
use super::timers::Timers;
use crate::metrics::Metrics;
use crate::p4rt::SwitchClient;
use crate::store::{StoreError, Stored};

/// A fabric, its switches and its jobs.
pub struct Controller {
    pub(super) fabric: Arc<Fabric>,
    pub(super) program: Program,
    pub(super) switches: Arc<[ManagedSwitch]>,
    /// Notified when the state of a switch has changed, or a job is ready.
    pub(super) switches_changed: watch::Sender<()>,
    pub(super) audit_every: Duration,
    pub(super) repair: bool,
    /// Bits per second at which each rank sends unless its agent chooses a rate.
    pub(super) agent_rate: Option<u64>,
    pub(super) jobs_per_client: Option<usize>,
    /// Switches that drop bursts.
    pub(super) burst_drops: Mutex<BurstDrops>,
    pub(super) timers: Timers,
    pub(super) changes: ChangeLock,
    pub(super) registry: Arc<Mutex<Registry>>,
    /// The elements of the fabric that are down, and since when.
    pub(super) condition: Mutex<Condition>,
    /// Notified when trees and routes may have to change.
    pub(super) fabric_changed: watch::Sender<()>,
    pub(super) journal: Arc<Journal>,
    pub(super) seats: SeatKeeper,
    /// True once the controller is stopping: its state must not change any more.
    pub(super) closed: watch::Sender<bool>,
    pub(super) sessions: Arc<Sessions>,
    /// Bounds the messages about changes of members that are in flight.
    pub(super) message_room: MessageRoom,
    pub(super) events: Events,
    /// The last check. Locked during a check: two at once would count each other's packets.
    pub(super) checks: AsyncMutex<Option<PastCheck>>,
    /// Bounds the clients that watch jobs.
    pub(super) job_watches: StreamLimit,
    /// Bounds the clients that watch telemetry.
    pub(super) telemetry_watches: StreamLimit,
    /// Bounds the jobs whose counters are read at the same time.
    pub(super) telemetry_reads: Semaphore,
    /// Detects links between switches that lose packets.
    pub(super) blackholes: Mutex<Blackholes>,
    pub(super) keepers: Mutex<Vec<JoinHandle<()>>>,
    pub(super) metrics: Metrics,
    /// The recent events.
    pub(super) log: EventLog,
    /// Held while events are being stored.
    pub(super) storing_events: AsyncMutex<()>,
}

/// A finished check.
pub(super) struct PastCheck {
    pub(super) job: JobId,
    pub(super) ended: std::time::Instant,
    pub(super) check: Check,
}

/// A job and the state of its members.
#[derive(Clone, Debug)]
pub struct JobState {
    /// The job.
    pub job: Arc<Job>,
    /// The switches that it is installed on.
    pub switches: Vec<SwitchId>,
    /// Its members' seats, by rank.
    pub(super) seats: Vec<Seat>,
    /// Members that cannot reach some others, in rank order.
    pub cut_off: Vec<Rank>,
    /// Why it still uses elements that are down or drained, on one line.
    pub stays: Option<String>,
    /// Since when one of these is so.
    pub(super) degraded_since: Option<SystemTime>,
    /// Suspected members, in rank order.
    pub suspected: Vec<Rank>,
    /// Problems of the ports at which its members are.
    pub(super) port_problems: Vec<PortProblem>,
    /// Free ranks whose members have just given up to wait for the others.
    pub(super) gave_up: Vec<Rank>,
    /// The first operation of the epoch.
    pub first_operation: u32,
    /// Why the last change of members did not happen, on one line.
    pub unchanged: Option<String>,
    /// Its status on its switches; none if that is unknown, as on a standby.
    pub status: Option<JobStatus>,
    /// The next epoch.
    pub next: Option<Box<JobState>>,
}

/// The status of a job on its switches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobStatus {
    /// True once all of them have had all of it, so that members may begin.
    pub is_ready: bool,
    /// Why some of them do not have all of it, in the fabric's order.
    pub conditions: Vec<JobCondition>,
}

/// A switch and the state of the connection to it.
#[derive(Clone, Debug)]
pub struct SwitchState {
    /// The switch.
    pub id: SwitchId,
    /// Why it is not connected, or why that is unknown, on one line.
    pub problem: Option<String>,
    /// True if this controller does not know if it is connected.
    pub is_unknown: bool,
    /// Its elements that are not in use.
    pub health: Vec<ElementState>,
    /// True if it needs a resync.
    pub dirty: bool,
    /// The jobs installed on it, by name.
    pub jobs: Vec<String>,
}

impl Controller {
    /// Runs `work` until it or the controller ends.
    pub(super) fn in_background(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut keepers = lock(&self.keepers);
        keepers.retain(|keeper| !keeper.is_finished());
        if !*self.closed.borrow() {
            keepers.push(tokio::spawn(work));
        }
    }

    /// Notes whether a switch answers gNMI.
    pub(super) fn note_gnmi(&self, id: SwitchId, has_gnmi: bool) {
        let Switch { name, target, .. } = self.fabric().switch(id);
        if lock(&self.burst_drops).note(id, target, has_gnmi)
            && let (None, Some(rate)) = (self.agent_rate, self.rank_rate())
        {
            tracing::warn!(
                "switch {name} has no gNMI, so it is BMv2, which drops bursts: ranks send at {rate} bit/s unless \
                 --agent-rate or their agents' --rate says otherwise"
            );
        }
    }

    /// The rate in bits per second of ranks whose user chooses none; none for no limit.
    pub(super) fn rank_rate(&self) -> Option<u64> {
        self.agent_rate.or_else(|| {
            let ranks = self.fabric().hosts().iter();
            let ranks = ranks.map(|host| u64::from(host.ranks)).sum();
            lock(&self.burst_drops).rate(ranks)
        })
    }

    /// Ends all background tasks. The switches keep their entries.
    pub(super) fn close(&self) {
        // First, because running tasks check it before each step.
        self.closed.send_replace(true);
        let mut keepers = lock(&self.keepers);
        keepers.drain(..).for_each(|keeper| keeper.abort());
        self.journal.close();
        for switch in self.switches.iter() {
            switch.disconnect("the controller is stopping".into());
        }
        self.events.end();
        self.sessions.clear();
    }

    /// Waits until the controller is stopping.
    pub(super) fn stopped(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut closed = self.closed.subscribe();
        async move {
            // An error means that the controller is gone, which is also a stop.
            let _ = closed.wait_for(|closed| *closed).await;
        }
    }

    /// Notes which jobs are ready: all of their switches have all of their entries.
    pub(super) fn note_ready(&self) {
        let mut registry = self.registry();
        for record in registry.unready() {
            let is_ready = self.switch_conditions(record).next().is_none();
            record.is_ready = is_ready;
        }
        drop(registry);
        self.switches_changed.send_replace(());
    }

    pub(super) fn desired(&self) -> Desired<'_> {
        Desired {
            fabric: &self.fabric,
            program: &self.program,
            repair: self.repair,
            wanted: self.registry().wanted(),
        }
    }

    /// The fabric.
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// The routes on its switches.
    pub(super) fn routes(&self) -> Arc<Routes> {
        Arc::clone(self.registry().routes())
    }

    /// By how many packets a member's multicast and unicast packets may overtake each other.
    pub(super) fn reorder(&self, job: &Job) -> u32 {
        routing::reorder(&self.fabric, &self.routes(), job)
    }

    /// The state that a controller would start with now.
    pub(super) async fn stored(&self) -> Result<Stored, StoreError> {
        self.journal.read().await
    }

    pub(super) fn program(&self) -> &Program {
        &self.program
    }

    /// A job's entries, by switch; none if the job is gone.
    pub(super) fn plan_of(&self, id: JobId) -> Option<Arc<JobPlan>> {
        let registry = self.registry();
        registry.get(id).map(|record| Arc::clone(&record.plan))
    }

    /// The lock for committing a change of the switches' desired state. Refused while the
    /// controller is stopping or does not lead, if too many requests wait, or if the client has gone.
    pub(super) async fn change(&self) -> Result<Changes<'_>, JobRequestError> {
        let changes = tokio::select! {
            biased;
            () = client_gone() => return Err(JobRequestError::ClientGone),
            changes = self.changes.request() => changes,
        };
        self.open()?;
        changes.ok_or(JobRequestError::TooManyWait { most: WAITING })
    }

    pub(super) fn open(&self) -> Result<(), JobRequestError> {
        match (*self.closed.borrow(), self.journal.leads()) {
            (true, _) => Err(JobRequestError::Stopping),
            (false, false) => Err(JobRequestError::NotLeader),
            (false, true) => Ok(()),
        }
    }

    /// All switches, in the fabric's order.
    pub fn switches(&self) -> Vec<SwitchState> {
        // One lock at a time.
        let health: Vec<_> = {
            let condition = self.condition();
            let of = |switch: &ManagedSwitch| condition.of(&self.fabric, switch.id);
            self.switches.iter().map(of).collect()
        };
        let registry = self.registry();
        let of = |(switch, health): (&ManagedSwitch, _)| SwitchState {
            id: switch.id,
            problem: switch.client().err(),
            is_unknown: false,
            health,
            dirty: switch.is_dirty(),
            jobs: registry.names_at(switch.id),
        };
        self.switches.iter().zip(health).map(of).collect()
    }

    /// The connection to a switch, or why there is none.
    pub(super) fn client(&self, id: SwitchId) -> Result<Arc<SwitchClient>, String> {
        self.switches[id.0].client()
    }

    /// Why switches do not have all entries of a job.
    fn switch_conditions(&self, record: &Record) -> impl Iterator<Item = JobCondition> {
        let (id, plan) = (record.job.id, &record.plan);
        let of = move |at: &SwitchId| self.switches[at.0].condition(id, plan, record.planned_at);
        plan.keys().filter_map(of)
    }

    /// True if a job is whole: its switches have it, its members reach each other, and it was rerouted if it had to be.
    pub(super) fn has_no_condition(&self, record: &Record) -> bool {
        let is_on_its_paths = record.cut_off.is_empty() && record.stays.is_none();
        is_on_its_paths
            && self.switch_conditions(record).next().is_none()
            && self
                .port_problems(&record.job)
                .iter()
                .all(|it| it.is_drained)
    }

    /// Problems of the ports at which a job's members are. The lock of the condition is the inner one.
    fn port_problems(&self, job: &Job) -> Vec<PortProblem> {
        self.condition().of_members(&self.fabric, job)
    }

    /// A job in its current epoch, with its next one, and what its switches have of it.
    pub(super) fn state_of(&self, registry: &Registry, record: &Record) -> JobState {
        let status = JobStatus {
            is_ready: record.is_ready,
            conditions: self.switch_conditions(record).collect(),
        };
        JobState {
            status: Some(status),
            port_problems: self.port_problems(&record.job),
            ..state_of(registry, record)
        }
    }

    /// Makes the tasks of these switches write the differences to the desired state. Returns the
    /// requests' numbers.
    pub(super) fn wake(
        &self,
        switches: impl IntoIterator<Item = SwitchId>,
    ) -> BTreeMap<SwitchId, u64> {
        let switches = switches.into_iter();
        switches
            .map(|id| (id, self.switches[id.0].wake()))
            .collect()
    }

    /// Waits at most `limit`, or until the controller stops, for something about jobs that depends on
    /// what their switches have.
    pub(super) async fn wait(&self, limit: Duration, is_so: impl Fn(&Registry) -> bool) {
        let mut changed = self.switches_changed.subscribe();
        let comes = async {
            loop {
                let is_so = is_so(&self.registry());
                // An error means that the controller is gone.
                if is_so || changed.changed().await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            () = comes => {}
            () = self.stopped() => {}
            () = sleep(limit) => {}
        }
    }

    /// The switches that do not have all entries of a job, and why.
    pub(super) fn unwritten(&self, state: &JobState) -> String {
        let status = state.status.iter();
        let missing = status.flat_map(|status| &status.conditions).map(|it| {
            let switch = &self.fabric.switch(it.switch).name;
            format!("switch {switch}: {}", it.reason)
        });
        some_of(missing.collect::<Vec<String>>())
    }

    /// Records that an element was seen up or down: by the end of a switch's stream, by a port's
    /// state, or by telemetry. Trees and routes follow when [damping](ultima_planner::fabric::damping)
    /// accepts it.
    pub fn observe(&self, element: Element, is_up: bool) {
        if self.condition().observe(element, is_up, Instant::now()) {
            self.fabric_changed.send_replace(());
        }
    }

    /// Records that a host's port was seen up or down.
    pub(super) fn observe_host(&self, port: SwitchPort, is_up: bool) {
        if self.condition().observe_host(port, is_up) {
            self.fabric_changed.send_replace(());
            // Jobs with a member there have another condition.
            self.switches_changed.send_replace(());
        }
    }

    /// Records that an element loses the packets sent into it.
    pub(super) fn mark_lossy(&self, element: Element) {
        self.condition().mark_lossy(element, Instant::now());
        self.fabric_changed.send_replace(());
    }

    /// Checks again whether jobs that wait for room can be rerouted, or old paths can be removed.
    pub(super) fn retry_waiting(&self) {
        if self.registry().is_short_of_room() {
            self.fabric_changed.send_replace(());
        }
        self.finish_waiting();
    }

    /// Removes the old paths of jobs whose switches have the new ones by now.
    pub(super) fn finish_waiting(&self) {
        if self.registry().may_finish(self.is_sure()) {
            self.fabric_changed.send_replace(());
        }
    }

    /// True if a switch has taken all writes for a job so far.
    pub(super) fn is_sure(&self) -> impl Fn(&SwitchId, JobId) -> bool {
        move |at: &SwitchId, job| self.switches[at.0].is_sure_of(job)
    }

    /// Stores the jobs' new trees. If that fails or takes long the reroute goes on: a controller
    /// that starts with the old trees reroutes them again.
    pub(super) async fn store_trees(&self, ids: impl IntoIterator<Item = JobId>) {
        let limit = self.timers.change;
        match timeout(limit, self.seats.keep_jobs(ids.into_iter())).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "cannot store the new trees"),
            Err(_) => {
                tracing::warn!(timeout = ?limit, "the new trees are stored later: the store is busy")
            }
        }
    }

    pub(super) fn condition(&self) -> MutexGuard<'_, Condition> {
        lock(&self.condition)
    }

    pub(super) fn registry(&self) -> MutexGuard<'_, Registry> {
        lock(&self.registry)
    }
}

/// A job in its current epoch, with its next one.
pub(super) fn state_of(registry: &Registry, record: &Record) -> JobState {
    let next = registry.next_of(record.job.id);
    JobState {
        next: next.map(|next| Box::new(state_alone(next))),
        ..state_alone(record)
    }
}

/// A job in one of its epochs.
pub(super) fn state_alone(record: &Record) -> JobState {
    let first = record.origin.as_ref().and_then(|origin| origin.first);
    JobState {
        job: Arc::clone(&record.job),
        switches: record.plan.keys().copied().collect(),
        seats: record.seats.states().collect(),
        cut_off: record.cut_off.clone(),
        stays: record.stays.as_ref().map(ToString::to_string),
        degraded_since: record.degraded_since,
        suspected: record.suspicion.since().keys().copied().collect(),
        port_problems: Vec::new(),
        gave_up: record.seats.gave_up().collect(),
        first_operation: first.unwrap_or_default(),
        unchanged: record.unchanged.clone(),
        status: None,
        next: None,
    }
}
