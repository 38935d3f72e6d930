//! The controller's state and its tasks, without gRPC. The requests are in `jobs`, `joining`,
//! `membership`, `moves`, `audit`, `check` and `telemetry`.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::{Mutex as AsyncMutex, Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};
use ultima_p4::names::job;
use ultima_planner::fabric::blackhole::Blackholes;
use ultima_planner::fabric::{Element, Fabric, Switch, SwitchId};
use ultima_planner::job::{Job, JobId, Rank};
use ultima_planner::plan::{self, JobPlan};
use ultima_planner::program::Program;
use ultima_planner::routing::{self, Routes};

use super::Config;
use super::burst_drops::BurstDrops;
use super::changes::{ChangeLock, Changes, WAITING};
use super::check::PastCheck;
use super::condition::{Condition, ElementState};
use super::error::{BringUpError, JobRequestError, ServeError};
use super::event_log::EventLog;
use super::journal::{Journal, Lead};
use super::keeper::SeatKeeper;
use super::membership::Events;
use super::message_room::MessageRoom;
use super::own_task::client_gone;
use super::registry::{Record, Registry};
use super::seats::Seat;
use super::sessions::Sessions;
use super::start::{self, Needs};
use super::streams::Places;
use super::switch::{Desired, Found, JobCondition, Lost, ManagedSwitch};
use super::telemetry::READS;
use super::timers::Timers;
use super::{service_telemetry, service_watch};
use crate::metrics::Metrics;
use crate::p4rt::{Owner, SwitchClient};
use crate::store::{Change, JobRecord, Store, StoreError, Stored};

/// The pause after a panic.
pub(super) const PANIC_PAUSE: Duration = Duration::from_secs(1);

/// A fabric, its switches and its jobs.
pub struct Controller {
    pub(super) fabric: Arc<Fabric>,
    program: Program,
    pub(super) switches: Arc<[ManagedSwitch]>,
    /// Notified when the state of a switch has changed, or a job is ready.
    pub(super) switches_changed: watch::Sender<()>,
    audit_every: Duration,
    pub(super) repair: bool,
    /// Bits per second at which each rank sends unless its agent chooses a rate.
    agent_rate: Option<u64>,
    pub(super) jobs_per_client: Option<usize>,
    /// Switches that drop bursts.
    burst_drops: Mutex<BurstDrops>,
    pub(super) timers: Timers,
    pub(super) changes: ChangeLock,
    pub(super) registry: Arc<Mutex<Registry>>,
    /// Which elements of the fabric are down, and since when.
    pub(super) condition: Mutex<Condition>,
    /// Notified when trees and routes may have to change.
    pub(super) fabric_changed: watch::Sender<()>,
    pub(super) journal: Arc<Journal>,
    pub(super) seats: SeatKeeper,
    /// True once the controller is stopping: its state must not change any more.
    closed: watch::Sender<bool>,
    pub(super) sessions: Arc<Sessions>,
    /// Bounds the messages about changes of members that are in flight.
    pub(super) message_room: MessageRoom,
    pub(super) events: Events,
    /// The last check. Locked during a check: two at once would count each other's packets.
    pub(super) checks: AsyncMutex<Option<PastCheck>>,
    /// Bounds the clients that watch jobs.
    pub(super) job_watches: Places,
    /// Bounds the clients that watch telemetry.
    pub(super) telemetry_watches: Places,
    /// Bounds the jobs whose counters are read at the same time.
    pub(super) telemetry_reads: Semaphore,
    /// Detects links between switches that lose packets.
    pub(super) blackholes: Mutex<Blackholes>,
    keepers: Mutex<Vec<JoinHandle<()>>>,
    pub(super) metrics: Metrics,
    /// The recent events.
    pub(super) log: EventLog,
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
    /// Suspected members, in rank order.
    pub suspected: Vec<Rank>,
    /// The first operation of the epoch.
    pub first_operation: u32,
    /// Why the last change of members did not happen, on one line.
    pub unchanged: Option<String>,
    /// What its switches have of it; none if that is unknown, as on a standby.
    pub standing: Option<JobStanding>,
    /// The next epoch.
    pub next: Option<Box<JobState>>,
}

