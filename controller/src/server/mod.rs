//! The controller as a server: it brings up the fabric's switches and serves the control API.
//!
//! [`Controller`] has the operations: `controller` its switches and state, `jobs`, `joining`,
//! `telemetry`, `audit`, `check` and `moves` the requests. The `service*` modules translate gRPC
//! messages and contain no logic.

mod access;
mod audit;
mod burst_drops;
mod call_rates;
mod candidate;
mod changes;
mod check;
mod condition;
mod connections;
mod controller;
mod counters;
mod error;
mod event_log;
mod gate;
mod gnmi;
mod interfaces;
mod jobs;
mod joining;
mod journal;
mod keeper;
mod leadership_service;
mod listen;
mod losses;
mod membership;
mod mesh;
mod message_room;
mod messages;
mod metrics;
mod moves;
mod notify;
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
mod session;
mod sessions;
mod start;
mod status;
mod streams;
mod switch;
mod tail_drops;
mod telemetry;
mod timers;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tonic::service::Routes;

pub use access::CALLS;
pub use candidate::{CandidateHandle, serve_with_etcd};
pub use condition::ElementState;
pub use controller::{Controller, JobStanding, JobState, SwitchState};
pub use error::{BringUpError, DrainError, JobRequestError, RestoreError, ServeError};
pub use jobs::JobsRefused;
use journal::Lead;
pub use membership::{Evictee, JOIN_WAIT};
pub use moves::Drained;
pub use plan::{Forecast, PlanError, Resize, SwitchForecast};
pub use service::LONGEST_JOIN_WAIT;
pub use service_telemetry::{WATCH_INTERVAL, WATCH_INTERVALS};
pub use switch::JobCondition;
pub use timers::Timers;

use access::Guard;
use call_rates::CallRates;
use controller::lock;
use leadership_service::{LeadershipService, Who};
use listen::Secured;
use ultima_api::address::{DEFAULT_LISTEN, Listen};
use ultima_api::v1::control_server::ControlServer;
use ultima_api::v1::leadership_server::LeadershipServer;
use ultima_grpc::tls::ServerTls;
use ultima_planner::fabric::Fabric;
use ultima_planner::fabric::damping::Terms;
use ultima_planner::program::Program;

use crate::store::{Embedded, Store, StoreError};

/// The configuration of a controller.
#[derive(Clone, Debug)]
pub struct Config {
    /// The fabric.
    pub fabric: Fabric,
    /// The program for its switches.
    pub program: Program,
    /// Where the control API listens; port 0 takes any free port.
    pub listen: Listen,
    /// Certificates. With them the API speaks TLS only, and a client's certificate must name its role.
    pub tls: Option<ServerTls>,
    /// True to serve every client of a TCP address other than loopback without TLS.
    pub insecure: bool,
    /// How long a switch may take to answer at the start, and how long a failed bring-up is
    /// retried.
    pub patience: Duration,
    /// The store's file; without one the store is in memory.
    pub state: Option<PathBuf>,
    /// True to remove the jobs of another store from the switches. Otherwise a switch with such jobs is left alone.
    pub take_over: bool,
    /// The longest interval between two comparisons of a switch with the desired state.
    pub audit_every: Duration,
    /// True to repair drift when it is found; false to only log it until a client requests a sync.
    pub repair: bool,
    /// Bits per second at which each rank sends unless its agent chooses a rate. None for no limit, or a low one if a switch
    /// drops bursts, as BMv2 does.
    pub agent_rate: Option<u64>,
    /// The most jobs of a client with a certificate; none for no limit.
    pub jobs_per_client: Option<usize>,
    /// Damping of elements that fail and come back.
    pub terms: Terms,
    /// Timers that no operator sets.
    pub timers: Timers,
}

/// Interval of HTTP/2 keepalive pings to an idle client, and the timeout for their answer.
const KEEPALIVE: Duration = Duration::from_secs(2);

/// Default of [`Config::audit_every`].
pub const AUDIT_EVERY: Duration = Duration::from_secs(30);

