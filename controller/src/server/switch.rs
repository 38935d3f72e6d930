//! One switch of a running fabric: its connection, what it should hold, and how it comes back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Mutex as AsyncMutex, MutexGuard};
use tokio::time::{Instant, sleep};
use ultima_p4runtime::names::Names;
use ultima_p4runtime::v1::{
    Entity, MulticastGroupEntry, PacketReplicationEngineEntry, Update, entity,
    packet_replication_engine_entry,
};

use super::error::BringUpError;
use super::registry::Wanted;
use crate::fabric::{self, Fabric, SwitchId};
use crate::install::{self, Cause, Prepared};
use crate::job::ShareIndex;
use crate::metrics::Metrics;
use crate::p4rt::{BATCH, Device, Mastership, Order, Strays, SwitchClient, Term, WriteError};
use crate::plan::{self, Division, Entity as Planned, LossSession, MeterCell, VirtualQueue};
use crate::program::Program;
use crate::reconcile::{self, Diff, Held, Room};
use crate::target::{Limits, Target};

/// How long one attempt to reconnect may take.
const RECONNECT: Duration = Duration::from_secs(1);
/// The pause after an attempt that failed.
const PAUSE: Duration = Duration::from_millis(200);
/// The longest of pauses that become longer.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// A switch and how we stand with it.
pub struct ManagedSwitch {
    pub id: SwitchId,
    device: Device,
    target: &'static Target,
    limits: Limits,
    election_id: u128,
    metrics: Metrics,
    state: Mutex<State>,
    /// Held by whoever puts it right in the background.
    putting_right: AsyncMutex<()>,
    /// Held by whoever has its software take its ports.
    giving_ports: AsyncMutex<()>,
    /// Writes that it may do yet.
    strays: Strays,
}

struct State {
    connection: Result<Arc<SwitchClient>, String>,
    /// It may hold what it should not, or lack what it should hold: a write has not come to a known end.
    in_doubt: bool,
    /// In what it was not as it should be when it was last looked at.
    told: BTreeSet<String>,
    /// Meters of shares that are, or may be, configured; none where a write has not come to a known end.
    shares: BTreeMap<ShareIndex, Option<VirtualQueue>>,
}

/// Why a switch is not ours any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// It does not answer, as far as is known.
    Silent,
    /// It works, and answers to somebody else or to nobody.
    Elsewhere,
    /// A controller has led it in a later term.
    Superseded(Term),
}

/// Whether we are primary at more than half of these switches.
pub fn is_most(switches: &[ManagedSwitch]) -> bool {
    let ours = switches.iter().filter(|switch| switch.is_ours());
    ours.count() * 2 > switches.len()
}

/// What every switch gets.
pub struct Desired<'a> {
    pub fabric: &'a Fabric,
    pub program: &'a Program,
    /// Whether what somebody else changed is put right without being asked for.
    pub repair: bool,
    pub wanted: Wanted,
}

impl Desired<'_> {
    /// How the ports of a switch are divided among its jobs.
    pub fn division(&self, id: SwitchId) -> Division {
        plan::divide(self.fabric, id, self.wanted.jobs.iter().map(|job| &**job))
    }

    /// All that a switch should hold, and how its ports are divided in that.
    pub fn on(&self, id: SwitchId) -> Result<(Held, Division), BringUpError> {
        let division = self.division(id);
        let fabric = plan::of_fabric(self.fabric, &self.wanted.routes, id);
        let jobs = self.wanted.plans.iter().filter_map(|plan| plan.get(&id));
        let shares: Vec<Planned> = (division.iter())
            .map(|(at, queue)| Planned::Meter(MeterCell::of_share(*at, Some(*queue))))
            .collect();
        let cuts = plan::cuts(self.fabric, self.program.names(), id);
        let all = (fabric.iter())
            .chain(&cuts)
            .chain(jobs.flat_map(|plan| plan.entities()))
            .chain(&shares);
        let held = Held::planned(all, self.program.names())?;
        Ok((held, division))
    }
}

/// What a switch had when it was connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Our program, and so perhaps what it should hold.
    OurProgram,
    /// None, or another one, which ours has replaced.
    Another,
}

