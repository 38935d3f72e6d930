//! What the controller does, whoever asks.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use futures_util::future::{join_all, try_join_all};
use tokio::sync::{Mutex as AsyncMutex, MutexGuard as AsyncMutexGuard, Notify, mpsc};
use tokio::task::JoinHandle;
use ultima_p4::names::loss;
use ultima_p4runtime::names::Digest;
use ultima_p4runtime::v1::DigestList;

use super::attendants::Attendants;
use super::check::PastCheck;
use super::condition::Condition;
use super::counters::{Cells, Counted};
use super::error::{BringUpError, JobRequestError, ServeError};
use super::keeper::SeatKeeper;
use super::losses::{Losses, Told};
use super::registry::{Record, Registry};
use super::seats::{NoSeat, Seat};
use super::switch::{Desired, ManagedSwitch};
use super::{Config, counters};
use crate::api;
use crate::fabric::{Fabric, Part, SwitchId, SwitchPort};
use crate::install::{self, Clients, InstallError, Prepared, WrittenOn};
use crate::job::{Job, JobId, JobSpec, Member, Rank};
use crate::p4rt::SwitchClient;
use crate::plan::{self, CounterCell, JobPlan, SchemaError, SwitchPlan};
use crate::program::Program;
use crate::reconcile::Diff;
use crate::routing::{self, Routes};
use crate::store::{JobRecord, SeatRecord, Store, StoreError};
use crate::telemetry::OperationLoss;

/// A fabric, its switches and its jobs.
pub struct Controller {
    pub(super) fabric: Arc<Fabric>,
    program: Program,
    pub(super) switches: Vec<ManagedSwitch>,
    audit_every: Duration,
    repair: bool,
    /// Held while what switches should hold is changed: one job at a time, and no switch comes
    /// back in between.
    pub(super) changes: AsyncMutex<()>,
    registry: Arc<Mutex<Registry>>,
    /// What of the fabric is down, and since when.
    pub(super) condition: Mutex<Condition>,
    /// That something has changed that trees and routes depend on.
    pub(super) news: Notify,
    store: Arc<Store>,
    pub(super) seats: SeatKeeper,
    /// Whether it is being stopped: what it still holds is not to be changed any more.
    closed: AtomicBool,
    pub(super) attendants: Attendants,
    /// The last check. Held during one: two at once would count each other's packets.
    pub(super) checks: AsyncMutex<Option<PastCheck>>,
    keepers: Mutex<Vec<JoinHandle<()>>>,
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
    /// Members that some others cannot reach.
    pub cut_off: Vec<Rank>,
    /// Why it was not moved off what is down or drained, on one line.
    pub stays: Option<String>,
}

/// A switch and how we stand with it.
#[derive(Clone, Debug)]
pub struct SwitchState {
    /// The switch.
    pub id: SwitchId,
    /// Why the controller is not connected to it, on one line.
    pub problem: Option<String>,
    /// What of it is not in use, and why, on one line.
    pub health: Option<String>,
    /// The jobs installed on it, by name.
    pub jobs: Vec<String>,
}

