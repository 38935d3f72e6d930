//! One switch of a running fabric: its connection, what it should hold, and how it comes back.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ultima_p4runtime::names::Names;
use ultima_p4runtime::v1::{
    Entity, MulticastGroupEntry, PacketReplicationEngineEntry, Update, entity,
    packet_replication_engine_entry,
};

use super::error::BringUpError;
use crate::fabric::{Fabric, SwitchId};
use crate::install::{self, Prepared, Written};
use crate::job::{Job, ShareIndex};
use crate::p4rt::{Device, Mastership, SwitchClient, WriteError};
use crate::plan::{
    self, Division, Entity as Planned, JobPlan, LossSession, MeterCell, VirtualQueue,
};
use crate::program::Program;
use crate::routing::Routes;

/// How long one attempt to reconnect may take.
const RECONNECT: Duration = Duration::from_secs(1);
/// The pause after an attempt that failed.
const PAUSE: Duration = Duration::from_millis(200);

/// A switch and how we stand with it.
pub struct ManagedSwitch {
    pub id: SwitchId,
    device: Device,
    election_id: u128,
    state: Mutex<State>,
}

struct State {
    connection: Result<Arc<SwitchClient>, String>,
    /// Whether our program and everything that belongs beside it has been written.
    whole: bool,
    /// What is to be removed when the switch is back.
    leftovers: Vec<Prepared>,
    /// Meters of shares that are, or may be, configured; none where a write has not come to a known end.
    shares: BTreeMap<ShareIndex, Option<VirtualQueue>>,
}

/// What every switch gets.
pub struct Desired<'a> {
    pub fabric: &'a Fabric,
    pub routes: &'a Routes,
    pub program: &'a Program,
    /// Names what this controller put on a switch, so that it knows its own work again.
    pub cookie: u64,
    /// Every installed job's.
    pub plans: &'a [Arc<JobPlan>],
    /// The jobs themselves.
    pub jobs: &'a [Arc<Job>],
}

impl ManagedSwitch {
    pub fn new(fabric: &Fabric, id: SwitchId, election_id: u128) -> Self {
        let switch = fabric.switch(id);
        ManagedSwitch {
            id,
            device: Device {
                name: switch.name.clone(),
                grpc: switch.grpc.clone(),
                device_id: switch.device_id,
                tls: switch.tls.clone(),
            },
            election_id,
            state: Mutex::new(State {
                connection: Err("not connected yet".into()),
                whole: false,
                leftovers: Vec::new(),
                shares: BTreeMap::new(),
            }),
        }
    }

    pub fn name(&self) -> &str {
        &self.device.name
    }

    /// The connection, or why there is none.
    pub fn client(&self) -> Result<Arc<SwitchClient>, String> {
        self.with_state(|state| state.connection.clone())
    }

    /// What is to be removed, which the caller now tries.
    pub fn take_leftovers(&self) -> Vec<Prepared> {
        self.with_state(|state| std::mem::take(&mut state.leftovers))
    }

    /// What to remove when the switch is back, or before it gets another job.
    pub fn add_leftovers(&self, leftovers: Vec<Prepared>) {
        self.with_state(|state| state.leftovers.extend(leftovers));
    }

    /// A new connection as primary; not used for anything before [`bring_up`](Self::bring_up).
    pub async fn connect(&self, patience: Duration) -> Result<SwitchClient, BringUpError> {
        let device = self.device.clone();
        Ok(SwitchClient::connect(device, self.election_id, patience).await?)
    }

    /// Makes the switch hold what it should, and `client` its connection. Nothing else may change
    /// what it should hold meanwhile.
    pub async fn bring_up(
        &self,
        client: SwitchClient,
        desired: &Desired<'_>,
    ) -> Result<(), BringUpError> {
        let read = |error| BringUpError::Read {
            switch: self.name().to_owned(),
            error,
        };
        let cookie = client.pipeline_cookie().await.map_err(read)?;
        if cookie == Some(desired.cookie) && self.with_state(|state| state.whole) {
            // It has our program and was not restarted: only the connection was lost.
            let leftovers = self.take_leftovers();
            let left = install::remove_from(&client, leftovers).await;
            self.add_leftovers(left);
        } else {
            self.with_state(|state| state.whole = false);
            self.write_all(&client, desired).await?;
            self.with_state(|state| {
                state.whole = true;
                state.leftovers.clear();
                state.shares.clear();
            });
        }
        let jobs = desired.jobs.iter().map(|job| &**job);
        let division = plan::divide(desired.fabric, self.id, jobs);
        self.divide(&client, desired.program.names(), division)
            .await?;
        self.with_state(|state| state.connection = Ok(Arc::new(client)));
        Ok(())
    }