/// What the switches of a job have of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobStanding {
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
    /// Why it is not connected, on one line.
    pub problem: Option<String>,
    /// Its elements that are not in use.
    pub health: Vec<ElementState>,
    /// True if it needs a resync.
    pub dirty: bool,
    /// The jobs installed on it, by name.
    pub jobs: Vec<String>,
}

impl Controller {
    /// Brings up the switches and starts the tasks that keep them up.
    pub(super) async fn start(
        config: Config,
        store: Arc<dyn Store>,
        lead: Lead,
    ) -> Result<Arc<Self>, ServeError> {
        let Config {
            fabric,
            program,
            patience,
            audit_every,
            repair,
            agent_rate,
            jobs_per_client,
            terms,
            timers,
            take_over,
            ..
        } = config;
        let stored = store.load().await?;
        let mut condition = Condition::new(&fabric, terms, &stored.drained);
        let routes = Routes::new(&fabric, condition.health());
        for id in fabric.switch_ids() {
            plan::check_fabric(&fabric, &routes, &program, id)?;
            if let Some(warning) = plan::uncut(&fabric, program.names(), id) {
                tracing::warn!("{warning}");
            }
        }
        let election_id = lead.election_id();
        let jobs = program.names().table(job::TABLE).ok();
        let owner = (jobs.filter(|_| stored.id != 0)).map(|jobs| Owner {
            store: stored.id,
            is_new: stored.last_id == 0,
            takes_over: take_over,
            cookie: program.cookie(),
            table: jobs.id,
        });
        let metrics = Metrics::default();
        let switches_changed = watch::Sender::default();
        let shared = (&metrics, &switches_changed);
        let switches: Arc<[ManagedSwitch]> = (fabric.switch_ids())
            .map(|id| ManagedSwitch::new(&fabric, id, election_id, owner, shared, timers))
            .collect();
        let needs = match lead {
            Lead::Elected(_) => Needs::Prompt,
            // The operator who starts a fabric for the first time should see every problem. Later
            // on, jobs need what still works.
            Lead::Alone if stored.is_new() => Needs::All,
            Lead::Alone => Needs::Any,
        };
        let clients = start::connect(&switches, needs, patience, &mut condition).await?;
        let routes = Routes::new(&fabric, condition.health());
        let registry = Registry::restore_what_fits(
            &fabric,
            routes,
            program.names(),
            stored.clone(),
            timers.members,
        );
        let mut records = registry.records(&fabric);
        let known: BTreeMap<u16, &JobRecord> = (stored.jobs.iter()).map(|it| (it.id, it)).collect();
        records.retain(|record| known.get(&record.id) != Some(&record));
        let (fabric, registry) = (Arc::new(fabric), Arc::new(Mutex::new(registry)));
        let journal = Arc::new(Journal::new(store, lead));
        let seats = SeatKeeper::new(
            Arc::clone(&fabric),
            Arc::clone(&registry),
            Arc::clone(&journal),
        );
        let blackholes = Blackholes::new(&fabric);
        let controller = Arc::new(Controller {
            switches,
            switches_changed,
            fabric,
            program,
            audit_every,
            repair,
            agent_rate,
            jobs_per_client,
            burst_drops: Mutex::default(),
            timers,
            changes: ChangeLock::new(timers.change),
            condition: Mutex::new(condition),
            fabric_changed: watch::Sender::default(),
            seats,
            registry,
            journal,
            closed: watch::Sender::new(false),
            sessions: Arc::default(),
            message_room: MessageRoom::default(),
            events: Events::default(),
            checks: AsyncMutex::default(),
            job_watches: Places::new(service_watch::WATCHES, "watch jobs"),
            telemetry_watches: Places::new(service_telemetry::WATCHES, "watch telemetry"),
            telemetry_reads: Semaphore::new(READS),
            blackholes: Mutex::new(blackholes),
            keepers: Mutex::default(),
            metrics,
            log: EventLog::default(),
        });
        // The jobs as restored on the present fabric are the committed state from now on.
        let kept = controller.journal.write(Change::Update(records)).await;
        kept.map_err(ServeError::Keep)?;
        controller.bring_up(clients, needs, patience).await?;
        controller.note_ready();
        for switch in controller.switches.iter() {
            controller.listen(switch);
            controller.hear_ports(switch.id);
        }
        let keepers = controller.fabric.switch_ids().map(|id| {
            let controller = Arc::clone(&controller);
            tokio::spawn(async move { controller.keep_up_for_good(id).await })
        });
        let mover = {
            let controller = Arc::clone(&controller);
            tokio::spawn(async move { controller.keep_rerouting().await })
        };
        let keepers = keepers.chain([mover]).collect();
        *controller
            .keepers
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = keepers;
        let suspecting = Arc::clone(&controller);
        controller.in_background(suspecting.keep_suspecting());
        controller.follow_changes();
        Ok(controller)
    }