impl Controller {
    /// Brings up every switch and keeps them up.
    pub(super) async fn start(config: Config) -> Result<Arc<Self>, ServeError> {
        let Config {
            fabric,
            program,
            patience,
            election_id,
            audit_every,
            repair,
            state,
            terms,
            ..
        } = config;
        let store = match &state {
            Some(path) => Store::open(path)?,
            None => Store::in_memory()?,
        };
        let stored = store.read()?;
        let condition = Condition::new(&fabric, terms, &stored.drained);
        let routes = Routes::new(&fabric, condition.health());
        for id in fabric.switch_ids() {
            plan::check_fabric(&fabric, &routes, program.names(), id)?;
        }
        let registry = Registry::restore(&fabric, routes, program.names(), &stored)?;
        // What the fabric as it is now made of them is what is promised from now on.
        let mut records = registry.records(&fabric);
        records.retain(|record| !stored.jobs.contains(record));
        store.update(&records)?;
        let (fabric, store) = (Arc::new(fabric), Arc::new(store));
        let registry = Arc::new(Mutex::new(registry));
        let seats = SeatKeeper::new(
            Arc::clone(&fabric),
            Arc::clone(&registry),
            Arc::clone(&store),
        );
        let switches = fabric
            .switch_ids()
            .map(|id| ManagedSwitch::new(&fabric, id, election_id));
        let controller = Arc::new(Controller {
            switches: switches.collect(),
            fabric,
            program,
            audit_every,
            repair,
            changes: AsyncMutex::new(()),
            condition: Mutex::new(condition),
            news: Notify::new(),
            seats,
            registry,
            store,
            closed: AtomicBool::new(false),
            attendants: Attendants::default(),
            checks: AsyncMutex::default(),
            keepers: Mutex::default(),
        });
        let desired = controller.desired();
        try_join_all(controller.switches.iter().map(|switch| async {
            match switch.connect(patience).await {
                Ok(client) => switch.bring_up(client, &desired).await,
                // Its jobs' other switches need their controller back: this one is waited for.
                Err(error) if !desired.wanted.jobs.is_empty() && error.is_silence() => {
                    tracing::warn!(%error, "going on without it");
                    Ok(())
                }
                Err(error) => Err(error),
            }
        }))
        .await?;
        drop(desired);
        for switch in &controller.switches {
            controller.listen(switch);
        }
        let keepers = controller.fabric.switch_ids().map(|id| {
            let controller = Arc::clone(&controller);
            tokio::spawn(async move { controller.keep_up(id).await })
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
        Ok(controller)
    }

    /// Ends what runs in the background. The switches keep what they have.
    pub(super) fn close(&self) {
        let mut keepers = self.keepers.lock().unwrap_or_else(PoisonError::into_inner);
        keepers.drain(..).for_each(|keeper| keeper.abort());
        self.closed.store(true, Ordering::Release);
        self.registry().end_waiting();
        self.attendants.clear();
    }

    /// Whenever a switch is lost, waits for it and gives it back what it should hold; and looks at it from time to time.
    async fn keep_up(&self, id: SwitchId) {
        let switch = &self.switches[id.0];
        loop {
            tokio::select! {
                is_silent = switch.lost() => if is_silent { self.see(Part::Transit(id), false) },
                () = tokio::time::sleep(self.audit_every) => {
                    self.audit_one(switch).await;
                    continue;
                }
            }
            let silent = || self.see(Part::Transit(id), false);
            let client = switch.reconnect(silent).await;
            match self.restore(switch, client).await {
                Ok(()) => self.see(Part::Transit(id), true),
                Err(error) => switch.failed(&error).await,
            }
        }
    }

    async fn restore(
        &self,
        switch: &ManagedSwitch,
        client: SwitchClient,
    ) -> Result<(), BringUpError> {
        let _changes = self.changes.lock().await;
        switch.bring_up(client, &self.desired()).await?;
        self.listen(switch);
        tracing::info!(switch = switch.name(), "back");
        Ok(())
    }

    /// Keeps what a switch tells of losses as long as the connection stands.
    fn listen(&self, switch: &ManagedSwitch) {
        let digest = self.program.names().digest(loss::DIGEST);
        let lists = switch.client().ok().and_then(|client| client.digests());
        if let (Ok(digest), Some(lists)) = (digest, lists) {
            let registry = Arc::clone(&self.registry);
            tokio::spawn(collect(registry, switch.id, digest.clone(), lists));
        }
    }

    fn desired(&self) -> Desired<'_> {
        Desired {
            fabric: &self.fabric,
            program: &self.program,
            repair: self.repair,
            wanted: self.registry().wanted(),
        }
    }

    /// Makes these switches divide their ports among all installed jobs and, where one is given, one more. Every switch is
    /// asked; the first that fails is told.
    async fn divide(&self, clients: &Clients, more: Option<&Job>) -> Result<(), BringUpError> {
        let installed = self.registry().jobs();
        let jobs = || installed.iter().map(|job| &**job).chain(more);
        let divided = join_all(clients.iter().map(|(id, client)| {
            let division = plan::divide(&self.fabric, *id, jobs());
            self.switches[id.0].divide(client, self.program.names(), division)
        }));
        divided.await.into_iter().collect()
    }

    /// As [`divide`](Self::divide) among the installed jobs, where nobody can do anything about a switch that fails: it is asked
    /// again with the next change, or when it is back.
    pub(super) async fn divide_again(&self, clients: &Clients) {
        if let Err(error) = self.divide(clients, None).await {
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

    pub(super) fn program(&self) -> &Program {
        &self.program
    }

    /// What a job needs on its switches; none if it is gone.
    pub(super) fn plan_of(&self, id: JobId) -> Option<Arc<JobPlan>> {
        let registry = self.registry();
        registry.get(id).map(|record| Arc::clone(&record.plan))
    }

    /// Whether a member may attend: it has joined in that epoch. Returns its job and rank.
    ///
    /// # Errors
    /// There is no such job, or the rank has not joined.
    pub fn joined(
        &self,
        name: &str,
        epoch: u32,
        rank: u32,
    ) -> Result<(Arc<Job>, Rank), JobRequestError> {
        let registry = self.registry();
        let record = registry.named(name)?;
        let joined = u16::try_from(rank).ok().map(Rank).filter(|rank| {
            let seat = record.seats.states().nth(rank.0.into());
            u32::from(record.job.epoch.0) == epoch && seat == Some(Seat::Joined)
        });
        let not_joined = || JobRequestError::NotJoined {
            name: name.to_owned(),
            rank,
            epoch,
        };
        Ok((Arc::clone(&record.job), joined.ok_or_else(not_joined)?))
    }

    /// The right to change what switches should hold; none of a controller that is being stopped.
    pub(super) async fn change(&self) -> Result<AsyncMutexGuard<'_, ()>, JobRequestError> {
        let changes = self.changes.lock().await;
        self.open().map(|()| changes)
    }

    fn open(&self) -> Result<(), JobRequestError> {
        match self.closed.load(Ordering::Acquire) {
            false => Ok(()),
            true => Err(JobRequestError::Stopping),
        }
    }

    /// Creates a job: on all switches that it needs, or on none.
    ///
    /// # Errors
    /// See [`JobRequestError`].
    pub async fn create_job(&self, spec: &JobSpec) -> Result<JobState, JobRequestError> {
        let name = || spec.name.clone();
        let _changes = self.change().await?;
        let names = self.program.names();
        let (job, plan) = self.registry().propose(&self.fabric, names, spec)?;

        let clients = self.clients(plan.keys())?;
        self.mend(&clients).await?;
        // First, so that it takes nothing of the others' parts, and meets no meter of an earlier job.
        if let Err(error) = self.divide(&clients, Some(&job)).await {
            self.divide_again(&clients).await;
            return Err(JobRequestError::Divide {
                name: name(),
                error: Box::new(error),
            });
        }
        if let Err(error) = install::install(&clients, names, &plan).await {
            self.divide_again(&clients).await;
            if let InstallError::Stopped { undone, .. } = &error {
                self.doubt(&undone.left);
            }
            return Err(JobRequestError::Install {
                name: name(),
                error: Box::new(error),
            });
        }
        let record = JobRecord::new(
            &self.fabric,
            &job,
            job.members.iter().map(|_| SeatRecord::Free),
        );
        if let Err(error) = self.keep(move |store| store.put(&record)).await {
            let written = self.written(&plan);
            let pending = install::remove(&clients, written).await;
            self.doubt(&pending);
            self.divide_again(&clients).await;
            return Err(JobRequestError::Store {
                name: name(),
                error,
            });
        }
        tracing::info!(
            job = job.name,
            id = job.id.0,
            switches = plan.len(),
            "job created"
        );
        Ok(state_of(self.registry().add(&self.fabric, job, plan)))
    }

    /// All jobs, by id.
    pub fn jobs(&self) -> Vec<JobState> {
        self.registry().iter().map(state_of).collect()
    }

    /// One job.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn job(&self, name: &str) -> Result<JobState, JobRequestError> {
        self.registry().named(name).map(state_of)
    }

    /// Deletes a job; returns the switches on which something of it is left until they are back.
    ///
    /// # Errors
    /// There is none of that name.
    pub async fn delete_job(&self, name: &str) -> Result<Vec<SwitchId>, JobRequestError> {
        let _changes = self.change().await?;
        let (id, plan) = {
            let registry = self.registry();
            let record = registry.named(name)?;
            (record.job.id, Arc::clone(&record.plan))
        };
        let kept = self.keep(move |store| store.remove(id)).await;
        kept.map_err(|error| JobRequestError::Store {
            name: name.to_owned(),
            error,
        })?;
        let written = self.written(&plan);
        let reachable = |id: &SwitchId| Some((*id, self.switches[id.0].client().ok()?));
        let clients: Clients = plan.keys().filter_map(reachable).collect();
        let pending = install::remove(&clients, written).await;
        self.doubt(&pending);
        self.registry().remove(&self.fabric, id);
        self.divide_again(&clients).await;
        self.attendants.end(id);
        // There may be room now for one that could not move.
        self.news.notify_one();
        tracing::info!(job = name, "job deleted");
        Ok(pending)
    }

    /// What is on switches of a plan that was installed.
    fn written(&self, plan: &JobPlan) -> WrittenOn {
        let names = self.program.names();
        let of = |(id, plan): (&SwitchId, &SwitchPlan)| {
            let entities = Prepared::all(plan.entities(), names);
            (
                *id,
                entities.expect("what was installed could be translated"),
            )
        };
        plan.iter().map(of).collect()
    }

    /// Changes what is kept, off the threads that others wait for.
    pub(super) async fn keep(
        &self,
        change: impl FnOnce(&Store) -> Result<(), StoreError> + Send + 'static,
    ) -> Result<(), StoreError> {
        let store = Arc::clone(&self.store);
        let changed = tokio::task::spawn_blocking(move || change(&store));
        changed
            .await
            .expect("the store does not panic, and nobody cancels it")
    }

    /// Takes the next free rank of a job on a host, and with `wait` waits that long for all others
    /// to join. Whoever stops waiting has not joined.
    ///
    /// # Errors
    /// See [`JobRequestError`].
    pub async fn join(
        &self,
        name: &str,
        host: &str,
        wait: Option<Duration>,
    ) -> Result<(Rank, JobState), JobRequestError> {
        self.open()?;
        let host_id = self
            .fabric
            .host_named(host)
            .ok_or_else(|| JobRequestError::NoHost {
                host: host.to_owned(),
            })?;
        let (joining, mut complete) = {
            let mut registry = self.registry();
            let record = registry.named_mut(name)?;
            let rank = record
                .seats
                .take(host_id)
                .map_err(|refusal| match refusal {
                    NoSeat::NotAMember => JobRequestError::NotAMember {
                        name: name.to_owned(),
                        host: host.to_owned(),
                        hosts: self.hosts_of(&record.job),
                    },
                    NoSeat::Taken { ranks } => JobRequestError::Taken {
                        name: name.to_owned(),
                        host: host.to_owned(),
                        ranks,
                    },
                })?;
            let joining = Joining {
                controller: self,
                job: record.job.id,
                rank,
                joined: false,
            };
            (joining, record.seats.complete())
        };
        if let Some(wait) = wait {
            let all = async { complete.wait_for(|complete| *complete).await.map(|_| ()) };
            let waited = tokio::time::timeout(wait, all).await;
            match waited {
                Ok(Ok(())) => {}
                Ok(Err(_)) => {
                    self.open()?;
                    return Err(JobRequestError::Deleted {
                        name: name.to_owned(),
                    });
                }
                // The last may have come just now.
                Err(_) if *complete.borrow() => {}
                Err(_) => return Err(self.missing(name, wait)),
            }
        }
        // By id: another job may have got the name by now.
        let state = self.registry().get_mut(joining.job).map(|record| {
            record.seats.join(joining.rank);
            state_of(record)
        });
        let state = state.ok_or_else(|| JobRequestError::Deleted {
            name: name.to_owned(),
        })?;
        self.seats.keep(joining.job).await?;
        Ok((joining.done(), state))
    }

    /// A member gives its rank up.
    ///
    /// # Errors
    /// There is no such job, or the rank has not joined in that epoch.
    pub async fn leave(&self, name: &str, epoch: u32, rank: u32) -> Result<(), JobRequestError> {
        let left = {
            let mut registry = self.registry();
            let record = registry.named_mut(name)?;
            let job = record.job.id;
            match u16::try_from(rank).map(Rank) {
                Ok(rank) if u32::from(record.job.epoch.0) == epoch && record.seats.leave(rank) => {
                    self.attendants.remove(job, rank);
                    Some(job)
                }
                _ => None,
            }
        };
        match left {
            Some(job) => self.seats.keep(job).await,
            None => Err(JobRequestError::NotJoined {
                name: name.to_owned(),
                rank,
                epoch,
            }),
        }
    }

    /// What the job's switches have counted for it.
    ///
    /// # Errors
    /// There is no such job.
    pub async fn counters(&self, name: &str) -> Result<Vec<api::SwitchCounters>, JobRequestError> {
        let JobState { job, switches, .. } = self.job(name)?;
        let of_switches = try_join_all(switches.iter().map(|id| async {
            let name = &self.fabric.switch(*id).name;
            let read = self.read(*id, CounterCell::of_job(job.counter)).await?;
            Ok::<_, SchemaError>(match read {
                Ok(counted) => counted.of_job(name, job.counter),
                Err(problem) => counters::away(name, problem),
            })
        }));
        Ok(of_switches.await?)
    }

    /// What the job's switches have counted for it, by port and by source too, and the lossy operations that they
    /// have told of.
    ///
    /// # Errors
    /// There is no such job.
    pub async fn telemetry(
        &self,
        name: &str,
    ) -> Result<(Vec<api::SwitchTelemetry>, Losses), JobRequestError> {
        let (JobState { job, switches, .. }, plan) = {
            let registry = self.registry();
            let record = registry.named(name)?;
            (state_of(record), Arc::clone(&record.plan))
        };
        let of_switches = try_join_all(
            switches
                .iter()
                .map(|id| self.telemetry_of(*id, &job, plan.get(id))),
        );
        let of_switches = of_switches.await?;
        // By id: another job may have got the name by now.
        let losses = self
            .registry()
            .get(job.id)
            .map(|record| record.losses.clone());
        Ok((of_switches, losses.unwrap_or_default()))
    }

    async fn telemetry_of(
        &self,
        id: SwitchId,
        job: &Job,
        plan: Option<&SwitchPlan>,
    ) -> Result<api::SwitchTelemetry, SchemaError> {
        let shares = || job.shares.iter().filter(|(at, _)| at.switch == id);
        let sources = || {
            let here = |((_, member), _): &((_, &Member), _)| {
                self.fabric.host(member.host).attached.switch == id
            };
            job.ranks().zip(&job.sources).filter(here)
        };
        let cells = CounterCell::of_job(job.counter)
            .chain(shares().flat_map(|(_, share)| CounterCell::of_share(*share)))
            .chain(sources().flat_map(|(_, source)| CounterCell::of_source(*source)));
        let name = &self.fabric.switch(id).name;
        let counted = match self.read(id, cells).await? {
            Ok(counted) => counted,
            Err(problem) => {
                return Ok(api::SwitchTelemetry {
                    counters: Some(counters::away(name, problem)),
                    ..api::SwitchTelemetry::default()
                });
            }
        };

        let client = self.client(id);
        let counters = counted.of_job(name, job.counter);
        let replicas = plan.map_or(0, |plan| plan.replicas() as u64);
        Ok(api::SwitchTelemetry {
            tail_dropped: counters::tail_dropped(&counters, replicas),
            counters: Some(counters),
            ports: shares()
                .map(|(at, share)| counted.of_share(at.port.0.into(), self.peer_of(*at), *share))
                .collect(),
            sources: sources()
                .map(|((rank, _), source)| counted.of_source(rank.0.into(), *source))
                .collect(),
            digest_lists_dropped: client.map_or(0, |client| client.digest_lists_dropped()),
        })
    }

    /// What a port is linked to, by name.
    fn peer_of(&self, port: SwitchPort) -> String {
        let host = self
            .fabric
            .hosts()
            .iter()
            .find(|host| host.attached == port);
        match (host, self.fabric.across(port)) {
            (Some(host), _) => host.name.clone(),
            (None, Some(far)) => self.fabric.switch(far.switch).name.clone(),
            (None, None) => String::new(),
        }
    }

    /// What a switch has counted in these cells, or why it does not say.
    async fn read(
        &self,
        id: SwitchId,
        cells: impl Iterator<Item = CounterCell>,
    ) -> Result<Result<Counted, String>, SchemaError> {
        let cells = Cells::new(self.program.names(), cells)?;
        Ok(match self.client(id) {
            Ok(client) => (cells.read(&client).await).map_err(|error| error.to_string()),
            Err(problem) => Err(problem),
        })
    }

    /// All switches, in the fabric's order.
    pub fn switches(&self) -> Vec<SwitchState> {
        let registry = self.registry();
        let of = |switch: &ManagedSwitch| {
            let here = registry
                .iter()
                .filter(|record| record.plan.contains_key(&switch.id));
            let jobs = here.map(|record| record.job.name.clone()).collect();
            SwitchState {
                id: switch.id,
                problem: switch.client().err(),
                health: self.condition().of(&self.fabric, switch.id),
                jobs,
            }
        };
        self.switches.iter().map(of).collect()
    }

    /// The connection to a switch, or why there is none.
    pub(super) fn client(&self, id: SwitchId) -> Result<Arc<SwitchClient>, String> {
        self.switches[id.0].client()
    }

    fn clients<'a>(
        &self,
        switches: impl IntoIterator<Item = &'a SwitchId>,
    ) -> Result<Clients, JobRequestError> {
        let client = |id: &SwitchId| {
            let switch = &self.switches[id.0];
            let client = switch
                .client()
                .map_err(|problem| JobRequestError::NotConnected {
                    switch: switch.name().to_owned(),
                    problem,
                });
            Ok((*id, client?))
        };
        switches
            .into_iter()
            .map(client)
            .collect::<Result<BTreeMap<_, _>, _>>()
    }

