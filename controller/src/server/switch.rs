//! One switch: the connection to it and its desired state. Connecting is in `bring_up`, reconciling
//! in `repair`.

mod bring_up;
mod repair;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Mutex as AsyncMutex, MutexGuard};
use ultima_p4runtime::names::Names;
use ultima_p4runtime::v1::Update;

use super::error::BringUpError;
use super::registry::Wanted;
use super::timers::Timers;
use crate::fabric::{self, Fabric, SwitchId};
use crate::install::{self, Cause, Prepared};
use crate::job::ShareIndex;
use crate::metrics::Metrics;
use crate::p4rt::{Device, Mastership, Order, Owner, SwitchClient, Unanswered, WriteError};
use crate::plan::{self, Division, Entity as Planned, MeterCell, VirtualQueue};
use crate::program::Program;
use crate::reconcile::{self, Held};
use crate::target::{Limits, Target};

/// A switch, the connection to it, and its known state.
pub struct ManagedSwitch {
    pub id: SwitchId,
    device: Device,
    target: &'static Target,
    limits: Limits,
    election_id: u128,
    /// The store of its jobs; none for a store without an id.
    owner: Option<Owner>,
    metrics: Metrics,
    state: Mutex<State>,
    /// Held by the task that resyncs it in the background.
    resyncing: AsyncMutex<()>,
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
    /// True if it needs a resync: a write has no known result.
    is_dirty: bool,
    /// The drift found by the last comparison.
    known_drift: BTreeSet<String>,
    /// The meters of shares that are or may be configured; none for a meter whose write has no
    /// known result.
    shares: BTreeMap<ShareIndex, Option<VirtualQueue>>,
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

impl Desired<'_> {
    /// The division of a switch's ports among its jobs.
    pub fn division(&self, id: SwitchId) -> Division {
        plan::divide(self.fabric, id, self.wanted.jobs.iter().map(|job| &**job))
    }

    /// The desired entries of a switch, and the division of its ports that they contain.
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
        owner: Option<Owner>,
        metrics: &Metrics,
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
            metrics: metrics.clone(),
            state: Mutex::new(State {
                connection: Err("not connected yet".into()),
                reported: None,
                may_be_foreign: owner.is_some_and(|owner| owner.is_new),
                is_dirty: true,
                known_drift: BTreeSet::new(),
                shares: BTreeMap::new(),
            }),
            resyncing: AsyncMutex::default(),
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

    /// The problem of the connection, or none within, if it is another than at the last call.
    pub fn news(&self) -> Option<Option<String>> {
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
        self.with_state(|state| state.is_dirty)
    }

    /// Marks it as needing a resync before it gets another job.
    pub fn mark_dirty(&self) {
        self.with_state(|state| state.is_dirty = true);
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

    /// The right to resync it in the background; none while another task has it.
    pub fn begin_resync(&self) -> Option<MutexGuard<'_, ()>> {
        self.resyncing.try_lock().ok()
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
        });
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
            // Unknown until the switch has answered.
            state.shares.extend(changes.keys().map(|at| (*at, None)));
            changes
        });
        let cells =
            (changes.into_iter()).map(|(at, queue)| Planned::Meter(MeterCell::of_share(at, queue)));
        let cells = Prepared::all(&cells.collect::<Vec<_>>(), names)?;
        match install::write(client, cells).await.cause {
            Some(cause) => {
                self.mark_dirty();
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
        self.with_state(|state| state.connection = Err(reason));
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
        // No thread panics while it holds the lock, and every change is complete.
        use_it(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