    /// Runs `work` until it or the controller ends.
    pub(super) fn in_background(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut keepers = self.keepers.lock().unwrap_or_else(PoisonError::into_inner);
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
        let mut keepers = self.keepers.lock().unwrap_or_else(PoisonError::into_inner);
        keepers.drain(..).for_each(|keeper| keeper.abort());
        self.journal.close();
        for switch in self.switches.iter() {
            switch.disconnect("the controller is stopping".into());
        }
        self.events.end();
        self.registry().end_waiting();
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

    /// Runs [`keep_up`](Self::keep_up) and restarts it after a panic.
    async fn keep_up_for_good(self: &Arc<Self>, id: SwitchId) {
        let switch = &self.switches[id.0];
        while AssertUnwindSafe(self.keep_up(id))
            .catch_unwind()
            .await
            .is_err()
        {
            tracing::error!(
                switch = switch.name(),
                "the switch's task has panicked; reconnecting"
            );
            switch.mark_dirty();
            switch.disconnect("the controller's task for this switch has panicked".into());
            sleep(self.audit_every.min(PANIC_PAUSE)).await;
        }
    }

    /// Reconnects a switch whenever the connection is lost, and makes it match the desired state: then,
    /// when it is woken, again after a failure, periodically, and when an interrupted write may have
    /// taken effect late.
    async fn keep_up(self: &Arc<Self>, id: SwitchId) {
        let switch = &self.switches[id.0];
        // A random pause spreads the audits, which take long for a whole fabric.
        let next_audit =
            || Instant::now() + self.audit_every.mul_f64(rand::random_range(0.5..=1.0));
        let (mut audit, mut retry) = (next_audit(), Retry::default());
        loop {
            let work = async {
                tokio::select! {
                    () = switch.woken() => {}
                    () = retry.due() => {}
                    () = sleep_until(audit) => return self.audit_one(switch).await,
                    () = switch.needs_read() => return self.audit_one(switch).await,
                }
                self.catch_up(switch).await
            };
            tokio::select! {
                lost = switch.lost() => {
                    self.record_switch(switch);
                    if lost == Lost::Silent {
                        // It may have restarted, and then has no entries.
                        switch.mark_dirty();
                        self.see(Element::Transit(id), false);
                    }
                }
                is_current = work => {
                    retry = retry.after(is_current, 10 * self.timers.retry);
                    if audit <= Instant::now() {
                        audit = next_audit();
                    }
                    continue;
                }
            }
            let failed = |error: &BringUpError| {
                self.record_switch(switch);
                if error.is_silence() {
                    switch.mark_dirty();
                    self.see(Element::Transit(id), false);
                }
            };
            let client = switch.reconnect(failed).await;
            // A short interruption ends here, not only when the switch has been resynced.
            let part = Element::Transit(id);
            if !self.condition().is_lost(part) {
                self.see(part, true);
            }
            match self.restore(switch, client).await {
                Ok(()) => {
                    self.see(part, true);
                    self.record_switch(switch);
                    self.hear_ports(id);
                }
                Err(error) => {
                    self.see(part, false);
                    switch.note(&error);
                    self.record_switch(switch);
                    switch.failed(&error).await;
                }
            }
        }
    }

    /// Writes the differences between a switch and the desired state. Returns false if the switch does
    /// not match it.
    #[tracing::instrument(name = "write", skip_all, fields(switch = switch.name()))]
    async fn catch_up(&self, switch: &ManagedSwitch) -> bool {
        let Ok(client) = switch.client() else {
            return true;
        };
        let writing = self.changes.write_to(&switch.turn).await;
        if self.open().is_err() {
            return true;
        }
        let asked = switch.asked();
        let client = writing.client(&client);
        let attempt = switch.catch_up(&client, &self.desired()).await;
        drop(writing);
        if let Err(error) = &attempt {
            tracing::warn!(switch = switch.name(), %error, "not as desired yet; retrying");
        }
        switch.attempted(asked, &attempt);
        self.note_ready();
        match attempt.is_ok() {
            true => self.retry_waiting(),
            // Only some jobs' entries may have been refused.
            false => self.finish_waiting(),
        }
        attempt.is_ok()
    }

    /// Notes which jobs are ready: all of their switches have all of their entries.
    pub(super) fn note_ready(&self) {
        let mut registry = self.registry();
        for record in registry.unready() {
            let (id, plan) = (record.job.id, &record.plan);
            let has = |at: &SwitchId| {
                self.switches[at.0]
                    .condition(id, plan, record.planned_at)
                    .is_none()
            };
            record.is_ready = plan.keys().all(has);
        }
        drop(registry);
        self.switches_changed.send_replace(());
    }

    #[tracing::instrument(name = "restore", skip_all, fields(switch = switch.name()))]
    async fn restore(
        &self,
        switch: &ManagedSwitch,
        client: SwitchClient,
    ) -> Result<(), BringUpError> {
        // Without the right to write: loading a program may take a minute.
        let mut found = switch.load(&client, &self.desired()).await?;
        let _writing = loop {
            let writing = self.changes.write_to(&switch.turn).await;
            let with_deadline = writing.client(&client);
            match switch.come_up(&with_deadline, found, &self.desired()).await {
                // A reroute interrupted this, the switch is healthy. It may have some of its
                // entries by now.
                Err(error) if error.is_given_up() => found = Found::OurProgram,
                come_up => {
                    come_up?;
                    break writing;
                }
            }
        };
        switch.is_up(client);
        // The desired state may have changed while the switch was away.
        switch.wake();
        self.listen(switch);
        tracing::info!(switch = switch.name(), "switch reconnected");
        self.note_ready();
        self.retry_waiting();
        Ok(())
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
        let of = |(switch, health): (&ManagedSwitch, _)| {
            let here = registry
                .iter()
                .filter(|record| record.plan.contains_key(&switch.id));
            let jobs = here.map(|record| record.job.name.clone()).collect();
            SwitchState {
                id: switch.id,
                problem: switch.client().err(),
                health,
                dirty: switch.is_dirty(),
                jobs,
            }
        };
        self.switches.iter().zip(health).map(of).collect()
    }

    /// The connection to a switch, or why there is none.
    pub(super) fn client(&self, id: SwitchId) -> Result<Arc<SwitchClient>, String> {
        self.switches[id.0].client()
    }

    /// A job in its current epoch, with its next one, and what its switches have of it.
    pub(super) fn state_of(&self, registry: &Registry, record: &Record) -> JobState {
        let (id, plan) = (record.job.id, &record.plan);
        let conditions = plan
            .keys()
            .filter_map(|at| self.switches[at.0].condition(id, plan, record.planned_at));
        let standing = JobStanding {
            is_ready: record.is_ready,
            conditions: conditions.collect(),
        };
        JobState {
            standing: Some(standing),
            ..state_of(registry, record)
        }
    }

    pub(super) fn registry(&self) -> MutexGuard<'_, Registry> {
        lock(&self.registry)
    }
}

/// When a failed attempt to write to a switch is repeated.
#[derive(Clone, Copy, Default)]
struct Retry(Option<(Instant, Duration)>);

impl Retry {
    /// The first pause. It doubles with each failure in sequence.
    const FIRST: Duration = Duration::from_millis(20);

    /// Returns when an attempt is due; never after a success.
    async fn due(self) {
        match self.0 {
            Some((at, _)) => sleep_until(at).await,
            None => std::future::pending().await,
        }
    }

    /// After an attempt; `most` is the longest pause.
    fn after(self, is_current: bool, most: Duration) -> Self {
        let pause = self.0.map_or(Self::FIRST, |(_, pause)| 2 * pause);
        let pause = pause.min(most);
        Retry((!is_current).then(|| (Instant::now() + pause, pause)))
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
        suspected: record.suspicion.since().keys().copied().collect(),
        first_operation: first.unwrap_or_default(),
        unchanged: record.unchanged.clone(),
        standing: None,
        next: None,
    }
}

pub(super) fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    // No thread panics while it holds the lock, and every change is complete.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