    /// Looks at those of these switches that may hold something else than they should, before they get more.
    async fn mend(&self, clients: &Clients) -> Result<(), JobRequestError> {
        for (id, client) in clients {
            let switch = &self.switches[id.0];
            if switch.is_in_doubt() {
                let mended = self.reconcile(switch, client).await;
                mended.map_err(|error| JobRequestError::InDoubt {
                    switch: switch.name().to_owned(),
                    error: Box::new(error),
                })?;
            }
        }
        Ok(())
    }

    /// Makes a switch hold what it should; returns what was not so. The caller holds `changes`.
    pub(super) async fn reconcile(
        &self,
        switch: &ManagedSwitch,
        client: &SwitchClient,
    ) -> Result<Diff, BringUpError> {
        switch.reconcile(client, &self.desired()).await
    }

    /// In what each switch is not as it should be, or why that cannot be said. With `mend` it is put right.
    pub async fn audit(&self, mend: bool) -> Vec<(SwitchId, Result<Diff, String>)> {
        let _changes = match self.change().await {
            Ok(changes) => changes,
            Err(error) => {
                let ids = self.fabric.switch_ids();
                return ids.map(|id| (id, Err(error.to_string()))).collect();
            }
        };
        let desired = self.desired();
        join_all(self.switches.iter().map(|switch| async {
            let audited = async {
                let client = switch.client()?;
                let diff = match mend {
                    true => switch.reconcile(&client, &desired).await,
                    false => switch.diff(&client, &desired).await,
                };
                diff.map_err(|error| error.to_string())
            };
            (switch.id, audited.await)
        }))
        .await
    }