/// How a switch is reached.
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
    pub fn new(fabric: &Fabric, id: SwitchId, election_id: u128, metrics: &Metrics) -> Self {
        let switch = fabric.switch(id);
        ManagedSwitch {
            id,
            device: device_of(switch),
            target: switch.target,
            limits: switch.limits,
            election_id,
            metrics: metrics.clone(),
            state: Mutex::new(State {
                connection: Err("not connected yet".into()),
                in_doubt: true,
                told: BTreeSet::new(),
                shares: BTreeMap::new(),
            }),
            putting_right: AsyncMutex::default(),
            giving_ports: AsyncMutex::default(),
            strays: Strays::default(),
        }
    }

    pub fn name(&self) -> &str {
        &self.device.name
    }

    /// The connection, or why there is none.
    pub fn client(&self) -> Result<Arc<SwitchClient>, String> {
        self.with_state(|state| state.connection.clone())
    }

    /// Whether it may hold something else than it should.
    pub fn is_in_doubt(&self) -> bool {
        self.with_state(|state| state.in_doubt)
    }

    /// A write has not come to a known end: what it holds is to be looked at before it gets another job.
    pub fn doubt(&self) {
        self.with_state(|state| state.in_doubt = true);
    }

    /// Whether it may hold something else than it should by our own doing: it is in doubt, or a write that nobody knows the end of was done after
    /// it was looked at, or comes yet.
    pub fn may_differ(&self) -> bool {
        self.is_in_doubt() || self.strays.are_about()
    }

    /// Returns when it is to be looked at because of such a write; never while there is none.
    pub async fn is_to_be_looked_at(&self) {
        self.strays.are_due().await;
    }

    /// The right to put it right in the background; none while somebody has it.
    pub fn begin_to_put_right(&self) -> Option<MutexGuard<'_, ()>> {
        self.putting_right.try_lock().ok()
    }

    /// The right to have its software take its ports, which sets up a chip anew; none while somebody has it.
    pub fn begin_to_give_ports(&self) -> Option<MutexGuard<'_, ()>> {
        self.giving_ports.try_lock().ok()
    }

    /// A new connection as primary; not used for anything before [`bring_up`](Self::bring_up).
    pub async fn connect(&self, patience: Duration) -> Result<SwitchClient, BringUpError> {
        self.connect_by((Instant::now() + patience, patience)).await
    }

    async fn connect_by(&self, by: (Instant, Duration)) -> Result<SwitchClient, BringUpError> {
        let device = self.device.clone();
        let client = SwitchClient::connect_by(device, self.election_id, by).await?;
        let client = client.telling(self.strays.clone());
        Ok(client.measured(self.metrics.writes_to(self.name())))
    }

    /// [Gives](Self::load) the switch our program, and makes it [hold](Self::come_up) what it should.
    pub async fn bring_up(
        &self,
        client: SwitchClient,
        desired: &Desired<'_>,
    ) -> Result<(), BringUpError> {
        let found = self.load(&client, desired).await?;
        self.come_up(&client, found, desired).await?;
        self.is_up(client);
        Ok(())
    }

    /// A new connection as primary when the controller starts: one that is broken off is tried again for as long as `patience` says.
    pub async fn connect_first(&self, patience: Duration) -> Result<SwitchClient, BringUpError> {
        let deadline = Instant::now() + patience;
        let connect = || self.connect_by((deadline, patience));
        self.insist(deadline, BringUpError::is_break, connect).await
    }

    /// The same of [bringing it up](Self::bring_up): what fails is tried again, with new connections, for as long as `patience` says from when
    /// it failed first.
    pub async fn bring_up_first(
        &self,
        client: SwitchClient,
        desired: &Desired<'_>,
        patience: Duration,
    ) -> Result<(), BringUpError> {
        match self.bring_up(client, desired).await {
            Err(error) if error.may_pass() => {
                tracing::debug!(switch = self.name(), %error, "tried again");
                let again = || async {
                    sleep(PAUSE).await;
                    let client = self.connect(RECONNECT).await?;
                    self.bring_up(client, desired).await
                };
                let deadline = Instant::now() + patience;
                self.insist(deadline, BringUpError::may_pass, again).await
            }
            done => done,
        }
    }

    /// Tries until it succeeds, or fails in a way that does not pass, or there is no time left for a pause before the next attempt.
    async fn insist<T, F: Future<Output = Result<T, BringUpError>>>(
        &self,
        deadline: Instant,
        passes: impl Fn(&BringUpError) -> bool,
        attempt: impl Fn() -> F,
    ) -> Result<T, BringUpError> {
        let mut pause = PAUSE;
        loop {
            match attempt().await {
                Err(error) if passes(&error) && Instant::now() + pause < deadline => {
                    tracing::debug!(switch = self.name(), %error, "tried again");
                    sleep(pause).await;
                    pause = (2 * pause).min(LONGEST_PAUSE);
                }
                done => return done,
            }
        }
    }

    /// This is its connection from now on.
    pub fn is_up(&self, client: SwitchClient) {
        self.with_state(|state| state.connection = Ok(Arc::new(client)));
    }

    /// Gives the switch our program, unless it has it. That may take a minute, as a chip is reset with all its ports; what
    /// the switch should hold may change meanwhile.
    #[tracing::instrument(level = "debug", skip_all, fields(switch = self.name()))]
    pub async fn load(
        &self,
        client: &SwitchClient,
        desired: &Desired<'_>,
    ) -> Result<Found, BringUpError> {
        let cookie = client.pipeline_cookie().await;
        let cookie = cookie.map_err(|error| self.unreadable(error))?;
        if cookie == Some(desired.program.cookie()) {
            return Ok(Found::OurProgram);
        }
        // Translated first: a program without our tables is refused before it is put to work.
        desired.on(self.id)?;
        self.doubt();
        let names = desired.program.names();
        self.clear_replication(client, names, cookie.is_some())
            .await?;
        let set = client.set_pipeline(desired.program).await;
        set.map_err(|error| BringUpError::Pipeline {
            switch: self.name().to_owned(),
            error,
        })?;
        Ok(Found::Another)
    }

    /// Makes a switch that has our program hold what it should. What is as it should be is not written. Nothing else may change what it should hold meanwhile.
    #[tracing::instrument(level = "debug", skip_all, fields(switch = self.name()))]
    pub async fn come_up(
        &self,
        client: &SwitchClient,
        found: Found,
        desired: &Desired<'_>,
    ) -> Result<(), BringUpError> {
        match found {
            Found::OurProgram => self.look(client, desired).await,
            // A new program holds nothing yet; not every switch says so when it is asked.
            Found::Another => {
                let names = desired.program.names();
                let wanted = desired.on(self.id)?;
                let made = self.make(client, names, &Held::default(), &wanted).await;
                match made {
                    // What was to go went too late, or was written by a call that nobody waits for any more.
                    Err(error) if error.is_outdated() => self.hold(client, names, wanted).await,
                    made => made,
                }
                .map(drop)
            }
        }
    }

    /// Whether the switch still has our program. If somebody has given it another one meanwhile the connection counts as lost: it is
    /// brought up anew with the next.
    ///
    /// # Errors
    /// It has another one, or cannot be asked.
    pub async fn has_program(
        &self,
        client: &SwitchClient,
        program: &Program,
    ) -> Result<(), BringUpError> {
        let cookie = client.pipeline_cookie().await;
        let cookie = cookie.map_err(|error| self.unreadable(error))?;
        if cookie == Some(program.cookie()) {
            return Ok(());
        }
        let error = BringUpError::OtherProgram {
            switch: self.name().to_owned(),
        };
        client.give_up(error.to_string());
        Err(error)
    }

    /// Looks at what the switch holds. What is not as it should be is told, once; it is put right if it may be our own doing, or
    /// repairs are wanted.
    #[tracing::instrument(level = "debug", skip_all, fields(switch = self.name()))]
    pub async fn look(
        &self,
        client: &SwitchClient,
        desired: &Desired<'_>,
    ) -> Result<(), BringUpError> {
        let (diff, mended) = match desired.repair || self.may_differ() {
            true => (self.reconcile(client, desired).await?, "put right"),
            false => (self.diff(client, desired).await?, "not as it should be"),
        };
        self.metrics.differed(self.name(), diff.differences().len());
        let names = desired.program.names();
        let found = diff.differences().iter();
        let found = found.map(|it| it.describe(names).to_string()).collect();
        for what in self.with_state(|state| news(&mut state.told, found)) {
            tracing::warn!(switch = self.name(), %what, "{mended}");
        }
        Ok(())
    }

    /// In what the switch is not as it should be.
    pub async fn diff(
        &self,
        client: &SwitchClient,
        desired: &Desired<'_>,
    ) -> Result<Diff, BringUpError> {
        let (wanted, _) = desired.on(self.id)?;
        let asked = Instant::now();
        let held = self.read(client, desired.program.names()).await?;
        let diff = Diff::between(&held, &wanted, self.target);
        if diff.is_empty() {
            self.strays.looked(asked);
        }
        Ok(diff)
    }

    /// Looks at what the switch holds and mends what is not as it should be; returns that.
    #[tracing::instrument(level = "debug", skip_all, fields(switch = self.name()))]
    pub async fn reconcile(
        &self,
        client: &SwitchClient,
        desired: &Desired<'_>,
    ) -> Result<Diff, BringUpError> {
        let wanted = desired.on(self.id)?;
        self.hold(client, desired.program.names(), wanted).await
    }

    /// Makes the switch hold exactly this; returns what was not so. Where it does then what was written before it was asked what it holds, it is
    /// asked once more.
    pub async fn hold(
        &self,
        client: &SwitchClient,
        names: &Names,
        wanted: (Held, Division),
    ) -> Result<Diff, BringUpError> {
        match self.look_and_make(client, names, &wanted).await {
            Err(error) if error.is_outdated() => self.look_and_make(client, names, &wanted).await,
            held => held,
        }
    }

    async fn look_and_make(
        &self,
        client: &SwitchClient,
        names: &Names,
        wanted: &(Held, Division),
    ) -> Result<Diff, BringUpError> {
        let asked = Instant::now();
        let held = self.read(client, names).await?;
        let diff = self.make(client, names, &held, wanted).await?;
        self.strays.looked(asked);
        Ok(diff)
    }

    async fn read(&self, client: &SwitchClient, names: &Names) -> Result<Held, BringUpError> {
        let held = reconcile::read(client, names).await;
        held.map_err(|error| self.unreadable(error))
    }

    /// Makes of what it holds what it should hold; returns the difference.
    async fn make(
        &self,
        client: &SwitchClient,
        names: &Names,
        held: &Held,
        (wanted, division): &(Held, Division),
    ) -> Result<Diff, BringUpError> {
        let diff = Diff::between(held, wanted, self.target);
        self.doubt();
        let limits = self.limits;
        let rounds = diff.updates(held, Room { names, limits });
        match rounds.iter().map(Vec::len).sum::<usize>() {
            // They take one call together.
            ..=BATCH => {
                self.change(client, names, rounds.concat(), Order::AsGiven)
                    .await?
            }
            _ => {
                for round in rounds {
                    self.change(client, names, round, Order::Any).await?;
                }
            }
        }
        self.with_state(|state| {
            state.in_doubt = false;
            let shares = division.iter().map(|(at, queue)| (*at, Some(*queue)));
            state.shares = shares.collect();
        });
        Ok(diff)
    }

    fn unreadable(&self, error: crate::p4rt::RpcError) -> BringUpError {
        BringUpError::Read {
            switch: self.name().to_owned(),
            error,
        }
    }

    /// Makes the meters of shares keep these virtual queues, and all others none. Only what differs is written: a
    /// meter that is written again forgets how full its queue is.
    #[tracing::instrument(level = "debug", skip_all, fields(switch = self.name()))]
    pub async fn divide(
        &self,
        client: &SwitchClient,
        names: &Names,
        division: Division,
    ) -> Result<(), BringUpError> {
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
            // Until the switch has answered.
            state.shares.extend(changes.keys().map(|at| (*at, None)));
            changes
        });
        let cells =
            (changes.into_iter()).map(|(at, queue)| Planned::Meter(MeterCell::of_share(at, queue)));
        let cells = Prepared::all(&cells.collect::<Vec<_>>(), names)?;
        match install::write(client, cells).await.cause {
            Some(cause) => {
                self.doubt();
                Err(BringUpError::Write {
                    switch: self.name().to_owned(),
                    cause,
                })
            }
            None => {
                let held = division.into_iter().map(|(at, queue)| (at, Some(queue)));
                self.with_state(|state| state.shares = held.collect());
                Ok(())
            }
        }
    }

    /// Returns when the connection is lost, or another client has become primary.
    pub async fn lost(&self) -> Lost {
        let Ok(client) = self.client() else {
            return Lost::Elsewhere;
        };
        let mut mastership = client.mastership();
        let (problem, lost) = match mastership.wait_for(|now| *now != Mastership::Primary).await {
            Ok(now) => match &*now {
                Mastership::Backup { message, highest } => {
                    let problem = format!("another client is primary: {message}");
                    (problem, self.elsewhere(*highest))
                }
                Mastership::Vacant { highest } => {
                    ("there is no primary".to_owned(), self.elsewhere(*highest))
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

    /// Where the switch's last primary is.
    fn elsewhere(&self, highest: u128) -> Lost {
        match Term::of(highest).filter(|_| highest > self.election_id) {
            Some(term) => Lost::Superseded(term),
            None => Lost::Elsewhere,
        }
    }

    /// Ends the connection, for a reason.
    pub fn disconnect(&self, reason: String) {
        self.with_state(|state| state.connection = Err(reason));
    }

    /// Whether we are its primary, as far as is known.
    fn is_ours(&self) -> bool {
        let client = self.client();
        client.is_ok_and(|client| *client.mastership().borrow() == Mastership::Primary)
    }

    /// Connects again, however long it takes; `failed` is told why it takes longer.
    pub async fn reconnect(&self, failed: impl Fn(&BringUpError)) -> SwitchClient {
        loop {
            match self.connect(RECONNECT).await {
                Ok(client) => return client,
                Err(error) => {
                    failed(&error);
                    self.failed(&error).await;
                }
            }
        }
    }

    /// Writes `updates`; what is not known to be done leaves the switch in doubt.
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
            .inspect_err(|_| self.doubt())
    }

    /// What stopped a write of these updates, if anything did.
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

    /// Removes all multicast groups that a switch tells of, and our clone session. BMv2 empties its tables for a new
    /// program but keeps the replication engine's nodes; groups that were written again would then send twice.
    /// A switch without a program, or one that cannot list its groups, has nothing to remove.
    async fn clear_replication(
        &self,
        client: &SwitchClient,
        names: &Names,
        has_program: bool,
    ) -> Result<(), BringUpError> {
        let all = Entity::from(MulticastGroupEntry::default());
        let groups = match client.read(vec![all]).await {
            Ok(groups) => groups,
            Err(error) if has_program && error.is_uncertain() => {
                return Err(self.unreadable(error));
            }
            Err(_) => return Ok(()),
        };
        let groups: Vec<Update> = groups.into_iter().filter_map(removal_of_group).collect();
        match client.write(groups.clone(), Order::Any).await {
            Ok(()) => {}
            Err(WriteError::Updates(outcomes)) if outcomes.iter().all(install::is_gone) => {}
            Err(error) => self.unwritten(&error, &groups, names)?,
        }
        if let Ok(session) = LossSession::of(self.target).entry()
            && let Err(error) = client
                .write(vec![Update::delete(session)], Order::Any)
                .await
        {
            // A switch that has just started has none.
            tracing::debug!(switch = self.name(), %error, "no old clone session removed");
        }
        Ok(())
    }

    /// Remembers why the switch is not back yet, and pauses.
    pub async fn failed(&self, error: &BringUpError) {
        tracing::debug!(switch = self.name(), %error, "not back yet");
        self.with_state(|state| state.connection = Err(error.to_string()));
        sleep(PAUSE).await;
    }

    fn with_state<T>(&self, use_it: impl FnOnce(&mut State) -> T) -> T {
        // Nothing panics while it holds the lock, and no change has a half.
        use_it(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn removal_of_group(entity: Entity) -> Option<Update> {
    use packet_replication_engine_entry::Type;
    match entity.entity? {
        entity::Entity::PacketReplicationEngineEntry(PacketReplicationEngineEntry {
            r#type: Some(Type::MulticastGroupEntry(group)),
        }) => Some(Update::delete(group)),
        _ => None,
    }
}

/// What of `found` was not there the last time, when it was `told`.
fn news(told: &mut BTreeSet<String>, found: BTreeSet<String>) -> Vec<String> {
    let news = found.difference(told).cloned().collect();
    *told = found;
    news
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stays_wrong_is_told_once() {
        let mut told = BTreeSet::new();
        let mut look =
            |found: &[&str]| news(&mut told, found.iter().map(|it| it.to_string()).collect());
        assert_eq!(look(&["a", "b"]), ["a", "b"]);
        assert_eq!(look(&["a", "b"]), [""; 0]);
        assert_eq!(look(&["b", "c"]), ["c"]);
        assert_eq!(look(&[]), [""; 0]);
        assert_eq!(look(&["a"]), ["a"], "it has come back");
    }
}
