//! What the controller does, whoever asks.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use tokio::sync::{Mutex as AsyncMutex, Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::Config;
use super::attendants::Attendants;
use super::changes::{ChangeLock, Changes};
use super::check::PastCheck;
use super::condition::{Condition, PartState};
use super::error::{BringUpError, JobRequestError, ServeError};
use super::journal::{Journal, Lead};
use super::keeper::SeatKeeper;
use super::membership::Events;
use super::registry::{Record, Registry};
use super::seats::Seat;
use super::start::{self, Needs};
use super::streams::Places;
use super::switch::{Desired, Found, Lost, ManagedSwitch, is_most};
use super::telemetry::READS;
use super::telling::Telling;
use super::{service_telemetry, service_watch};
use crate::fabric::blackhole::Blackholes;
use crate::fabric::{Fabric, Part, SwitchId};
use crate::install::Clients;
use crate::job::{Job, JobId, Rank};
use crate::metrics::Metrics;
use crate::p4rt::SwitchClient;
use crate::plan::{self, JobPlan};
use crate::program::Program;
use crate::routing::{self, Routes};
use crate::store::{Change, JobRecord, Store, StoreError, Stored};

/// The pause after a panic.
pub(super) const STUMBLED: Duration = Duration::from_secs(1);

/// A fabric, its switches and its jobs.
pub struct Controller {
    pub(super) fabric: Arc<Fabric>,
    program: Program,
    pub(super) switches: Arc<[ManagedSwitch]>,
    audit_every: Duration,
    pub(super) repair: bool,
    /// Bits per second at which each rank sends unless its agent chooses a rate.
    pub(super) agent_rate: Option<u64>,
    pub(super) changes: ChangeLock,
    pub(super) registry: Arc<Mutex<Registry>>,
    /// What of the fabric is down, and since when.
    pub(super) condition: Mutex<Condition>,
    /// That something has changed that trees and routes depend on.
    pub(super) news: watch::Sender<()>,
    pub(super) journal: Arc<Journal>,
    pub(super) seats: SeatKeeper,
    /// Whether it is being stopped: what it still holds is not to be changed any more.
    closed: watch::Sender<bool>,
    pub(super) attendants: Arc<Attendants>,
    /// Room for what members are told of changes.
    pub(super) telling: Telling,
    pub(super) events: Events,
    /// The last check. Held during one: two at once would count each other's packets.
    pub(super) checks: AsyncMutex<Option<PastCheck>>,
    /// Places for those who watch jobs.
    pub(super) job_watches: Places,
    /// Places for those who watch telemetry.
    pub(super) telemetry_watches: Places,
    /// Room for jobs whose counts are read at the same time.
    pub(super) telemetry_reads: Semaphore,
    /// What links between switches are seen to lose.
    pub(super) blackholes: Mutex<Blackholes>,
    keepers: Mutex<Vec<JoinHandle<()>>>,
    pub(super) metrics: Metrics,
}

/// A job and how its members stand.
#[derive(Clone, Debug)]
pub struct JobState {
    /// The job.
    pub job: Arc<Job>,
    /// The switches that it is installed on.
    pub switches: Vec<SwitchId>,
    /// Its members' seats, by rank.
    pub(super) seats: Vec<Seat>,
    /// Members that some others cannot reach, in rank order.
    pub cut_off: Vec<Rank>,
    /// Why it was not moved off what is down or drained, on one line.
    pub stays: Option<String>,
    /// Members that are suspected, in rank order.
    pub suspected: Vec<Rank>,
    /// The first operation of the epoch.
    pub first_operation: u32,
    /// Why its members are the same although they should be others, on one line.
    pub unchanged: Option<String>,
    /// The epoch that comes.
    pub next: Option<Box<JobState>>,
}

/// A switch and how we stand with it.
#[derive(Clone, Debug)]
pub struct SwitchState {
    /// The switch.
    pub id: SwitchId,
    /// Why the controller is not connected to it, on one line.
    pub problem: Option<String>,
    /// What of it is not in use.
    pub health: Vec<PartState>,
    /// Whether it may hold something else than it should.
    pub in_doubt: bool,
    /// The jobs installed on it, by name.
    pub jobs: Vec<String>,
}

