//! How a switch is connected to, gets our program, and comes back.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use ultima_p4runtime::names::Names;
use ultima_p4runtime::v1::{
    Entity, MulticastGroupEntry, PacketReplicationEngineEntry, Update, entity,
    packet_replication_engine_entry,
};

use super::{Desired, Found, ManagedSwitch};
use crate::install;
use crate::p4rt::{Order, SwitchClient, WriteError};
use crate::plan::LossSession;
use crate::reconcile::Held;
use crate::server::error::BringUpError;

/// How long one attempt to reconnect may take.
const RECONNECT: Duration = Duration::from_secs(1);
/// The pause after an attempt that failed.
const PAUSE: Duration = Duration::from_millis(200);
/// The longest of pauses that become longer.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

impl ManagedSwitch {
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