impl Config {
    /// The defaults for a fabric: Ultima's own program, [`DEFAULT_LISTEN`], five seconds for the
    /// switches to answer.
    ///
    /// # Errors
    /// The embedded program is not as the compilers printed it.
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
            tls: None,
            insecure: false,
            patience: Duration::from_secs(5),
            state: None,
            take_over: false,
            audit_every: AUDIT_EVERY,
            repair: true,
            agent_rate: None,
            jobs_per_client: None,
            terms: Terms::default(),
            timers: Timers::default(),
        }
    }
}

/// Checks that strangers cannot reach the control API, unless the operator allows it.
fn check_listen(config: &Config) -> Result<(), ServeError> {
    let listen = || config.listen.clone();
    match (&config.listen, &config.tls) {
        (Listen::Unix(_), Some(_)) => Err(ServeError::TlsOnUnix { listen: listen() }),
        (Listen::Tcp(address), None)
            if !config.insecure && !address.ip().to_canonical().is_loopback() =>
        {
            Err(ServeError::Open { listen: listen() })
        }
        _ => Ok(()),
    }
}

/// A running controller. Dropping it ends everything except the switches' forwarding.
pub struct Handle {
    address: Listen,
    controller: Arc<Controller>,
    stop: Option<oneshot::Sender<()>>,
    server: JoinHandle<()>,
}

/// Brings up every switch of the fabric (program, routes), then serves the control API.
///
/// # Errors
/// The fabric exceeds a limit, a switch does not answer or refuses, or the address is taken.
/// Nothing keeps running then.
pub async fn serve(config: Config) -> Result<Handle, ServeError> {
    serve_on(config, None).await
}

/// The same, with a store that only this controller uses; none for the one in `config`.
///
/// # Errors
/// As for [`serve`].
pub async fn serve_on(
    mut config: Config,
    store: Option<Arc<dyn Store>>,
) -> Result<Handle, ServeError> {
    check_listen(&config)?;
    let server = Secured::new(config.tls.clone())?;
    let listener = listen::bind(&config.listen).await?;
    let address = listener.address.clone();
    let store = match store {
        Some(store) => store,
        None => {
            // Jobs in memory end with their controller, and nothing else could remove them.
            config.take_over |= config.state.is_none();
            Arc::new(open_store(&config)?)
        }
    };
    // Boxed, because it is large and callers keep it on their stacks.
    let controller = Box::pin(Controller::start(config, store, Lead::Alone)).await?;
    let (stop, stopped) = oneshot::channel::<()>();
    let service = ControlServer::new(service::ControlService::new(Arc::clone(&controller)));
    let alone = LeadershipService::new(Who::Alone(Arc::clone(&controller)));
    let (rates, alone) = (CallRates::default(), LeadershipServer::new(alone));
    let routes = Routes::new(Guard::new(service, &rates)).add_service(Guard::new(alone, &rates));
    let server = tokio::spawn(listener.serve((server, routes), async {
        // An error means that the handle was dropped, which also stops the server.
        let _ = stopped.await;
    }));
    Ok(Handle {
        address,
        controller,
        stop: Some(stop),
        server,
    })
}

fn open_store(config: &Config) -> Result<Embedded, StoreError> {
    match &config.state {
        Some(path) => Embedded::open(path),
        None => Embedded::in_memory(),
    }
}

/// Waits until a stopping server has sent all pending answers, at most this long.
async fn drained(server: &mut JoinHandle<()>, limit: Duration) {
    match timeout(limit, server).await {
        // The server has ended with its listener, or has panicked and logged that.
        Ok(_) => {}
        Err(_) => {
            tracing::warn!(timeout = ?limit, "stopped although clients have not read their answers")
        }
    }
}

impl Handle {
    /// The address of the control API.
    pub fn address(&self) -> &Listen {
        &self.address
    }

    /// The controller, for calls without gRPC.
    pub fn controller(&self) -> &Arc<Controller> {
        &self.controller
    }

    /// Stops serving and ends pending calls. The switches keep their entries.
    pub async fn stop(mut self) {
        self.controller.close();
        drop(self.stop.take());
        drained(&mut self.server, self.controller.timers.stop).await;
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.controller.close();
        self.server.abort();
    }
}