    /// Looks at one switch, as the time for it has come.
    async fn audit_one(&self, switch: &ManagedSwitch) {
        let Ok(client) = switch.client() else { return };
        let looked = async {
            // A switch that answers slowly keeps nobody from anything, as long as it is as it should be.
            let diff = switch.diff(&client, &self.desired()).await?;
            if diff.is_empty() && !switch.is_in_doubt() {
                return Ok(());
            }
            let _changes = self.changes.lock().await;
            switch.look(&client, &self.desired()).await
        };
        if let Err(error) = looked.await {
            tracing::warn!(switch = switch.name(), %error, "not put right");
        }
    }

    fn doubt(&self, switches: &[SwitchId]) {
        switches.iter().for_each(|id| self.switches[id.0].doubt());
    }

    pub(super) fn registry(&self) -> MutexGuard<'_, Registry> {
        lock(&self.registry)
    }

    /// The hosts of a job's members, each once, in rank order.
    fn hosts_of(&self, job: &Job) -> String {
        let mut hosts: Vec<&str> = Vec::new();
        for member in &job.members {
            let host = self.fabric.host(member.host).name.as_str();
            if !hosts.contains(&host) {
                hosts.push(host);
            }
        }
        hosts.join(", ")
    }

    /// Who has not joined.
    fn missing(&self, name: &str, waited: Duration) -> JobRequestError {
        let registry = self.registry();
        let Ok(Record { job, seats, .. }) = registry.named(name) else {
            return JobRequestError::Deleted {
                name: name.to_owned(),
            };
        };
        let free: Vec<Rank> = seats.free().collect();
        let host = |rank: &Rank| &self.fabric.host(job.members[usize::from(rank.0)].host).name;
        let missing: Vec<String> = free
            .iter()
            .map(|rank| format!("rank {rank} on {}", host(rank)))
            .collect();
        JobRequestError::Missing {
            name: name.to_owned(),
            waited,
            members: job.members.len(),
            count: free.len(),
            missing: missing.join(", "),
        }
    }
}

