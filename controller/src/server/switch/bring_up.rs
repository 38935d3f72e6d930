//! Connecting to a switch, installing the program, and reconnecting.

use std::future::pending;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use backon::{ConstantBuilder, ExponentialBuilder, Retryable as _};
use futures_util::future::BoxFuture;
use tokio::time::Instant;
use ultima_p4runtime::names::Names;
use ultima_p4runtime::v1::{
    Entity, MulticastGroupEntry, PacketReplicationEngineEntry, Update, entity,
    packet_replication_engine_entry,
};
use ultima_planner::plan::LossSession;
use ultima_planner::reconcile::Held;

use super::{Desired, Found, ManagedSwitch};
use crate::p4rt::{Checks, ConnectError, Deadline, Order, SwitchClient, WriteError, is_gone};
use crate::server::error::BringUpError;
use crate::server::lock::lock;

/// Timeout of an attempt to reconnect.
const RECONNECT: Duration = Duration::from_secs(1);
/// The longest pause of an exponential backoff.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

impl ManagedSwitch {
    /// Connects as primary.
    async fn connect(&self, limit: Duration) -> Result<SwitchClient, BringUpError> {
        self.connect_by(Deadline::after(limit)).await
    }

    async fn connect_by(&self, deadline: Deadline) -> Result<SwitchClient, BringUpError> {
        let device = self.device.clone();
        let is_checked = self.with_state(|state| state.may_be_foreign);
        let checks = Checks {
            owner: self.owner.filter(|it| is_checked && !it.takes_over),
            cookie: self.own_cookie,
        };
        let client = SwitchClient::connect_by(device, self.election_id, checks, deadline).await?;
        let client = client.marking(self.owner);
        let client = client.recording_unanswered(self.unanswered.clone());
        Ok(client.measured(self.metrics.clone()))
    }

    /// Connects as primary when the controller starts, and retries broken connections for `limit`.
    /// [`bring_up_first`](Self::bring_up_first) must follow before the connection is used.
    pub async fn connect_first(&self, limit: Duration) -> Result<SwitchClient, BringUpError> {
        let deadline = Deadline::after(limit);
        let connect = || self.connect_by(deadline);
        self.retry(|| deadline.at, BringUpError::is_break, connect)
            .await
    }

    /// Brings the switch up with `bring_up` when the controller starts: retries temporary failures with new connections for
    /// `limit` from the first failure.
    pub async fn bring_up_first<'a>(
        &self,
        client: SwitchClient,
        limit: Duration,
        bring_up: impl Fn(SwitchClient) -> BoxFuture<'a, Result<(), BringUpError>>,
    ) -> Result<(), BringUpError> {
        let (first, end) = (Mutex::new(Some(client)), OnceLock::new());
        let attempt = || async {
            let first = lock(&first).take();
            let client = match first {
                Some(client) => client,
                None => self.connect(RECONNECT).await?,
            };
            bring_up(client).await
        };
        let deadline = || *end.get_or_init(|| Instant::now() + limit);
        self.retry(deadline, BringUpError::may_pass, attempt).await
    }

    /// Retries `attempt` until it succeeds, fails permanently, or no time is left before
    /// `deadline`, which is asked after a failure.
    async fn retry<T, F: Future<Output = Result<T, BringUpError>>>(
        &self,
        deadline: impl Fn() -> Instant,
        passes: impl Fn(&BringUpError) -> bool,
        attempt: impl Fn() -> F,
    ) -> Result<T, BringUpError> {
        let pauses = ExponentialBuilder::new()
            .with_min_delay(self.reconnect_pause)
            .with_max_delay(LONGEST_PAUSE)
            .without_max_times();
        // Boxed: an attempt is too large to be moved on the stack.
        let retried = (|| Box::pin(attempt())).retry(pauses).when(passes);
        let retried = retried.adjust(|error, pause| {
            tracing::debug!(switch = self.name(), %error, "attempt failed");
            pause.filter(|pause| Instant::now() + *pause < deadline())
        });
        retried.await
    }

    /// Installs the program unless the switch has it. That may take a minute, because a chip is
    /// reset with all its ports; the desired state may change meanwhile. Another version of Ultima's
    /// program is replaced, any other program only if the operator allows it.
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
        // Translated first: a program without our tables is refused before it is installed.
        desired.on(self.id)?;
        // It was checked before the connection became primary, which may have taken long.
        if let Some(own) = self.own_cookie {
            let foreign = client.foreign_program(own).await;
            if let Some(program) = foreign.map_err(|error| self.unreadable(error))? {
                return Err(ConnectError::foreign_program(&self.device, program).into());
            }
        }
        self.mark_dirty();
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

    /// Makes a switch with the right program match the desired state, which must not change
    /// meanwhile. Writes only differences.
    #[tracing::instrument(level = "debug", skip_all, fields(switch = self.name()))]
    pub async fn come_up(
        &self,
        client: &SwitchClient,
        found: Found,
        desired: &Desired<'_>,
    ) -> Result<(), BringUpError> {
        let came_up = match found {
            Found::OurProgram => self.look(client, desired).await,
            // A new program has no entries. Not every switch reports that correctly, so it is not
            // read.
            Found::Another => {
                let names = desired.program.names();
                let wanted = desired.on(self.id)?;
                let made = self.make(client, names, &Held::default(), &wanted).await;
                match made {
                    // An entry disappeared too late, or an interrupted call has written it.
                    Err(error) if error.is_outdated() => self.hold(client, names, wanted).await,
                    made => made,
                }
            }
        };
        match came_up {
            // A job's refused entry delays no other job.
            Err(error) if error.is_refusal() && self.is_partly_known() => {
                tracing::warn!(switch = self.name(), %error, "not as desired yet; retrying");
                self.wake();
                Ok(())
            }
            came_up => came_up.map(drop),
        }
    }

    /// Reconnects, however long it takes. Calls `failed` after each failed attempt.
    pub async fn reconnect(&self, failed: impl Fn(&BringUpError)) -> SwitchClient {
        // Boxed: an attempt is too large to be moved on the stack.
        let connect = || Box::pin(self.connect(RECONNECT));
        let pauses = ConstantBuilder::new().without_max_times();
        let connected = connect.retry(pauses).adjust(|error, _| {
            self.note(error);
            failed(error);
            Some(self.pause_after(error))
        });
        match connected.await {
            Ok(client) => client,
            // No attempt is the last one.
            Err(_) => pending().await,
        }
    }

    /// Removes all multicast groups that a switch reports, and our clone session. BMv2 clears its
    /// tables for a new program but keeps the nodes of its replication engine; rewritten groups
    /// would then replicate twice. A switch without a program, or one that cannot list its groups,
    /// has nothing to remove.
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
            Err(WriteError::Updates(outcomes)) if outcomes.iter().all(is_gone) => {}
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

    /// Records why the switch is not connected.
    pub fn note(&self, error: &BringUpError) {
        tracing::debug!(switch = self.name(), %error, "reconnect failed");
        self.with_state(|state| {
            state.connection = Err(error.to_string());
            state.may_be_foreign |= error.is_foreign();
        });
    }

    /// The pause after a failure.
    pub fn pause_after(&self, error: &BringUpError) -> Duration {
        match error.is_foreign() {
            true => LONGEST_PAUSE,
            false => self.reconnect_pause,
        }
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