impl Controller {
    /// Brings up every switch and keeps them up. Who leads only by majority needs no more than that.
    pub(super) async fn start(
        config: Config,
        store: Arc<Store>,
        lead: Lead,
    ) -> Result<Arc<Self>, ServeError> {
        let Config {
            fabric,
            program,
            patience,
            audit_every,
            repair,
            agent_rate,
            terms,
            ..
        } = config;
        let stored = store.read()?;
        let mut condition = Condition::new(&fabric, terms, &stored.drained);
        let routes = Routes::new(&fabric, condition.health());
        for id in fabric.switch_ids() {
            plan::check_fabric(&fabric, &routes, &program, id)?;
            if let Some(said) = plan::uncut(&fabric, program.names(), id) {
                tracing::warn!("{said}");
            }
        }
        let election_id = lead.term.election_id();
        let by_majority = lead.by_majority;
        let metrics = Metrics::default();
        let switches: Arc<[ManagedSwitch]> = (fabric.switch_ids())
            .map(|id| ManagedSwitch::new(&fabric, id, election_id, &metrics))
            .collect();
        let needs = match by_majority {
            true => Needs::Most,
            // Whoever starts the first controller of a fabric sees what is wrong with it. A later one has jobs that need it, or had.
            false if stored.is_new() => Needs::All,
            false => Needs::Any,
        };
        let clients = start::connect(&switches, needs, patience, &mut condition).await?;
        let routes = Routes::new(&fabric, condition.health());
        let registry = Registry::restore(&fabric, routes, program.names(), &stored)?;
        let mut records = registry.records(&fabric);
        let known: BTreeMap<u16, &JobRecord> = (stored.jobs.iter()).map(|it| (it.id, it)).collect();
        records.retain(|record| known.get(&record.id) != Some(&record));
        let (fabric, registry) = (Arc::new(fabric), Arc::new(Mutex::new(registry)));
        let journal = {
            let switches = Arc::clone(&switches);
            let leads = move || !by_majority || is_most(&switches);
            Arc::new(Journal::new(store, lead, leads))
        };
        let seats = SeatKeeper::new(
            Arc::clone(&fabric),
            Arc::clone(&registry),
            Arc::clone(&journal),
        );
        let blackholes = Blackholes::new(&fabric);
        let controller = Arc::new(Controller {
            switches,
            fabric,
            program,
            audit_every,
            repair,
            agent_rate,
            changes: ChangeLock::default(),
            condition: Mutex::new(condition),
            news: watch::Sender::default(),
            seats,
            registry,
            journal,
            closed: watch::Sender::new(false),
            attendants: Arc::default(),
            telling: Telling::default(),
            events: Events::default(),
            checks: AsyncMutex::default(),
            job_watches: Places::new(service_watch::WATCHES, "watch jobs"),
            telemetry_watches: Places::new(service_telemetry::WATCHES, "watch telemetry"),
            telemetry_reads: Semaphore::new(READS),
            blackholes: Mutex::new(blackholes),
            keepers: Mutex::default(),
            metrics,
        });
        // What the fabric as it is now made of them is what is promised from now on; and others' copies say who leads.
        controller.journal.commit(Change::Update(records)).await?;
        controller.bring_up(clients, needs, patience).await?;
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
            tokio::spawn(async move { controller.keep_moving().await })
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

    /// Does something until it has ended, or the controller does.
    pub(super) fn in_background(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut keepers = self.keepers.lock().unwrap_or_else(PoisonError::into_inner);
        keepers.retain(|keeper| !keeper.is_finished());
        if !*self.closed.borrow() {
            keepers.push(tokio::spawn(work));
        }
    }

    /// Ends what runs in the background. The switches keep what they have.
    pub(super) fn close(&self) {
        // First: who is in the middle of something asks before it goes on.
        self.closed.send_replace(true);
        let mut keepers = self.keepers.lock().unwrap_or_else(PoisonError::into_inner);
        keepers.drain(..).for_each(|keeper| keeper.abort());
        self.journal.close();
        for switch in self.switches.iter() {
            switch.disconnect("the controller is being stopped".into());
        }
        self.events.end();
        self.registry().end_waiting();
        self.attendants.clear();
    }

    /// Waits until it is being stopped.
    pub(super) fn stopped(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut closed = self.closed.subscribe();
        async move {
            // One that is not there any more has stopped, too.
            let _ = closed.wait_for(|closed| *closed).await;
        }
    }

    /// [Keeps a switch up](Self::keep_up), whatever that stumbles over.
    async fn keep_up_for_good(self: &Arc<Self>, id: SwitchId) {
        let switch = &self.switches[id.0];
        while AssertUnwindSafe(self.keep_up(id))
            .catch_unwind()
            .await
            .is_err()
        {
            tracing::error!(
                switch = switch.name(),
                "keeping it up has panicked; it is connected to anew"
            );
            switch.doubt();
            switch.disconnect("the controller has stumbled over it".into());
            sleep(self.audit_every.min(STUMBLED)).await;
        }
    }

    /// Whenever a switch is lost, waits for it and gives it back what it should hold; and looks at it from time to time, and when it may have done
    /// what was given up.
    async fn keep_up(self: &Arc<Self>, id: SwitchId) {
        let switch = &self.switches[id.0];
        loop {
            let look = async {
                // Not at all switches at once: a fabric's audits take long together.
                let pause = self.audit_every.mul_f64(rand::random_range(0.5..=1.0));
                tokio::select! {
                    () = sleep(pause) => {}
                    () = switch.is_to_be_looked_at() => {}
                }
                self.audit_one(switch).await;
            };
            tokio::select! {
                lost = switch.lost() => match lost {
                    Lost::Silent => {
                        // It may have been restarted, and then holds nothing.
                        switch.doubt();
                        self.see(Part::Transit(id), false);
                    }
                    Lost::Superseded(term) => self.journal.outrank(term),
                    Lost::Elsewhere => {}
                },
                () = look => continue,
            }
            let failed = |error: &BringUpError| {
                if error.is_silence() {
                    switch.doubt();
                    self.see(Part::Transit(id), false);
                }
                if let Some(term) = error.superseded() {
                    self.journal.outrank(term);
                }
            };
            let client = switch.reconnect(failed).await;
            // What only blinked is there again now, and not when it has been its turn to be looked at.
            let part = Part::Transit(id);
            if !self.condition().is_lost(part) {
                self.see(part, true);
            }
            match self.restore(switch, client).await {
                Ok(()) => {
                    self.see(part, true);
                    self.hear_ports(id);
                }
                Err(error) => {
                    self.see(part, false);
                    switch.failed(&error).await;
                }
            }
        }
    }

    #[tracing::instrument(name = "restore", skip_all, fields(switch = switch.name()))]
    async fn restore(
        &self,
        switch: &ManagedSwitch,
        client: SwitchClient,
    ) -> Result<(), BringUpError> {
        // Others may go on while a chip is reset.
        let mut found = switch.load(&client, &self.desired()).await?;
        let _changes = loop {
            let changes = self.changes.take().await;
            let desired = self.desired();
            let hurried = changes.client(&client);
            match switch.come_up(&hurried, found, &desired).await {
                // Nothing is wrong with it: it is its turn again after the move. Some of what it was to hold may be there by then.
                Err(error) if error.is_given_up() => found = Found::OurProgram,
                come_up => {
                    come_up?;
                    break changes;
                }
            }
        };
        switch.is_up(client);
        self.listen(switch);
        tracing::info!(switch = switch.name(), "back");
        self.try_again();
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

    /// Makes these switches divide their ports among all installed jobs and those that are to come. Every switch is
    /// asked; the first that fails is told.
    pub(super) async fn divide(
        &self,
        clients: &Clients,
        more: &[&Job],
    ) -> Result<(), BringUpError> {
        let divided = join_all(clients.iter().map(|(id, client)| {
            let here = self.registry().jobs_on(*id);
            let jobs = here.iter().map(|job| &**job).chain(more.iter().copied());
            let division = plan::divide(&self.fabric, *id, jobs);
            self.switches[id.0].divide(client, self.program.names(), division)
        }));
        divided.await.into_iter().collect()
    }

    /// As [`divide`](Self::divide) among the installed jobs, where nobody can do anything about a switch that fails: it is asked
    /// again with the next change, or when it is back.
    pub(super) async fn divide_again(&self, clients: &Clients) {
        if let Err(error) = self.divide(clients, &[]).await {
            tracing::warn!(%error, "shares of ports are not as they should be");
        }
    }

    /// The fabric.
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// The routes that its switches have.
    pub(super) fn routes(&self) -> Arc<Routes> {
        Arc::clone(self.registry().routes())
    }

    /// By how many packets what a job's member sends to the group and to another member may overtake each other.
    pub(super) fn reorder(&self, job: &Job) -> u32 {
        routing::reorder(&self.fabric, &self.routes(), job)
    }

    /// What a controller that starts now would know.
    pub(super) fn stored(&self) -> Result<Stored, StoreError> {
        self.journal.read()
    }

    pub(super) fn program(&self) -> &Program {
        &self.program
    }

    /// What a job needs on its switches; none if it is gone.
    pub(super) fn plan_of(&self, id: JobId) -> Option<Arc<JobPlan>> {
        let registry = self.registry();
        registry.get(id).map(|record| Arc::clone(&record.plan))
    }

    /// The right to change what switches should hold, for who promises something; none of a controller that is being stopped, and none while
    /// too few follow to store it.
    pub(super) async fn change(&self) -> Result<Changes<'_>, JobRequestError> {
        // Before: nobody else is to wait for that.
        let followed = self.journal.followed().await;
        followed.map_err(JobRequestError::Unfollowed)?;
        let changes = self.changes.take().await;
        self.open().map(|()| changes)
    }

    pub(super) fn open(&self) -> Result<(), JobRequestError> {
        match (*self.closed.borrow(), self.journal.leads()) {
            (true, _) => Err(JobRequestError::Stopping),
            (false, false) => Err(JobRequestError::NotPrimary),
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
                in_doubt: switch.is_in_doubt(),
                jobs,
            }
        };
        self.switches.iter().zip(health).map(of).collect()
    }

    /// The connection to a switch, or why there is none.
    pub(super) fn client(&self, id: SwitchId) -> Result<Arc<SwitchClient>, String> {
        self.switches[id.0].client()
    }

    pub(super) fn doubt(&self, switches: &[SwitchId]) {
        switches.iter().for_each(|id| self.switches[id.0].doubt());
    }

    pub(super) fn registry(&self) -> MutexGuard<'_, Registry> {
        lock(&self.registry)
    }
}

/// A job in the epoch that it is in, and in the one that comes.
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
        next: None,
    }
}

pub(super) fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it holds the lock, and no change has a half.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
