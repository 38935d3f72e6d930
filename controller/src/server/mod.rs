//! The controller as a server: it brings up the fabric's switches and serves the control API.
//!
//! [`Controller`] is what happens: how it holds its switches is in `controller`, what it is asked for in `jobs`, `joining`,
//! `telemetry`, `audit`, `check` and `moves`. `service` is its gRPC face.

mod attendants;
mod attending;
mod audit;
mod changes;
mod check;
mod condition;
mod controller;
mod counters;
mod error;
mod gnmi;
mod group;
mod interfaces;
mod jobs;
mod joining;
mod journal;
mod keeper;
mod listen;
mod losses;
mod membership;
mod mesh;
mod messages;
mod metrics;
mod moves;
mod news;
mod own_task;
mod plan;
mod port_counters;
mod port_status;
mod registry;
mod sample;
mod seats;
mod service;
mod service_fabric;
mod service_plan;
mod service_telemetry;
mod service_watch;
mod start;
mod status;
mod streams;
mod switch;
mod tail_drops;
mod telemetry;
mod telling;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tonic::transport::Server;

pub use condition::PartState;
pub use controller::{Controller, JobState, SwitchState};
pub use error::{BringUpError, DrainError, JobRequestError, RestoreError, ServeError};
pub use group::{GRACE, Group, MemberHandle, serve_in};
pub use jobs::JobsRefused;
pub use journal::KeepError;
use journal::Lead;
pub(crate) use listen::UNIX;
pub use listen::{DEFAULT_LISTEN, Listen, ListenError};
pub use membership::{Evictee, JOIN_WAIT};
pub use moves::Drained;
pub use plan::{Forecast, PlanError, Resize, SwitchForecast};
pub use service_telemetry::{WATCH_INTERVAL, WATCH_INTERVALS};

use group::{ReplicationService, Who};

use crate::api::control_server::ControlServer;
use crate::api::replication_server::ReplicationServer;
use crate::fabric::Fabric;
use crate::fabric::damping::Terms;
use crate::p4rt::Term;
use crate::program::Program;
use crate::store::{Store, StoreError};

/// What a controller needs to know.
#[derive(Clone, Debug)]
pub struct Config {
    /// The fabric to run.
    pub fabric: Fabric,
    /// The program to put on its switches.
    pub program: Program,
    /// Where the control API listens; port 0 takes any free one.
    pub listen: Listen,
    /// How long switches may take to answer at the start, and how long each is tried again that has failed then, where that may pass.
    pub patience: Duration,
    /// The file in which jobs are kept over the controller's end; none keeps them in memory.
    pub state: Option<PathBuf>,
    /// How often each switch is looked at, at the least, and put right where somebody changed it.
    pub audit_every: Duration,
    /// Whether what somebody else changed on a switch is put right when it is seen. If not it is only told, until
    /// somebody asks for it.
    pub repair: bool,
    /// Bits per second at which each rank sends unless its agent chooses a rate.
    pub agent_rate: Option<u64>,
    /// How patient it is with what fails and comes back.
    pub terms: Terms,
}

/// After how long without a word a client is asked whether it is there, and how long it may take to answer.
const KEEPALIVE: Duration = Duration::from_secs(2);

/// How long clients may take for what is on its way to them when the controller stops.
const DRAIN: Duration = Duration::from_secs(5);

/// How often switches are looked at unless the configuration says otherwise.
pub const AUDIT_EVERY: Duration = Duration::from_secs(30);

impl Config {
    /// The defaults for a fabric: Ultima's own program, [`DEFAULT_LISTEN`], five seconds for the
    /// switches to answer.
    ///
    /// # Errors
    /// None as long as what is embedded is what the compilers printed.
    pub fn new(fabric: Fabric) -> Result<Self, ServeError> {
        let program = Program::own(&fabric)?;
        Ok(Config::with_program(fabric, program))
    }

    /// The defaults with another program.
    pub fn with_program(fabric: Fabric, program: Program) -> Self {
        Config {
            fabric,
            program,
            listen: DEFAULT_LISTEN.into(),
            patience: Duration::from_secs(5),
            state: None,
            audit_every: AUDIT_EVERY,
            repair: true,
            agent_rate: None,
            terms: Terms::default(),
        }
    }
}

/// A controller at work. Dropping it leaves the switches as they are and ends everything else.
pub struct Handle {
    address: Listen,
    controller: Arc<Controller>,
    stop: Option<oneshot::Sender<()>>,
    server: JoinHandle<Result<(), tonic::transport::Error>>,
}

/// Brings up every switch of the fabric (program, routes), then serves the control API.
///
/// # Errors
/// A limit that the fabric is over, a switch that doesn't answer or refuses, or an address that is
/// taken; nothing keeps running then.
pub async fn serve(config: Config) -> Result<Handle, ServeError> {
    let listener = listen::bind(&config.listen).await?;
    let address = listener.address.clone();
    let store = open_store(&config)?;
    if store.accepted()? > Term::default() {
        return Err(ServeError::OfAGroup);
    }
    let term = Term {
        by: store.controller(),
        ..Term::default()
    };
    let controller = Controller::start(config, Arc::new(store), Lead::alone(term)).await?;
    let (stop, stopped) = oneshot::channel::<()>();
    let service = ControlServer::new(service::ControlService::new(Arc::clone(&controller)));
    let alone = ReplicationService::new(Who::Alone(Arc::clone(&controller)));
    let server = attentive()
        .add_service(service)
        .add_service(ReplicationServer::new(alone));
    let server = tokio::spawn(listener.serve(server, async {
        // Either way the handle is gone.
        let _ = stopped.await;
    }));
    Ok(Handle {
        address,
        controller,
        stop: Some(stop),
        server,
    })
}

fn open_store(config: &Config) -> Result<Store, StoreError> {
    match &config.state {
        Some(path) => Store::open(path),
        None => Store::in_memory(),
    }
}

/// A server whose clients' streams end when their machines are gone, which do not end them themselves.
fn attentive() -> Server {
    Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE))
}

/// Waits until a server that stops has told all clients what was on its way to them. Who does not take it is not waited for.
async fn drained(server: &mut JoinHandle<Result<(), tonic::transport::Error>>) {
    match timeout(DRAIN, server).await {
        // It has ended with its listener, or has panicked and said so.
        Ok(_) => {}
        Err(_) => tracing::warn!("clients that read nothing are left after {DRAIN:?}"),
    }
}

impl Handle {
    /// Where the control API listens.
    pub fn address(&self) -> &Listen {
        &self.address
    }

    /// The controller itself, without gRPC in between.
    pub fn controller(&self) -> &Arc<Controller> {
        &self.controller
    }

    /// Stops serving; calls that wait are ended. The switches keep what they have.
    pub async fn stop(mut self) {
        self.controller.close();
        drop(self.stop.take());
        drained(&mut self.server).await;
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.controller.close();
        self.server.abort();
    }
}