/// A rank that is taken but not yet known to its member. Dropped before [`done`](Self::done), as
/// when the member's call ends, it is free again, unless all have joined.
struct Joining<'a> {
    controller: &'a Controller,
    job: JobId,
    rank: Rank,
    joined: bool,
}

impl Joining<'_> {
    fn done(mut self) -> Rank {
        self.joined = true;
        self.rank
    }
}

impl Drop for Joining<'_> {
    fn drop(&mut self) {
        if self.joined {
            return;
        }
        if let Some(record) = self.controller.registry().get_mut(self.job) {
            record.seats.give_up(self.rank);
        }
        self.controller.seats.keep_later(self.job);
    }
}

fn state_of(record: &Record) -> JobState {
    JobState {
        job: Arc::clone(&record.job),
        switches: record.plan.keys().copied().collect(),
        seats: record.seats.states().collect(),
        cut_off: record.cut_off.clone(),
        stays: record.stays.as_ref().map(ToString::to_string),
    }
}

fn lock(registry: &Mutex<Registry>) -> MutexGuard<'_, Registry> {
    // Nothing panics while it holds the lock, and no change has a half.
    registry.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps what `lists` of a switch bring of `digest`, until they end.
async fn collect(
    registry: Arc<Mutex<Registry>>,
    switch: SwitchId,
    digest: Digest,
    mut lists: mpsc::Receiver<DigestList>,
) {
    while let Some(list) = lists.recv().await {
        if list.digest_id != digest.id {
            continue;
        }
        let at = SystemTime::now();
        for message in &list.data {
            match OperationLoss::read(&digest, message) {
                Ok(loss) => {
                    if !lock(&registry).told(Told { switch, at, loss }) {
                        tracing::debug!(switch = switch.0, job = loss.job.0, "a loss of no job");
                    }
                }
                Err(error) => tracing::warn!(switch = switch.0, %error, "a digest is not ours"),
            }
        }
    }
}