    async fn write_all(
        &self,
        client: &SwitchClient,
        desired: &Desired<'_>,
    ) -> Result<(), BringUpError> {
        let switch = || self.name().to_owned();
        // Translated first: a program without our tables is refused before it is put to work.
        let mut batches = vec![Prepared::all(
            &plan::of_fabric(desired.fabric, desired.routes, self.id),
            desired.program.names(),
        )?];
        for plan in desired.plans.iter().filter_map(|plan| plan.get(&self.id)) {
            for stage in plan.stages() {
                batches.push(Prepared::all(stage, desired.program.names())?);
            }
        }

        clear_replication(client).await;
        let program = desired.program;
        client
            .set_pipeline(
                program.names().p4info(),
                program.device_config(),
                desired.cookie,
            )
            .await
            .map_err(|error| BringUpError::Pipeline {
                switch: switch(),
                error,
            })?;
        for batch in batches {
            if let Written {
                cause: Some(cause), ..
            } = install::write(client, batch).await
            {
                return Err(BringUpError::Write {
                    switch: switch(),
                    cause,
                });
            }
        }
        Ok(())
    }

    /// Makes the meters of shares keep these virtual queues, and all others none. Only what differs is written: a
    /// meter that is written again forgets how full its queue is.
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
            Some(cause) => Err(BringUpError::Write {
                switch: self.name().to_owned(),
                cause,
            }),
            None => {
                let held = division.into_iter().map(|(at, queue)| (at, Some(queue)));
                self.with_state(|state| state.shares = held.collect());
                Ok(())
            }
        }
    }

    /// Returns when the connection is lost or another client has become primary.
    pub async fn lost(&self) {
        let Ok(client) = self.client() else { return };
        let mut mastership = client.mastership();
        let problem = match mastership.wait_for(|now| *now != Mastership::Primary).await {
            Ok(now) => match &*now {
                Mastership::Backup { message } => format!("another client is primary: {message}"),
                Mastership::Vacant { .. } => "there is no primary".to_owned(),
                Mastership::Lost { reason } => reason.clone(),
                Mastership::Primary => return,
            },
            Err(_) => "the connection has ended".to_owned(),
        };
        tracing::warn!(switch = self.name(), problem, "connection lost");
        self.with_state(|state| state.connection = Err(problem));
    }

    /// Connects again, however long it takes.
    pub async fn reconnect(&self) -> SwitchClient {
        loop {
            match self.connect(RECONNECT).await {
                Ok(client) => return client,
                Err(error) => self.failed(&error).await,
            }
        }
    }

    /// Remembers why the switch is not back yet, and pauses.
    pub async fn failed(&self, error: &BringUpError) {
        tracing::debug!(switch = self.name(), %error, "not back yet");
        self.with_state(|state| state.connection = Err(error.to_string()));
        tokio::time::sleep(PAUSE).await;
    }

    fn with_state<T>(&self, use_it: impl FnOnce(&mut State) -> T) -> T {
        // Nothing panics while it holds the lock, and no change has a half.
        use_it(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Removes all multicast groups that a switch tells of, and our clone session. BMv2 empties its tables for a new
/// program but keeps the replication engine's nodes; groups that were written again would then send twice.
/// A switch without a program, or one that cannot list its groups, has nothing to remove.
async fn clear_replication(client: &SwitchClient) {
    let all = Entity::from(MulticastGroupEntry::default());
    let Ok(groups) = client.read(vec![all]).await else {
        return;
    };
    let groups: Vec<Update> = groups.into_iter().filter_map(removal_of_group).collect();
    if let Err(error @ (WriteError::Rpc(_) | WriteError::Updates(_))) = client.write(groups).await {
        tracing::warn!(switch = client.device().name, %error, "old groups not removed");
    }
    if let Ok(session) = LossSession.entry()
        && let Err(error) = client.write(vec![Update::delete(session)]).await
    {
        // A switch that has just started has none.
        tracing::debug!(switch = client.device().name, %error, "no old clone session removed");
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
